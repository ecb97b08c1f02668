"""Laws of datasets: ImageFolder's contract, transforms, subset and concat, errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.support import encoded, image_set, packed, picture, sources, with_classes

from packtrain import PackedDataset, concat, open_dataset
from packtrain._core.options import LabelSpec
from packtrain.errors import NotADataset, PacktrainError, UsageError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image folder of three classes."""
    folder = tmp_path_factory.mktemp("folder") / "photos"
    for number in range(9):
        path = folder / ["cat", "Dog", "eel 7"][number % 3] / f"{number}.{'png' if number % 2 else 'jpg'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = ["RGB", "L", "P", "RGBA"][number % 4] if number % 2 else ["RGB", "L"][number // 2 % 2]
        path.write_bytes(encoded(picture(number, 40 + number, 60 - number, mode), "PNG" if number % 2 else "JPEG"))
    return folder


@pytest.fixture(scope="module")
def packed_folder(folder: Path) -> Path:
    return packed(folder, folder.parent / "packed", "hdf5")


class TestImageFolder:
    """torchvision.datasets.ImageFolder over the same folder is the oracle."""

    def test_the_same_classes_targets_and_pictures(self, folder: Path, packed_folder: Path, torchvision: Any) -> None:
        theirs, ours = torchvision.datasets.ImageFolder(folder), open_dataset(packed_folder)
        assert len(ours) == len(theirs)
        assert list(ours.classes or ()) == theirs.classes
        assert ours.class_to_idx == theirs.class_to_idx == concat([ours.subset([0]), ours]).class_to_idx
        assert ours.targets.tolist() == theirs.targets
        assert [str(folder / ours.filename(row)) for row in range(len(ours))] == [path for path, _ in theirs.samples]
        for row in range(len(ours)):
            (our_image, our_label), (their_image, their_label) = ours[row], theirs[row]
            assert (our_label, our_image.size, our_image.mode) == (their_label, their_image.size, their_image.mode)
            assert our_image.tobytes() == their_image.tobytes()

    def test_torchvisions_transforms_work_unchanged(self, folder: Path, packed_folder: Path, torchvision: Any) -> None:
        t = torchvision.transforms
        compose = t.Compose([t.Resize(32), t.CenterCrop(24), t.ToTensor(), t.Normalize([0.5] * 3, [0.25] * 3)])
        theirs = torchvision.datasets.ImageFolder(folder, compose, float)
        ours = open_dataset(packed_folder, compose, float)
        for row in range(len(ours)):
            assert ours[row][0].equal(theirs[row][0])
            assert (type(ours[row][1]), ours[row][1]) == (float, theirs[row][1])


class TestTransforms:
    def test_items_go_through_them_and_records_do_not(self, images: Path, tmp_path: Path) -> None:
        seen: list[Any] = []

        def transform(image: Any) -> str:
            seen.append(image)
            return f"{image.mode} {image.width}"

        opened = open_dataset(packed(images, tmp_path / "out", "lmdb"), transform, lambda label: label + 100)
        assert opened[2] == ("RGB 46", 102)
        assert concat([opened, opened.subset([5, 2])])[-1] == ("RGB 46", 102)
        assert len(seen) == 2
        assert opened.image(2).width == 46
        assert opened.label(2) == 2
        assert opened.record(2) == sources(images)[2].data
        assert len(seen) == 2


class TestLabels:
    def test_a_vector_is_a_copy_and_targets_cannot_be_written_to(self, images: Path, tmp_path: Path) -> None:
        (tmp_path / "train.txt").write_text(images.read_text().replace(".jpg ", ".jpg 7 "))
        out = packed(tmp_path / "train.txt", tmp_path / "out", "tar", labels=LabelSpec("int", 2), root=images.parent)
        opened: Any = open_dataset(out)
        opened.label(0)[:] = 99
        assert opened.label(0).tolist() == opened.targets[0].tolist() == [7, 0]
        with pytest.raises(ValueError, match="read-only"):
            opened.targets[0] = 1

    def test_without_labels_the_label_is_minus_one_and_there_are_no_targets(self, images: Path, tmp_path: Path) -> None:
        (tmp_path / "train.txt").write_text(f"{images.parent}/image 0.jpg\n")
        out = packed(tmp_path / "train.txt", tmp_path / "out", "tar", labels=LabelSpec("none"))
        opened = open_dataset(out)
        assert opened.label(0) == -1
        with pytest.raises(UsageError, match="has no labels"):
            _ = opened.targets


def opened(out: Path, names: str, **options: Any) -> PackedDataset:
    return open_dataset(with_classes(out, names, **options))


class TestMistakes:
    def test_concat_of_nothing(self) -> None:
        with pytest.raises(UsageError, match="at least one"):
            concat([])

    def test_concat_of_labels_that_mean_different_classes(self, tmp_path: Path) -> None:
        one, other = (opened(tmp_path / name, names) for name, names in (("a", "abc"), ("b", "abd")))
        expected = (
            f"{tmp_path}/a and {tmp_path}/b number their classes differently: label 2 is 'c' in {tmp_path}/a, but "
            f"'d' in {tmp_path}/b: pack both with `--classes classes.txt`, a file of all class names, one per line in "
            "label order"
        )
        with pytest.raises(UsageError, match=f"^{re.escape(expected)}$"):
            concat([one, other])
        with pytest.raises(UsageError, match=r"label 2 is 'c' in .*a, but 'd' in .*b: "):
            concat([opened(tmp_path / "shorter", "ab"), concat([one, one.subset([0])]), other])

    def test_concat_of_a_dataset_that_lacks_the_last_classes(self, tmp_path: Path) -> None:
        both = concat([opened(tmp_path / name, names) for name, names in (("a", "ab"), ("b", "abc"))])
        assert both.classes == ("a", "b", "c")
        assert [(both.classes or ())[label] for label in both.targets] == ["a", "b", "a", "b", "c"]

    @pytest.mark.parametrize("labels", ["float", "int*2", "none"])
    def test_concat_of_labels_of_different_types(self, tmp_path: Path, labels: str) -> None:
        listing = image_set(tmp_path / "images", 3)
        paths = [line.rpartition(" ")[0] for line in listing.read_text().splitlines()]
        spec = LabelSpec.parse(labels)
        listing.write_text("".join(f"{path}{' 1' * spec.fields}\n" for path in paths))
        packed(listing, tmp_path / "other", "tar", labels=spec)
        one, other = opened(tmp_path / "a", "ab", named=False), open_dataset(tmp_path / "other")
        with pytest.raises(UsageError, match=rf"/a has labels of type int, but .*/other of type {re.escape(labels)}: "):
            concat([one, other])
        assert len(concat([other, other])) == 2 * len(other)
        assert len(concat([open_dataset(each.store.path, fields=("image",)) for each in (one, other)])) == 2 + len(
            other
        )
        other.target_transform = one.target_transform = lambda label: 0
        assert concat([one, other])[2][1] == 0

    def test_concat_of_datasets_of_which_only_one_has_names(self, tmp_path: Path) -> None:
        named, bare = opened(tmp_path / "a", "ab"), opened(tmp_path / "b", "ab", named=False)
        for both in ([named, bare], [bare, named]):
            with pytest.raises(UsageError, match=r"/a has class names, but .*/b has none, .*pack .*/b with `--c"):
                concat(both)
        assert concat([bare, bare]).classes is None

    @pytest.mark.parametrize(
        ("prepare", "error", "message"),
        [
            (lambda folder: None, NotADataset, "there is no dataset .*data: no such folder"),
            (lambda folder: folder.mkdir(), NotADataset, r"has no manifest\.json: not a dataset"),
            (lambda folder: folder.write_bytes(b"x"), NotADataset, "data is a file, but a dataset is a folder$"),
            (
                lambda folder: (folder.mkdir(), (folder / "plan.json").write_bytes(b"{}")),
                NotADataset,
                "packing did not finish. Run the same pack command again",
            ),
        ],
        ids=["missing", "empty", "a file", "unfinished"],
    )
    def test_what_is_no_dataset(
        self, tmp_path: Path, prepare: Callable[[Path], object], error: type[PacktrainError], message: str
    ) -> None:
        prepare(tmp_path / "data")
        with pytest.raises(error, match=message):
            open_dataset(tmp_path / "data")

    def test_a_row_says_where_it_is(self, images: Path, tmp_path: Path) -> None:
        opened = open_dataset(packed(images, tmp_path / "out", "tar"), io="pread", decoder="pillow")
        words = "12 rows, tar, verbatim, io='pread', decoder='pillow', transform=None"
        assert repr(opened) == f"PackedDataset({str(tmp_path / 'out')!r}, {words})"
        assert opened.store.describe(4) == "row 4 (line 4, 'image 4.jpg', in train-000000.tar)"


def test_numpys_and_torchs_integers_are_rows(packed_folder: Path) -> None:
    import torch

    opened = open_dataset(packed_folder)
    for row in (np.int64(4), np.int32(-5), torch.tensor(4)):
        for dataset in (opened, opened.subset(range(9)), concat([opened])):
            assert dataset.record(row) == opened.record(4)  # type: ignore[arg-type]
            assert dataset[row][1] == opened[4][1]  # type: ignore[index]
            assert dataset.filename(row) == opened.filename(4)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_booleans_are_a_mask_whatever_holds_them(images: Path, tmp_path: Path, kind: Any) -> None:
    opened = open_dataset(packed(images, tmp_path / "out", "tar"))
    chosen = opened.subset(kind([row in (1, 4) for row in range(12)]))
    assert [chosen.line(row) for row in range(len(chosen))] == [1, 4]


@pytest.mark.parametrize("rows", [[1.5], ["1"], np.array([0.0])], ids=repr)
def test_rows_that_are_no_whole_numbers_are_refused(images: Path, tmp_path: Path, rows: Any) -> None:
    opened = open_dataset(packed(images, tmp_path / "out", "tar"))
    with pytest.raises(UsageError, match="expected whole numbers"):
        opened.subset(rows)
    assert len(opened.subset([])) == len(opened.subset(iter(()))) == 0
