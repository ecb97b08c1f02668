"""Laws of inputs: a row is what a function makes of an input, with any number of workers, in any run."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.making import BAD, Images, Pair, failing, image, of_line, sample, write_list
from helpers.support import encoded, items, picture, tree

from packtrain import Columns, FieldColumn, PackOptions, merge, open_dataset, pack, verify
from packtrain._core.options import LabelSpec, StoreOptions
from packtrain._readers.dataset.store import RecordStore
from packtrain.errors import ListError, OutputConflict, ShardFailed, TooManyRejects, UsageError

COUNT = 24
VERBATIM = StoreOptions("verbatim")
SMALL = PackOptions(store=VERBATIM, shard_size=4096)
FIELDS = ("image", "label", "caption", "boxes", "meta", "blob", "score")


def test_each_row_is_the_sample_of_its_input(tmp_path: Path, format_name: str) -> None:
    report = pack(range(COUNT), tmp_path / "out", PackOptions(format_name, VERBATIM, shard_size=4096), function=sample)
    assert report.packed > 2
    assert report.records == COUNT
    assert verify(tmp_path / "out", decode_images=True).problems == ()
    dataset = open_dataset(tmp_path / "out", fields=FIELDS)
    for number in range(COUNT):
        expected, found = sample(number), dataset[number]
        assert bytes(dataset.record(number)) == expected["image"]
        assert (found.label, found.caption, found.meta) == (number % 3, f"number {number}", {"number": number})
        np.testing.assert_array_equal(found.boxes, expected["boxes"], strict=True)
        assert (found.blob, found.score) == (bytes([number]), number / 2)


@pytest.mark.complete
def test_the_bytes_are_the_same_with_workers_and_in_parts(tmp_path: Path, format_name: str) -> None:
    options = PackOptions(format_name, VERBATIM, shard_size=4096)
    make = partial(pack, range(COUNT), options=options, function=failing, max_rejects=1)
    make(tmp_path / "one")
    expected = tree(tmp_path / "one")
    make(tmp_path / "two", num_workers=2)
    assert tree(tmp_path / "two") == expected
    for part in ("1/2", "2/2"):
        make(tmp_path / "parts", part=part)
    merge(tmp_path / "parts", max_rejects=1)
    assert tree(tmp_path / "parts") == expected
    assert make(tmp_path / "one").complete_before


def test_a_list_of_the_same_images_gives_the_same_shards(tmp_path: Path) -> None:
    """Only the names of shards and of rows differ: by way of a dict, a pair, or a file, it is one sample."""
    listing = write_list(tmp_path / "images", COUNT)
    lines = listing.read_text().splitlines()
    root = PackOptions(store=VERBATIM, shard_size=4096, root=listing.parent)
    pack(listing, tmp_path / "list", root)
    pack(lines, tmp_path / "lines", root, function=of_line)
    pack(Images(COUNT), tmp_path / "pairs", SMALL)
    pack([Pair(*pair) for pair in map(Images(COUNT).__getitem__, range(COUNT))], tmp_path / "named", SMALL)
    expected = items(open_dataset(tmp_path / "list", lambda image: np.asarray(image)))
    for name in ("lines", "pairs", "named"):
        found = items(open_dataset(tmp_path / name, lambda image: np.asarray(image)))
        assert [label for _, label in found] == [label for _, label in expected]
        assert all(np.array_equal(one, other) for (one, _), (other, _) in zip(found, expected, strict=True))
    assert tree(tmp_path / "pairs", "plan.json", "manifest.json") == tree(
        tmp_path / "named", "plan.json", "manifest.json"
    )
    with RecordStore(tmp_path / "lines") as store:
        assert [store.index.text("path", row) for row in range(COUNT)] == lines


def test_a_dataset_of_torch_is_read_by_number(tmp_path: Path) -> None:
    class Squares(torch.utils.data.Dataset[dict[str, Any]]):
        def __len__(self) -> int:
            return 5

        def __getitem__(self, number: int) -> dict[str, Any]:
            return {"x": torch.tensor(number), "y": torch.full((2,), number**2)}

    pack(Squares(), tmp_path / "out")
    dataset = open_dataset(tmp_path / "out", fields=("x", "y"))
    assert [(int(x), y.tolist()) for x, y in map(dataset.__getitem__, range(5))] == [(n, [n * n] * 2) for n in range(5)]


class TestRejects:
    def test_a_message_names_an_input_that_has_no_path(self, tmp_path: Path) -> None:
        masks = PackOptions(store=VERBATIM, columns=Columns("image", fields=(FieldColumn("seg", "mask", "seg", True),)))
        samples = [{"image": image(number), "seg": np.zeros((3, 3), np.uint8)} for number in range(3)]
        with pytest.raises(ListError, match=r"none of 3 sampled files can be read\. First: input \d: mask seg: "):
            pack(samples, tmp_path / "list", masks)
        with pytest.raises(TooManyRejects, match=r"\n  line 0: mask seg: "):
            pack(iter(samples), tmp_path / "stream", masks)

    def test_an_input_that_fails_is_a_reject_with_its_reason(self, tmp_path: Path) -> None:
        report = pack(range(COUNT), tmp_path / "out", SMALL, function=failing, max_rejects=1)
        assert (report.records, report.rejects) == (COUNT - 1, 1)
        (found,) = map(json.loads, (tmp_path / "out" / "rejects.jsonl").read_text().splitlines())
        assert (found["line"], found["path"]) == (BAD, str(BAD))
        assert found["reason"].startswith("ValueError: no sample of <object object> (")
        assert "making.py:" in found["reason"]

    @pytest.mark.parametrize(
        ("made", "names"),
        [
            (lambda _: None, "there is no sample, but None"),
            (lambda _: iter([{}]), r"one input gives one sample.*for sample in function\(each\)"),
            (lambda _: 5, "a sample is a dict of field and value, not an object of type int"),
            (lambda _: {}, "no field"),
            (lambda _: {"x": None}, "x is None"),
            (
                lambda _: {"image": 5},
                "image is an image: give the bytes of its file.*not an object of type int",
            ),
            (lambda _: {"image": np.zeros((3, 8, 8), np.uint8)}, r"not uint8 \[3, 8, 8\]"),
            (lambda _: {"image": np.zeros((8, 8, 3), np.float32)}, r"not float32 \[8, 8, 3\]"),
            (lambda _: {"image": np.zeros((8, 8, 3), np.uint8)}, "crop-ready keeps image files.*raw.*or jpeg"),
            (lambda _: {"image": picture(1)}, "crop-ready keeps image files"),
            (lambda _: {"image": "none.jpg"}, "No such file"),
        ],
    )
    def test_what_is_no_sample_is_refused_by_name(self, tmp_path: Path, made: Callable[[int], Any], names: str) -> None:
        with pytest.raises(ListError, match=f"(?s)none of 3 .*input 0.*{names}|cannot be stored.*{names}|{names}"):
            pack(range(3), tmp_path / "out", function=made)
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize(
        ("change", "names"),
        [
            ({"extra": 1}, "it has a field extra, and samples here have image, caption"),
            ({"caption": None}, "it has no caption"),
            ({"boxes": np.zeros((2, 5), np.float32)}, r"boxes is float32 \[2, 5\]"),
            ({"label": "cat"}, "label is of type str"),
        ],
    )
    def test_a_sample_unlike_the_others_is_a_reject(self, tmp_path: Path, change: Any, names: str) -> None:
        pack(
            range(200),
            tmp_path / "out",
            SMALL,
            function=lambda number: sample(number) | (change if number == 199 else {}),
            max_rejects=1,
        )
        (found,) = map(json.loads, (tmp_path / "out" / "rejects.jsonl").read_text().splitlines())
        assert found["line"] == 199
        assert names.replace("\\", "") in found["reason"]

    def test_memory_that_runs_out_is_no_reject(self, tmp_path: Path) -> None:
        calls = iter(range(10**6))

        def function(number: int) -> dict[str, Any]:
            if next(calls) > 60:
                raise MemoryError
            return sample(number)

        with pytest.raises(ShardFailed, match=r"not enough memory for input \d+"):
            pack(range(COUNT), tmp_path / "out", SMALL, function=function)


class TestPlan:
    @pytest.mark.parametrize(
        ("inputs", "function"), [([*range(8), 9], sample), (range(9), failing), (tuple(range(9)), sample)]
    )
    def test_other_inputs_or_another_function_are_refused(self, tmp_path: Path, inputs: Any, function: Any) -> None:
        pack(list(range(9)), tmp_path / "out", SMALL, function=sample)
        with pytest.raises(OutputConflict, match="list_sha256"):
            pack(inputs, tmp_path / "out", SMALL, function=function, max_rejects="100%")

    def test_the_same_inputs_made_anew_are_the_same(self, tmp_path: Path) -> None:
        """Whatever their place in memory."""

        class Thing:
            def __init__(self, number: int) -> None:
                self.number = number

        def function(thing: Thing) -> dict[str, Any]:
            return sample(thing.number)

        pack(list(map(Thing, range(9))), tmp_path / "out", SMALL, function=function)
        assert pack(list(map(Thing, range(9))), tmp_path / "out", SMALL, function=function).complete_before


class TestArguments:
    @pytest.mark.parametrize("method", ["__len__", "__repr__"])
    def test_inputs_that_do_not_say_what_they_are(self, tmp_path: Path, method: str) -> None:
        def unknown(_: object) -> Any:
            raise RuntimeError("not yet")

        inputs = type("Lazy", (Images,), {method: unknown})(9)
        with pytest.raises(
            UsageError, match=r"the inputs do not say .*: RuntimeError: not yet \(.*test_inputs.py:\d+\)"
        ):
            pack(inputs, tmp_path / "out", SMALL)
        with pytest.raises(UsageError, match=r"the inputs do not say .*: ValueError: Exceeds the limit"):
            pack([10**5000], tmp_path / "out", SMALL, function=sample)

    def test_labels_that_are_whole_may_be_float(self, tmp_path: Path) -> None:
        pack(range(9), tmp_path / "out", PackOptions(store=VERBATIM, labels=LabelSpec("float")), function=sample)
        assert open_dataset(tmp_path / "out").targets.dtype == np.float32

    def test_classes_are_given_by_name_or_number(self, tmp_path: Path) -> None:
        (tmp_path / "classes.txt").write_text("dog\ncat\n")
        options = PackOptions(store=VERBATIM, classes=tmp_path / "classes.txt")
        given = ["cat", 0, "cow", 2, "dog"]
        samples = [{"image": image(number), "label": label} for number, label in enumerate(given)]
        report = pack(samples, tmp_path / "out", options, max_rejects=2)
        assert report.classes == ("dog", "cat")
        assert open_dataset(tmp_path / "out").targets.tolist() == [1, 0, 0]
        reasons = [json.loads(line)["reason"] for line in (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()]
        assert reasons[0] == "class 'cow' is not among the 2 class names"
        assert reasons[1].startswith("label 2 is outside the 2 class names")


class TestPixels:
    @pytest.mark.parametrize("mode", ["RGB", "L"])
    def test_pixels_are_stored_as_they_are(self, tmp_path: Path, mode: str) -> None:
        pictures = [picture(number, 20 + number, 16, mode) for number in range(6)]
        options = PackOptions(store=StoreOptions("raw", mode=mode))
        pack([(each, 0) for each in pictures], tmp_path / "pil", options)
        pack([{"image": np.asarray(each), "label": 0} for each in pictures], tmp_path / "array", options)
        files = [{"image": encoded(each, "PNG"), "label": 0} for each in pictures]
        pack(files, tmp_path / "files", options)
        assert tree(tmp_path / "pil", "plan.json", "manifest.json") == tree(
            tmp_path / "files", "plan.json", "manifest.json"
        )
        for name in ("pil", "array"):
            found = items(open_dataset(tmp_path / name))
            assert all(
                np.array_equal(np.asarray(each), np.asarray(there))
                for each, (there, _) in zip(pictures, found, strict=True)
            )


def test_inputs_and_function_travel_once_to_each_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not with each shard: they may weigh a hundred megabytes."""
    sizes: list[int] = []

    def engine(function: Any, tasks: Any, *, workers: int, on_progress: Any) -> Iterator[Any]:
        for task in tasks:
            sizes.append(len(pickle.dumps(task)))
            yield function(task, on_progress)

    monkeypatch.setattr("packtrain._packer.pack_run.run_tasks", engine)
    large = [f"{number} {'x' * 10_000}" for number in range(COUNT)]
    pack(large, tmp_path / "out", SMALL, function=_short)
    assert len(sizes) > 2
    assert max(sizes) < 10_000 * COUNT / 2


def _short(text: str) -> dict[str, Any]:
    return sample(int(text.split()[0]))
