"""Laws of `packtrain verify` and `packtrain info`."""

from __future__ import annotations

import errno
import io
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.support import ONE_FORMAT, SUFFIXES, flip, packed, shard_bytes, sources
from PIL import Image

from packtrain import verify
from packtrain._core.options import LabelSpec, StoreOptions

from .conftest import Run


@pytest.fixture
def dataset(images: Path, tmp_path: Path, format_name: str) -> Path:
    return packed(images, tmp_path / "data set", format_name, shard_size=shard_bytes(images, 5))


class TestVerify:
    @ONE_FORMAT
    def test_a_sound_dataset_is_exit_code_0(self, run: Run, dataset: Path) -> None:
        outcome = run("verify", dataset)
        assert (outcome.code, outcome.err) == (0, "")
        assert outcome.out == f"{dataset}: 12 records in 3 shard(s) checked: no problems\n"
        assert run("verify", dataset, "--decode").out.endswith("checked and decoded: no problems\n")

    @ONE_FORMAT
    def test_damage_is_exit_code_1_and_named(self, run: Run, dataset: Path, format_name: str) -> None:
        row = 4
        where = int(np.load(dataset / "index" / "offset.npy")[row])
        shard = f"train-{np.load(dataset / 'index' / 'shard.npy')[row]:06d}{SUFFIXES[format_name]}"
        flip(dataset / shard, where + 20)
        outcome = run("verify", dataset)
        assert outcome.code == 1
        assert f"{shard}: row 4 (line 4, 'image 4.jpg'): its bytes are not those that were written" in outcome.out
        assert f"To mend {shard}, remove it and run the same pack command again" in outcome.out
        report = run("verify", dataset, "--json")
        assert report.code == 1
        (problem,) = [problem for problem in report.json["problems"] if problem["row"] is not None]
        assert (problem["file"], problem["row"], problem["line"]) == (shard, 4, 4)

    @ONE_FORMAT
    def test_a_shard_that_may_be_sound_is_not_to_be_removed(
        self, run: Run, dataset: Path, format_name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shard, open_file = f"train-000001{SUFFIXES[format_name]}", os.open

        def refuse(path: Any, *arguments: Any, **options: Any) -> int:
            if isinstance(path, str | Path) and Path(path).name == shard:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return open_file(path, *arguments, **options)

        monkeypatch.setattr(os, "open", refuse)
        outcome = run("verify", dataset, "--workers", 1)
        assert outcome.code == 1
        assert f"{shard}: cannot be read: Permission denied" in outcome.out
        assert "remove" not in outcome.out

    @ONE_FORMAT
    def test_the_json_report_is_the_librarys(self, run: Run, dataset: Path) -> None:
        report = verify(dataset)
        assert run("verify", dataset, "--json").json == {
            "dataset": str(dataset),
            "records": report.records,
            "shards": report.shards,
            "decoded": False,
            "linked": False,
            "orphans": [],
            "changed": False,
            "problems": [],
        }

    def test_a_journal_lets_a_run_go_on(self, run: Run, dataset: Path, tmp_path: Path) -> None:
        journal = tmp_path / "journal"
        assert run("verify", dataset, "--journal", journal, "--workers", 1).code == 0
        lines = journal.read_text().splitlines()
        assert len(lines) == 4
        journal.write_text("\n".join([*lines[:2], '{"number": 1, "rec']))
        assert run("verify", dataset, "--journal", journal, "--workers", 1, "--json").json["records"] == 12

    def test_what_is_no_dataset_is_exit_code_1(self, run: Run, tmp_path: Path) -> None:
        for command in ("verify", "info"):
            outcome = run(command, tmp_path, "--json")
            assert outcome.code == 1
            assert outcome.json["error"] == "NotADataset"
            assert outcome.err == f"error: {tmp_path} has no manifest.json: not a dataset\n"

    def test_of_a_file_in_a_dataset_the_folder_is_asked_for(self, run: Run, images: Path, tmp_path: Path) -> None:
        out = packed(images, tmp_path / "out", "tar")
        for command, name in (("verify", "manifest.json"), ("info", "train-000000.tar"), ("stage", "plan.json")):
            outcome = run(command, out / name)
            assert outcome.code == 1
            message = f"error: {out}/{name} is a file, but a dataset is a folder: give {out}\n"
            assert outcome.err == message


class TestInfo:
    def test_the_facts(self, run: Run, images: Path, dataset: Path, format_name: str) -> None:
        outcome = run("info", dataset)
        assert (outcome.code, outcome.err) == (0, "")
        facts, _, histogram = outcome.out.partition("\n\n")
        by_name = dict(line.split(maxsplit=1) for line in facts.splitlines())
        sizes = [len(source.data) for source in sources(images)]
        assert by_name["dataset"] == f"{dataset} ({format_name})"
        assert by_name["image"] == "verbatim, RGB"
        assert by_name["records"] == "12 of 12 lines, 0 refused, 0 repeated"
        assert by_name["record"].startswith(f"{min(sizes):,} to {max(sizes):,} bytes, median ")
        assert by_name["width"] == "40 to 73 pixels, median 56"
        assert by_name["labels"] == "int"
        assert histogram.splitlines()[0] == "3 labels, 4 to 4 records each"
        assert [line.split()[:2] for line in histogram.splitlines()[1:]] == [["0", "4"], ["1", "4"], ["2", "4"]]

    def test_the_json_document(self, run: Run, images: Path, dataset: Path) -> None:
        body = run("info", dataset, "--json").json
        widths = [Image.open(io.BytesIO(source.data)).width for source in sources(images)]
        assert body["dataset"] == str(dataset)
        assert body["label_counts"] == {str(k): n for k, n in Counter(s.label for s in sources(images)).items()}
        spread = {"min": min(widths), "median": int(np.median(widths)), "max": max(widths)}
        assert body["fields"]["image"]["width"] == spread
        assert body["manifest"]["records"] == 12
        assert body["index_bytes"] == sum(path.stat().st_size for path in (dataset / "index").iterdir())

    @pytest.mark.parametrize("labels", ["none", "float", "int*2"])
    def test_labels_that_cannot_be_counted(self, run: Run, images: Path, tmp_path: Path, labels: str) -> None:
        spec = LabelSpec.parse(labels)
        (tmp_path / "train.txt").write_text(f"{images.parent}/image 0.jpg" + " 1" * spec.fields)
        out = packed(tmp_path / "train.txt", tmp_path / "out", "tar", labels=spec)
        outcome = run("info", out)
        assert outcome.code == 0
        assert f"\nlabels       {labels}\n" in outcome.out
        assert run("info", out, "--json").json["label_counts"] is None

    def test_store_mode_and_class_names(self, run: Run, images: Path, tmp_path: Path) -> None:
        (tmp_path / "classes").write_text("cat\ndog\neel\n")
        store = StoreOptions("jpeg", resize="long=20", quality=77, mode="L")
        outcome = run("info", packed(images, tmp_path / "out", "tar", store=store, classes=tmp_path / "classes"))
        assert "\nimage        jpeg, long=20, quality 77, L\n" in outcome.out
        assert "\nwritten by   packtrain " in outcome.out
        assert outcome.out.endswith(" eel\n")
