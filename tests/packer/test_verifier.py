"""Laws of verifying: a sound dataset has no problem, and what differs is named by its file, its row and its line."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from helpers.damage import reindexed
from helpers.shards import jpeg, write_tar
from helpers.support import FORMATS, flip, image_set, packed, shard_bytes, sources, tree
from webdataset import tariterators
from webdataset.tariterators import tar_file_iterator

from packtrain import index_shards, verify
from packtrain._core.manifest import FileInfo, Manifest
from packtrain._core.options import StoreOptions
from packtrain.errors import UsageError
from packtrain.reports import Problem, VerifyProgress

COUNT = 9
Datasets = dict[str, Path]


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine images; not to be changed."""
    return image_set(tmp_path_factory.mktemp("images"), COUNT)


@pytest.fixture(scope="module")
def datasets(listing: Path, tmp_path_factory: pytest.TempPathFactory) -> Datasets:
    """The images in three shards of every format, verbatim; not to be changed."""
    folder, size = tmp_path_factory.mktemp("datasets"), shard_bytes(listing, 3)
    return {format: packed(listing, folder / format, format, shard_size=size) for format in FORMATS}


@pytest.fixture
def dataset(datasets: Datasets, format_name: str, tmp_path: Path) -> Path:
    """A copy for one test, in every format in turn."""
    return shutil.copytree(datasets[format_name], tmp_path / "dataset")


@pytest.fixture
def tar(datasets: Datasets, tmp_path: Path) -> Path:
    """A copy of the tar dataset for one test."""
    return shutil.copytree(datasets["tar"], tmp_path / "dataset")


def shards(dataset: Path) -> list[Path]:
    """The container files."""
    return [dataset / shard.name for shard in Manifest.load(dataset).shards]


@pytest.mark.parametrize("decode", [False, True], ids=["", "decoded"])
def test_a_sound_dataset_has_no_problem_and_every_record_is_counted(dataset: Path, decode: bool) -> None:
    before = tree(dataset)
    seen: list[VerifyProgress] = []
    report = verify(dataset, decode_images=decode, on_progress=seen.append)
    assert (report.dataset, report.records, report.shards, report.decoded) == (dataset, COUNT, 3, decode)
    assert report.problems == ()
    assert (seen[0], seen[-1]) == (VerifyProgress(0, COUNT, 0), VerifyProgress(COUNT, COUNT, 0))
    assert [state.done for state in seen] == sorted(state.done for state in seen)
    assert tree(dataset) == before


def test_a_missing_shard_costs_its_records(dataset: Path) -> None:
    path = shards(dataset)[1]
    path.unlink()
    (message,) = (problem.message for problem in verify(dataset).problems if problem.file == path.name)
    assert message == (
        "cannot be read: No such file or directory: make sure that it exists and is mounted; its 3 records are lost"
    )


def test_a_cut_shard_names_the_records_that_lost_bytes(listing: Path, tar: Path) -> None:
    index = {name: np.load(tar / "index" / f"{name}.npy") for name in ("line", "offset", "length", "by_place")}
    row, last = (int(index["by_place"][place]) for place in (1, 2))  # of the three in the first shard
    path = shards(tar)[0]
    path.write_bytes(path.read_bytes()[: index["offset"][row] + 10])
    named = {problem.row: problem for problem in verify(tar).problems if problem.row is not None}
    assert set(named) == {row, last}
    line, length = int(index["line"][row]), int(index["length"][row])
    name = sources(listing)[line].name
    message = f"row {row} (line {line}, {name!r}): {length - 10} of its {length} bytes are cut off"
    assert named[row] == Problem(path.name, message, row, line)


def test_a_damaged_index_leaves_the_shards_to_their_own_checksums(tar: Path) -> None:
    flip(tar / "index" / "offset.npy", -1)
    flip(shards(tar)[2], 600)
    report = verify(tar)
    assert [problem.file for problem in report.problems] == ["index/offset.npy", shards(tar)[2].name, "index"]
    assert (report.records, report.decoded) == (0, False)


class TestContainer:
    """The container's own library finds what the index says, or the row is named."""

    def test_another_label(self, dataset: Path) -> None:
        def change(columns: dict[str, Any]) -> None:
            columns["label"][4] += 10

        reindexed(dataset, change)
        (problem,) = verify(dataset).problems
        assert (problem.row, problem.line) == (4, 4)
        assert problem.message.endswith("its label is 1 in the container, 11 in the index")

    def test_another_line(self, dataset: Path) -> None:
        def change(columns: dict[str, Any]) -> None:
            columns["line"][8] = 99

        reindexed(dataset, change)
        unknown, known = sorted(verify(dataset).problems, key=lambda problem: problem.row is None)
        assert (unknown.row, unknown.line, known.line) == (8, 99, 8)
        assert "has no such key" in unknown.message
        assert "line 8" in known.message

    def test_another_place(self, dataset: Path) -> None:
        def change(columns: dict[str, Any]) -> None:
            columns["offset"][0] += 1

        reindexed(dataset, change)
        checksum, place = (problem.message for problem in verify(dataset).problems if problem.row == 0)
        assert "its bytes are not those that were written (crc32c " in checksum
        assert "the container has it at" in place


def test_what_cannot_be_decoded_is_found_only_by_decoding(listing: Path, tmp_path: Path) -> None:
    """Its bytes are what was written, as far as checksums tell: they are changed with it."""
    out = packed(listing, tmp_path / "out", "tar", store=StoreOptions("verbatim"), seed=None)
    (path,) = shards(out)
    offset, length = (int(np.load(out / "index" / f"{name}.npy")[2]) for name in ("offset", "length"))
    data = bytearray(path.read_bytes())
    data[offset : offset + 2] = b"no"
    path.write_bytes(data)
    manifest = Manifest.load(out)
    shard = replace(manifest.shards[0], crc32c=crc32c(data))
    (out / "manifest.json").write_bytes(replace(manifest, shards=(shard,)).dump())

    def change(columns: dict[str, Any]) -> None:
        columns["crc32c"][2] = crc32c(data[offset : offset + length])

    reindexed(out, change)
    assert not verify(out).problems
    (problem,) = verify(out, decode_images=True).problems
    assert (problem.row, problem.line) == (2, 2)
    assert "it cannot be decoded (UnidentifiedImageError" in problem.message


class TestJournal:
    def test_what_it_holds_is_not_checked_again(self, tar: Path, tmp_path: Path) -> None:
        journal = tmp_path / "journal"
        flip(shards(tar)[0], 600)
        first = verify(tar, journal=journal)
        assert {problem.file for problem in first.problems} == {shards(tar)[0].name}
        lines = journal.read_text().splitlines(keepends=True)
        assert len(lines) == 1 + 3
        for path in shards(tar)[1:]:
            flip(path, 600)
        journal.write_text("".join(lines[:3]) + lines[3][:20])  # killed while it wrote about the third shard
        seen: list[VerifyProgress] = []
        report = verify(tar, journal=journal, on_progress=seen.append)
        assert seen[0] == VerifyProgress(seen[0].resumed, COUNT, seen[0].resumed)
        assert 0 < seen[0].resumed < COUNT
        assert seen[-1] == VerifyProgress(COUNT, COUNT, seen[0].resumed)
        assert {problem.file for problem in report.problems} == {shards(tar)[number].name for number in (0, 2)}
        assert report.records == COUNT

    def test_a_complete_one_is_begun_anew(self, tar: Path, tmp_path: Path) -> None:
        journal = tmp_path / "journal"
        assert not verify(tar, journal=journal).problems
        flip(shards(tar)[1], 600)
        assert {problem.file for problem in verify(tar, journal=journal).problems} == {shards(tar)[1].name}

    @pytest.mark.parametrize("name", ["manifest.json", "train-000000.tar", "rejects.jsonl"])
    def test_no_other_file_is_overwritten(self, tar: Path, name: str) -> None:
        path = tar / name
        path.write_bytes(path.read_bytes() or b"[]\n{}\n")
        before = path.read_bytes()
        with pytest.raises(UsageError, match="is not a journal of packtrain verify"):
            verify(tar, journal=path)
        assert path.read_bytes() == before

    def test_a_journal_that_cannot_be_used_is_named(self, tar: Path, tmp_path: Path) -> None:
        for path in (tmp_path, tmp_path / "missing" / "journal"):
            with pytest.raises(UsageError, match=f"cannot use the journal {re.escape(str(path))}"):
                verify(tar, journal=path)

    @pytest.mark.parametrize("change", ["decode", "dataset"])
    def test_it_counts_only_for_the_same_dataset_and_kind_of_check(
        self, tar: Path, datasets: Datasets, tmp_path: Path, change: str
    ) -> None:
        journal = tmp_path / "journal"
        verify(datasets["lmdb"] if change == "dataset" else tar, journal=journal)
        seen: list[VerifyProgress] = []
        verify(tar, decode_images=change == "decode", journal=journal, on_progress=seen.append)
        assert (seen[0], seen[-1]) == (VerifyProgress(0, COUNT, 0), VerifyProgress(COUNT, COUNT, 0))
        head, *found = map(json.loads, journal.read_text().splitlines())
        assert head["decode"] is (change == "decode")
        assert [line["number"] for line in found] == [0, 1, 2]


@pytest.mark.parametrize("size", [b"-1", b"1000000000000", b"7"])
def test_an_index_for_dali_that_names_other_members_is_a_problem(tar: Path, size: bytes) -> None:
    index = min(tar.glob("*.idx"))
    lines = index.read_bytes().split(b"\n")
    lines[2] = re.sub(rb"^(\S+ \S+) \S+", rb"\1 " + size, lines[2])
    content = b"\n".join(lines)
    index.write_bytes(content)
    manifest = Manifest.load(tar)
    sidecar = FileInfo(index.name, len(content), crc32c(content))
    shards = (replace(manifest.shards[0], sidecars=(sidecar,)), *manifest.shards[1:])
    (tar / "manifest.json").write_bytes(replace(manifest, shards=shards).dump())
    (problem,) = verify(tar).problems
    assert problem.file == index.name
    assert re.match(rf"its line 3 is '\S+ \d+ {size.decode()} .*', and that of the shard's members '", problem.message)


@pytest.mark.parametrize("version", ["v1.1", "v1.2"])
def test_a_strangers_index_beside_a_linked_shard_is_checked(tmp_path: Path, version: str) -> None:
    shard = write_tar(tmp_path / "a.tar", [("0.jpg", jpeg()), ("0.cls", b"1")])
    out = Path(index_shards(shard, tmp_path / "out").dataset)
    name = " 0.jpg" if version == "v1.2" else ""
    for size, sound in ((len(jpeg()), True), (-1, False), (1 << 40, False)):
        (tmp_path / "a.idx").write_text(f"{version} 1\njpg 512 {size}{name}\n")
        problems = verify(out).problems
        assert not problems if sound else "a.idx, which DALI would read, is damaged: line 2" in problems[0].message


class TestByWebdataset:
    """With `decode_images`, tar shards are also read by webdataset, which has to find every record of the index."""

    @pytest.fixture
    def read_otherwise(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str, bytes], bytes | None]], None]:
        """Makes webdataset read other bytes for the members of shards, or none."""

        def change(read: Callable[[str, bytes], bytes | None]) -> None:
            def files(*args: Any) -> Iterator[dict[str, Any]]:
                for member in tar_file_iterator(*args):
                    if (data := read(member["fname"], member["data"])) is not None:
                        yield {**member, "data": data}

            monkeypatch.setattr(tariterators, "tar_file_iterator", files)

        return change

    @pytest.mark.parametrize("data", [None, b"other bytes"], ids=["missing", "other"])
    @pytest.mark.parametrize("linked", [False, True], ids=["packed", "indexed"])
    def test_a_record_that_it_reads_otherwise_is_named(
        self,
        tar: Path,
        tmp_path: Path,
        read_otherwise: Callable[[Callable[[str, bytes], bytes | None]], None],
        linked: bool,
        data: bytes | None,
    ) -> None:
        dataset = tar
        if linked:
            dataset = tmp_path / "index"
            index_shards([tar], dataset)
        read_otherwise(lambda name, content: data if name == "000000004.jpg" else content)
        (problem,) = verify(dataset, decode_images=True).problems
        assert problem.message.endswith("webdataset does not read this record from the shard")
        assert "000000004" in problem.message if linked else problem.line == 4
        assert verify(dataset).problems == ()

    def test_an_archive_that_it_cannot_read_is_a_problem_of_the_shard(
        self, tar: Path, read_otherwise: Callable[[Callable[[str, bytes], bytes | None]], None]
    ) -> None:
        def fail(name: str, content: bytes) -> bytes:
            raise ValueError("a reason")

        read_otherwise(fail)
        problems = verify(tar, decode_images=True).problems
        assert [problem.message for problem in problems] == ["webdataset cannot read it: ValueError: a reason"] * 3
