"""Laws of samples that come one by one: all of them become a sound dataset, or nothing does."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.making import BAD, failing, image, sample, stream
from helpers.support import picture, tree
from hypothesis import given
from hypothesis import strategies as st

from packtrain import PackOptions, merge, open_dataset, pack, pack_status, verify
from packtrain._core.options import StoreOptions
from packtrain.errors import ListError, OutputConflict, PackError, TooManyRejects
from packtrain.reports import PackProgress

COUNT = 100
VERBATIM = StoreOptions("verbatim")
SHARD = 4096
SMALL = PackOptions(store=VERBATIM, shard_size=SHARD)


def plan(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "plan.json").read_bytes())
    return found


@pytest.mark.complete
def test_rows_are_in_the_order_of_arrival(tmp_path: Path, format_name: str) -> None:
    """More samples come than show what samples hold."""
    out = tmp_path / "out"
    report = pack(stream(COUNT), out, PackOptions(format_name, VERBATIM, shard_size=SHARD))
    assert (report.records, report.dataset) == (COUNT, out)
    assert verify(out, decode_images=True).problems == ()
    dataset = open_dataset(out, fields=("image", "label", "caption", "boxes"))
    for number in range(COUNT):
        assert bytes(dataset.record(number)) == image(number)
        assert dataset[number].caption == f"number {number}"
        np.testing.assert_array_equal(dataset[number].boxes, sample(number)["boxes"], strict=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_shards_are_cut_by_their_bytes(tmp_path: Path) -> None:
    """Each takes samples until it has as many bytes as it aims at."""
    samples = [{"x": b"x" * size} for size in (3000, 1000, 96, 5000, 1, 4094, 1, 1)]
    pack(iter(samples), tmp_path / "out", SMALL)
    assert [shard["count"] for shard in plan(tmp_path / "out")["shards"]] == [3, 1, 3, 1]


def test_the_plan_is_that_of_any_dataset(tmp_path: Path) -> None:
    """So all that reads datasets reads this one."""
    out = tmp_path / "out"
    pack(({"image": image(number), "label": 1} for number in range(COUNT)), out, SMALL)
    found = plan(out)
    assert found["version"] == 1
    assert (found["seed"], found["entries"], found["lines"]) == (None, COUNT, COUNT)
    assert found["list_sha256"] == hashlib.sha256(b"").hexdigest()
    assert sum(shard["count"] for shard in found["shards"]) == COUNT
    assert pack_status(out).missing == ()
    assert merge(out).complete_before
    assert pack(out, tmp_path / "again").records == COUNT


@pytest.mark.complete
def test_inputs_of_a_function_come_one_by_one_too(tmp_path: Path) -> None:
    report = pack(iter(range(COUNT)), tmp_path / "out", SMALL, function=failing, max_rejects=1)
    assert (report.records, report.rejects) == (COUNT - 1, 1)
    (found,) = map(json.loads, (tmp_path / "out" / "rejects.jsonl").read_text().splitlines())
    assert (found["line"], found["path"]) == (BAD, str(BAD))
    assert verify(tmp_path / "out").problems == ()


def test_a_source_may_use_again_what_it_has_yielded(tmp_path: Path) -> None:
    def reused() -> Iterator[dict[str, Any]]:
        numbers, boxes, about, photo = np.zeros(9, np.float32), [0, 0], {"inner": {"n": 0}}, picture(1, 8, 8)
        for number in range(COUNT):
            numbers[:] = boxes[1] = about["inner"]["n"] = number
            photo.paste((number,) * 3, (0, 0, 8, 8))
            yield {"image": photo, "label": boxes, "numbers": numbers, "boxes": ([boxes],), "about": about}

    pack(reused(), tmp_path / "out", PackOptions(store=StoreOptions("raw"), shard_size=SHARD))
    dataset = open_dataset(tmp_path / "out", fields=("image", "label", "numbers", "boxes", "about"))
    for number in range(COUNT):
        found = dataset[number]
        assert (found.label.tolist(), found.boxes, found.about) == (
            [0, number],
            [[[0, number]]],
            {"inner": {"n": number}},
        )
        assert set(np.asarray(found.image).flat) == set(found.numbers.tolist()) == {number}


@given(st.lists(st.tuples(st.binary(max_size=60), st.text(max_size=9)), min_size=1, max_size=90), st.integers(1, 200))
def test_any_samples_come_back(tmp_path_factory: pytest.TempPathFactory, values: list[Any], size: int) -> None:
    out = tmp_path_factory.mktemp("stream") / "out"
    pack(({"a": data, "b": text} for data, text in values), out, PackOptions(shard_size=size))
    dataset = open_dataset(out, fields=("a", "b"))
    assert [tuple(dataset[row]) for row in range(len(dataset))] == values


class TestNothingIsLeft:
    @pytest.mark.parametrize("after", [None, 0, 10, 90])
    @pytest.mark.parametrize("error", [ConnectionError, KeyboardInterrupt])
    def test_when_the_source_fails_or_is_stopped(
        self, tmp_path: Path, after: int | None, error: type[BaseException]
    ) -> None:
        class Broken:
            def __iter__(self) -> Iterator[dict[str, Any]]:
                if after is None:
                    raise error("gone")
                return self.some(after)

            def some(self, number: int) -> Iterator[dict[str, Any]]:
                yield from stream(number)
                raise error("gone")

        said = rf"failed after {after or 0} samples: ConnectionError: gone \(.*test_stream.py"
        expected, message = (error, "gone") if error is KeyboardInterrupt else (PackError, said)
        with pytest.raises(expected, match=message):
            pack(Broken(), tmp_path / "out", SMALL)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("limit", [0, 4, "1%"])
    def test_when_too_many_are_refused(self, tmp_path: Path, limit: int | str) -> None:
        samples = [sample(number) | ({"label": "cat"} if number % 10 == 3 else {}) for number in range(COUNT)]
        with pytest.raises(TooManyRejects, match=r"(?s)line 3: .*label is of type str.*nothing is kept"):
            pack(iter(samples), tmp_path / "out", SMALL, max_rejects=limit)
        assert list(tmp_path.iterdir()) == []

    def test_a_hopeless_stream_is_not_read_to_its_end(self, tmp_path: Path) -> None:
        def bad() -> Iterator[dict[str, Any]]:
            yield from stream(64)
            while True:
                yield {"label": "cat"}

        with pytest.raises(TooManyRejects, match=r"100 of 16[34] lines refused"):
            pack(bad(), tmp_path / "out", SMALL)

    @pytest.mark.parametrize(
        ("samples", "names"), [([], "no sample"), ([5], r"first 1 samples .* not an object of type int")]
    )
    def test_when_there_is_no_sample(self, tmp_path: Path, samples: Any, names: str) -> None:
        with pytest.raises(ListError, match=names):
            pack(iter(samples), tmp_path / "out")
        assert list(tmp_path.iterdir()) == []


class TestTheOutput:
    def test_a_dataset_is_not_replaced(self, tmp_path: Path) -> None:
        pack(stream(9), tmp_path / "out", SMALL)
        before = tree(tmp_path / "out")
        with pytest.raises(OutputConflict, match=r"nothing is continued.*rm -r"):
            pack(stream(9), tmp_path / "out", SMALL)
        with pytest.raises(OutputConflict, match="list_sha256"):
            pack(list(stream(9)), tmp_path / "out", SMALL)
        assert tree(tmp_path / "out") == before

    def test_an_empty_folder_and_a_link_to_one_are_free(self, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        (tmp_path / "link").symlink_to("empty")
        pack(stream(9), tmp_path / "link", SMALL)
        assert (tmp_path / "link").is_symlink()
        assert len(open_dataset(tmp_path / "empty")) == 9

    def test_what_appears_meanwhile_is_kept(self, tmp_path: Path) -> None:
        def slow() -> Iterator[dict[str, Any]]:
            yield from stream(9)
            (tmp_path / "out").mkdir()
            (tmp_path / "out" / "notes.txt").write_text("mine")

        with pytest.raises(OutputConflict, match="holds a dataset, finished or not, or files"):
            pack(slow(), tmp_path / "out", SMALL)
        assert tree(tmp_path) == {"out/notes.txt": b"mine"}


def test_progress_has_no_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packtrain._packer.stream._REPORT_SECONDS", -1)
    seen: list[PackProgress] = []
    pack(stream(9), tmp_path / "out", SMALL, on_progress=seen.append)
    assert [(state.done, state.total) for state in seen] == [(number, 0) for number in range(1, 10)]
