"""Laws of merged datasets: the new one has the rows of the others in their order, and needs none of them."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from helpers.memory_objects import MemoryObjects
from helpers.support import FORMATS, encoded, flip, packed, picture, tree, with_classes
from helpers.versions import laid_out, listed
from hypothesis import given, settings
from hypothesis import strategies as st

from packtrain import (
    FieldColumn,
    LabelSpec,
    add_field,
    append,
    compact,
    drop_rows,
    drop_version,
    index_shards,
    merge_datasets,
    open_dataset,
    purge,
    relabel,
    split,
    stage,
    verify,
)
from packtrain._cli.main import group
from packtrain._core.versions import load_version
from packtrain._storage.remote.urls import Url
from packtrain.errors import CorruptFile, NotADataset, OutputConflict, PackError, RemoteError, UsageError

from .conftest import meanwhile

CAPTION = FieldColumn("caption", "text", "caption", by_path=False, optional=True)
SCORE = FieldColumn("score", "number", "score", by_path=False, optional=True)
Row = tuple[Any, ...]


def rows(out: Path) -> list[Row]:
    """All that the rows of a dataset hold: path, label, image, caption and score."""
    dataset = open_dataset(out)
    there = [name for name in ("caption", "score") if name in dataset.schema.names]
    return [
        (
            dataset.filename(row),
            dataset.label(row),
            bytes(dataset.record(row)),
            *(dataset.value(row, name) if name in there else None for name in ("caption", "score")),
        )
        for row in range(len(dataset))
    ]


def changed(out: Path, numbers: range, format: str, changes: list[str]) -> Path:
    """A dataset of these pictures that was changed in these ways."""
    packed(listed(out.parent, numbers.start, 3), out, format)
    for change in changes:
        here = range(numbers.start, numbers.start + len(open_dataset(out)))
        if change == "append" and len(here) < len(numbers) - 1:
            append(out, listed(out.parent, here.stop, 2))
        elif change == "drop":
            drop_rows(out, [0])
        elif change == "relabel":
            (out.parent / "labels.txt").write_text(f"{numbers[2]}.jpg 999\n")
            relabel(out, out.parent / "labels.txt")
        elif change in ("caption", "score"):
            (out.parent / "values.csv").write_text(f"path,{change}\n{numbers[2]}.jpg,7\n")
            column = CAPTION if change == "caption" else SCORE
            add_field(out, out.parent / "values.csv", [column], replace_existing=True)
    return out


CHANGES = st.lists(st.sampled_from(["append", "relabel", "caption", "score"]), max_size=3, unique=True)
DROPS = st.sampled_from([[], ["drop"]])


@pytest.mark.complete
@settings(max_examples=max(4, settings().max_examples // 3))
@given(st.lists(st.tuples(st.sampled_from(FORMATS), CHANGES, DROPS), min_size=2, max_size=3))
def test_it_has_the_rows_of_all_in_their_order(made: list[tuple[str, list[str], list[str]]]) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").exists() else None) as name:
        folder = Path(name)
        sources = [
            changed(folder / f"source-{number}", range(100 * number, 100 * number + 6), format, [*changes, *drop])
            for number, (format, changes, drop) in enumerate(made)
        ]
        before = [tree(source) for source in sources]
        out = folder / "out"
        planned = merge_datasets(sources, out, dry_run=True)
        assert not out.exists()
        report = merge_datasets(sources, out)
        assert list(map(tree, sources)) == before
        there = {"manifest.json", "versions/00000001.json"} | {
            str(path.relative_to(out)) for place in ("segments", "layers", "dropped") for path in out.glob(f"{place}/*")
        }
        assert set(planned.written) == there
        assert planned.bytes <= sum(map(len, tree(out).values()))
        expected = [row for source in sources for row in rows(source)]
        for source in sources:
            shutil.rmtree(source)
        assert rows(out) == expected
        assert (planned.records, report.records, report.version) == (len(expected), len(expected), 1)
        assert not verify(out).problems and not verify(out).orphans


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    one = changed(tmp_path / "one", range(6), "tar", ["append", "caption", "relabel", "drop"])
    return [one, changed(tmp_path / "two", range(100, 106), "tar", ["append", "score"])]


BUCKET = Url.parse("s3://bucket")


def written(memory: MemoryObjects, folder: Path) -> Path:
    """A copy of what lies at the address of the new dataset, which is sound."""
    return laid_out(memory.under(BUCKET / "out"), folder)


@pytest.mark.complete
@pytest.mark.parametrize("one", ["folder", "address"])
@pytest.mark.parametrize("two", ["folder", "address"])
@pytest.mark.parametrize("out", ["folder", "address"])
def test_each_is_a_folder_or_an_address(
    memory: MemoryObjects, sources: list[Path], tmp_path: Path, one: str, two: str, out: str
) -> None:
    """The files are the same, wherever they lie."""
    merge_datasets(sources, tmp_path / "expected")
    places: list[str | Path] = [
        folder if kind == "folder" else memory.put(BUCKET / folder.name, tree(folder))
        for folder, kind in zip(sources, (one, two), strict=True)
    ]
    before, target = dict(memory.objects), tmp_path / "out" if out == "folder" else f"{BUCKET}/out"
    planned = merge_datasets(places, target, dry_run=True)
    assert memory.objects == before and not (tmp_path / "out").exists()
    report = merge_datasets(places, target)
    assert (str(report.dataset), report.records, planned.records) == (str(target), 9, 9)
    made = tmp_path / "out" if out == "folder" else written(memory, tmp_path / "written")
    drawn = dict.fromkeys(["manifest.json", "versions/00000001.json"], b"")
    assert {**tree(made), **drawn} == {**tree(tmp_path / "expected"), **drawn}
    assert not verify(made).problems
    assert all(memory.objects[name] == data for name, data in before.items())
    after = dict(memory.objects)
    assert merge_datasets(places, target).records == 9
    assert memory.objects == after
    with pytest.raises(OutputConflict, match="holds another dataset: choose another folder"):
        merge_datasets(places[::-1], target)
    with pytest.raises(UsageError, match="or inside it"):
        merge_datasets(places, f"{places[0]}/inside")


@pytest.mark.complete
@pytest.mark.campaign
def test_stopped_before_any_request(
    memory: MemoryObjects, stopped: Callable[..., Iterator[int]], sources: list[Path], tmp_path: Path
) -> None:
    """There is no dataset before all of it is there, others cannot go on with it, and the same call does."""
    out, expected = BUCKET / "out", list[Row]()
    for number in stopped(lambda: merge_datasets(sources, str(out))):
        if number:
            assert "manifest.json" not in memory.under(out)
            if memory.objects:
                with pytest.raises(OutputConflict, match="the beginning of another merge, which was stopped"):
                    merge_datasets(sources[::-1], str(out))
            merge_datasets(sources, str(out))
        found = rows(written(memory, tmp_path / "copy"))
        expected = expected or found
        assert found == expected


@pytest.mark.complete
def test_of_two_merges_to_an_address_at_once_one_is_refused(
    memory: MemoryObjects, sources: list[Path], tmp_path: Path
) -> None:
    """Unless they are about the same datasets: then both of them make it."""
    out = BUCKET / "out"
    meanwhile(memory, "", lambda: merge_datasets(sources, str(out)))
    with pytest.raises(OutputConflict, match=f"{out} holds another dataset"):
        merge_datasets(sources[::-1], str(out))
    expected = rows(written(memory, tmp_path / "copy"))
    memory.objects.clear()
    meanwhile(memory, "", lambda: merge_datasets(sources, str(out)))
    merge_datasets(sources, str(out))
    assert rows(written(memory, tmp_path / "again")) == expected


@pytest.mark.complete
def test_what_lies_there_and_is_something_else_is_written_again(
    memory: MemoryObjects, sources: list[Path], tmp_path: Path
) -> None:
    """Also if it has as many bytes; what is there already is not. A part whose manifest is there is finished."""
    out, written_again = BUCKET / "out", list[str]()
    merge_datasets(sources, str(out))
    expected = rows(written(memory, tmp_path / "first"))
    (kept, damaged, *_) = sorted(name for name in memory.under(out) if name.endswith(".tar"))
    memory.objects[f"{out}/{damaged}"] = bytes(len(memory.objects[f"{out}/{damaged}"]))
    for name in [name for name in memory.under(out) if name.endswith("manifest.json")]:
        del memory.objects[f"{out}/{name}"]

    def noted(url: Url, number: int) -> str:
        written_again.append(str(url))
        return ""

    memory.fault = noted
    merge_datasets(sources, str(out))
    assert rows(written(memory, tmp_path / "second")) == expected
    assert f"{out}/{damaged}" in written_again and f"{out}/{kept}" not in written_again


def test_a_store_that_ignores_the_condition_is_refused(memory: MemoryObjects, sources: list[Path]) -> None:
    memory.fault = lambda url, number: "ignoring"
    with pytest.raises(RemoteError, match=r"ignores `If-None-Match: \*`.*Remove .*1.json. Merge into a folder"):
        merge_datasets(sources, f"{BUCKET}/out")
    assert list(memory.under(BUCKET / "out")) == ["versions/00000001.json"]


def test_damage_at_an_address_is_named(memory: MemoryObjects, sources: list[Path], tmp_path: Path) -> None:
    damaged = BUCKET / "two"
    memory.put(damaged, tree(sources[1]))
    (shard,) = [name for name in memory.under(damaged) if name.endswith(".tar") and "/" not in name]
    memory.objects[f"{damaged}/{shard}"] = memory.objects[f"{damaged}/{shard}"].replace(b"jpg", b"gif")
    for target in (tmp_path / "out", f"{BUCKET}/out"):
        with pytest.raises(CorruptFile, match=f"^{damaged}/{shard} is damaged: it is not the file that the manifest"):
            merge_datasets([sources[0], str(damaged)], target)


@pytest.mark.complete
def test_it_can_be_changed_as_any_other(sources: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("polars")
    out = tmp_path / "out"
    merge_datasets(sources, out)
    expected = rows(out)
    (tmp_path / "stage").mkdir()
    assert rows(Path(stage(out, tmp_path / "stage").path)) == expected
    # What the sources were packed from is there already.
    for first, count in ((0, 3), (3, 2), (100, 3), (103, 2)):
        assert append(out, listed(tmp_path, first, count)).version == 1
    assert append(out, listed(tmp_path, 200, 2)).version == 2
    (tmp_path / "labels.txt").write_text("1.jpg 31\n103.jpg 32\n")
    relabel(out, tmp_path / "labels.txt")
    split(out, val=0.5, stratified=False)
    assert 2 * len(open_dataset(out, split="val")) in range(len(expected) + 1, len(expected) + 4)
    (tmp_path / "values.csv").write_text("path,caption\n103.jpg,later\n")
    add_field(out, tmp_path / "values.csv", [CAPTION], replace_existing=True)
    found = {row[0]: row for row in rows(out)}
    assert (found["1.jpg"][1], found["103.jpg"][1], found["103.jpg"][3]) == (31, 32, "later")
    drop_rows(out, where="label = 31")
    assert len(rows(out)) == len(expected) + 1
    drop_version(out, range(1, load_version(out).number))
    assert len(rows(out)) == len(expected) + 1
    assert not verify(out).problems


def test_it_is_joined_and_purged(tmp_path: Path) -> None:
    sources = [changed(tmp_path / f"{n}", range(100 * n, 100 * n + 6), "tar", ["append", "relabel"]) for n in (0, 1)]
    out = tmp_path / "out"
    merge_datasets(sources, out)
    expected = rows(out)
    compact(out)
    assert rows(out) == expected
    purge(out, [0, 7])
    assert rows(out) == [*expected[1:7], *expected[8:]]
    assert not verify(out).problems


def test_the_same_merge_finds_that_it_is_done(sources: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    merge_datasets(sources, out)
    before = tree(out)
    report = merge_datasets(sources, out)
    assert (report.version, report.records, tree(out)) == (1, len(rows(out)), before)
    for others in (sources[::-1], [*sources, changed(tmp_path / "three", range(200, 203), "tar", [])]):
        with pytest.raises(OutputConflict, match="holds another dataset: choose another folder"):
            merge_datasets(others, out)
    with pytest.raises(OutputConflict, match="holds another dataset"):
        merge_datasets(sources, changed(tmp_path / "four", range(300, 303), "tar", []))
    assert tree(out) == before


def test_it_is_no_dataset_before_it_is_whole(sources: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    merge_datasets(sources, out)
    complete = tree(out)
    (out / "manifest.json").unlink()
    with pytest.raises(NotADataset):
        open_dataset(out)
    (first, *_) = sorted((out / "segments").iterdir())
    (first / "manifest.json").unlink()
    flip(next(first.glob("*.tar")), 600)
    merge_datasets(sources, out)
    assert tree(out) == complete
    (out / "manifest.json").unlink()
    with pytest.raises(OutputConflict, match="holds the beginning of another merge, which was stopped: choose another"):
        merge_datasets(sources[::-1], out)
    (out / "versions/00000001.json").rename(out / "notes.txt")
    shutil.rmtree(out / "segments")
    shutil.rmtree(out / "layers")
    shutil.rmtree(out / "dropped")
    with pytest.raises(OutputConflict, match=r"has notes\.txt, which is not of this merge"):
        merge_datasets(sources, out)


def test_nothing_is_written_by_a_link(sources: list[Path], tmp_path: Path) -> None:
    """Not even if somebody else has begun the same merge there."""
    out, theirs = tmp_path / "out", tmp_path / "theirs"
    merge_datasets(sources, out)
    (out / "manifest.json").unlink()
    (segment, *_) = sorted((out / "segments").iterdir())
    shutil.rmtree(segment)
    theirs.mkdir()
    segment.symlink_to(theirs)
    for begun in (True, False):
        if not begun:
            shutil.rmtree(out / "versions")
        with pytest.raises(OutputConflict, match=rf"{segment} is a link, which leads out of {out}"):
            merge_datasets(sources, out)
    assert not list(theirs.iterdir())


def test_what_is_no_file_is_no_beginning_of_a_merge(sources: list[Path], tmp_path: Path) -> None:
    (tmp_path / "out" / "versions").mkdir(parents=True)
    os.mkfifo(tmp_path / "out" / "versions" / "00000001.json")
    with pytest.raises(PackError, match=r"cannot read .*00000001\.json: it is a FIFO"):
        merge_datasets(sources, tmp_path / "out")


def test_lists_of_the_same_text_may_name_other_images(tmp_path: Path) -> None:
    """So plans, and with them the names of segments, are the same, and what they hold is not."""
    sources = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "0.jpg").write_bytes(encoded(picture(number, 16, 12)))
        (folder / "list.txt").write_text("0.jpg 1\n")
        sources.append(packed(folder / "list.txt", folder / "out", "tar"))
    merge_datasets(sources, tmp_path / "out")
    assert rows(tmp_path / "out") == rows(sources[0]) + rows(sources[1])
    assert not verify(tmp_path / "out").problems


def test_damage_is_named_and_not_copied(sources: list[Path], tmp_path: Path) -> None:
    shard = next(sources[1].glob("*.tar"))
    flip(shard, 600)
    with pytest.raises(CorruptFile, match=rf"{shard} is damaged: it is not the file that the manifest names"):
        merge_datasets(sources, tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert not list(tmp_path.glob("out/**/*.tmp-*"))


def test_sources_that_have_a_segment_in_common(sources: list[Path], tmp_path: Path) -> None:
    copy = shutil.copytree(sources[0], tmp_path / "copy")
    append(copy, listed(tmp_path, 50, 2))
    for others in ([sources[0], copy], [sources[0], sources[0]]):
        with pytest.raises(UsageError, match=rf"{others[0]} and {others[1]} have the same 3 rows"):
            merge_datasets(others, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_does_not_fit_names_both(sources: list[Path], tmp_path: Path) -> None:
    out, one = tmp_path / "out", sources[0]
    names, others = (with_classes(tmp_path / name, classes) for name, classes in (("ab", "abc"), ("ax", "axc")))
    for refused, message in [
        ([names, others], rf"label 1 is 'x' in {others}, but 'b' in {names}"),
        ([names, one], rf"{names} has class names, but {one} has none"),
    ]:
        with pytest.raises(UsageError, match=message):
            merge_datasets(refused, out)
    (tmp_path / "floats.txt").write_text("100.jpg 0.5\n")
    floats = packed(tmp_path / "floats.txt", tmp_path / "floats", "tar", labels=LabelSpec("float"))
    with pytest.raises(UsageError, match=rf"{floats} has labels of type float, but {one} of int"):
        merge_datasets([one, floats], out)
    (tmp_path / "values.jsonl").write_text(json.dumps({"path": "100.jpg", "caption": [1]}) + "\n")
    add_field(sources[1], tmp_path / "values.jsonl", [FieldColumn("caption", "json", "caption", False, optional=True)])
    with pytest.raises(UsageError, match=rf"caption: kind is 'json' in {sources[1]}, but 'text' in {one}"):
        merge_datasets(sources, out)
    with pytest.raises(UsageError, match="takes two datasets or more"):
        merge_datasets([one], out)
    with pytest.raises(UsageError, match="or inside it"):
        merge_datasets(sources, one / "inside")
    tars = index_shards(sorted(sources[1].glob("*.tar")), tmp_path / "index").dataset
    with pytest.raises(UsageError, match="index of shards that lie elsewhere"):
        merge_datasets([tars, tars], out)
    assert not out.exists()


def test_class_names_are_joined_as_by_append(tmp_path: Path) -> None:
    short, long = with_classes(tmp_path / "short", "ab"), with_classes(tmp_path / "long", "abc")
    merge_datasets([short, long], tmp_path / "out")
    assert open_dataset(tmp_path / "out").classes == ("a", "b", "c")


@pytest.mark.complete
def test_rows_stay_on_their_sides(sources: list[Path], tmp_path: Path) -> None:
    one, two = sources
    split(one, val=0.5, stratified=False)
    merge_datasets(sources, tmp_path / "half")
    with pytest.raises(UsageError, match="5 rows that were appended are on no side"):
        open_dataset(tmp_path / "half", split="val")
    split(two, val=0.5)
    with pytest.raises(UsageError, match=rf"{one} and {two} are split in different ways"):
        merge_datasets(sources, tmp_path / "out")
    split(two, val=0.5, stratified=False, replace_existing=True)
    merge_datasets(sources, tmp_path / "out")
    for side in ("train", "val"):
        expected = [
            each.filename(row)
            for each in (open_dataset(path, split=side) for path in sources)
            for row in range(len(each))
        ]
        found = open_dataset(tmp_path / "out", split=side)
        assert [found.filename(row) for row in range(len(found))] == expected
    assert not verify(tmp_path / "out").problems


def test_the_command_tells_the_two_apart(sources: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"

    def said(*words: str | Path) -> str:
        done = CliRunner().invoke(group, ["merge", *map(str, words)], standalone_mode=False)
        return done.output if done.exception is None else str(done.exception)

    assert "version 1 of" in said(*sources, out, "--dry-run") and not out.exists()
    assert "version 1 has the 9 rows of 2 datasets" in said(*sources, out)
    assert said("--max-rejects", "3", *sources, out).startswith("--max-rejects is for the parts of one dataset")
    assert said(out, "--dry-run").startswith("--dry-run is for datasets that are merged")
    assert "takes two datasets or more" in said(sources[0], out)
    assert "nothing was packed or indexed there" in said(tmp_path / "nothing")
    assert "cannot be written to" in said(*sources, "https://host/out")
