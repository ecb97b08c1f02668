"""Laws of image folders: nothing in them is lost, and nothing is listed without end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from helpers.packing import entries
from helpers.support import encoded, picture, soon, tree

from packtrain import PackOptions, pack
from packtrain._core.manifest import Manifest
from packtrain._core.options import LabelSpec
from packtrain._packer.lists.reader import read_list
from packtrain._packer.rejects import read_rejects
from packtrain.errors import ListError, OutputConflict, TooManyRejects, UsageError


def listed(folder: Path, **options: Any) -> list[tuple[str, Any]]:
    return [(entry.path, entry.label) for entry in entries(read_list(folder, LabelSpec(), **options))]


def fill(folder: Path, *names: str) -> Path:
    """Writes files of these names, each of them an image."""
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(encoded(picture(number)))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An image folder with what such folders have in them."""
    names = ["b.jpg", "B.JPEG", "a.png", "deep/er/c.webp", "deep-er/c.webp", "notes.txt"]
    others = ("Zebra/1 2.jpg", "ant/x.jpg.tmp", "ant/x.tif", "loose.jpg", ".hidden/h.bmp")
    folder = fill(tmp_path / "my photos", *(f"dog/{name}" for name in names), *others)
    (folder / "linked").symlink_to(folder / "ant", target_is_directory=True)
    return folder


def test_it_is_what_torchvision_finds(folder: Path, torchvision: Any) -> None:
    theirs = torchvision.datasets.ImageFolder(folder)
    images = read_list(folder, LabelSpec())
    assert list(images.classes or ()) == theirs.classes == [".hidden", "Zebra", "ant", "dog", "linked"]
    assert [(images.source.resolve(entry.path), entry.label) for entry in entries(images)] == theirs.samples
    assert len(images) == 9 and images.name == "my-photos"


def test_without_labels_all_images_below_it_are_packed(folder: Path) -> None:
    images = read_list(folder, LabelSpec("none"))
    assert images.classes is None
    assert {(entry.path, entry.label) for entry in entries(images)} == {
        (path, None) for path in ("loose.jpg", *(path for path, _ in listed(folder)))
    }


NOWHERE = r"eel is a link that leads nowhere \(No such file or directory\)"


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        ("", {}, r"has no class folders\. Name a folder like class/name\.jpg, or a list"),
        ("a.jpg", {}, "no class folders.*class/name.jpg.*or .*--labels none"),
        ("cat/", {}, r"has no images in class folders \(class/name\.jpg\)"),
        ("dog/1.jpg cat/", {}, r"class folders without images: cat\. Remove them, .*--allow-empty"),
        ("eel/1.jpg catt/2.jpg", {"classes": ("cat", "eel")}, r"catt is not among the 2 class.*mean 'cat'\?$"),
        ("eel/1.jpg", {"classes": ("eel", "cat", "eel")}, "eel: the file of --classes has this name more than once"),
        ("dog/1.jpg", {"labels": LabelSpec("int", 2)}, "is a folder"),
        ("dog/1.jpg", {"root": Path()}, "is a folder"),
        ("dog/1.jpg eel@", {}, NOWHERE),
        ("dog/1.jpg dog/eel@", {}, NOWHERE),
        ("dog/deep/1.jpg dog/deep/eel@", {}, NOWHERE),
    ],
)
def test_a_folder_whose_images_are_not_certain_is_refused_with_what_to_do(
    tmp_path: Path, names: str, options: dict[str, Any], message: str
) -> None:
    """A slash at the end stands for an empty folder, and @ for a link that leads nowhere."""
    fill(tmp_path, *(name for name in names.split() if name[-1] not in "/@"))
    for name in names.split():
        if name.endswith("/"):
            (tmp_path / name).mkdir()
        elif name.endswith("@"):
            (tmp_path / name.removesuffix("@")).symlink_to("/mnt/gone/eel")
    with pytest.raises((ListError, UsageError), match=message):
        read_list(tmp_path, **{"labels": LabelSpec(), **options})


def test_an_empty_class_folder_may_be_allowed_as_in_torchvision(folder: Path, torchvision: Any) -> None:
    (folder / "empty").mkdir()
    (folder / "empty" / "readme").touch()
    theirs = torchvision.datasets.ImageFolder(folder, allow_empty=True)
    images = read_list(folder, LabelSpec(), allow_empty=True)
    assert list(images.classes or ()) == theirs.classes
    assert [entry.label for entry in entries(images)] == theirs.targets


def test_class_names_number_folders_so_that_trees_that_lack_classes_are_numbered_alike(tmp_path: Path) -> None:
    names = ("cat", "dog", "eel")
    images = read_list(fill(tmp_path, "eel/1.jpg", "cat/2.jpg"), LabelSpec(), classes=names)
    assert images.classes == names
    assert [(entry.path, entry.label) for entry in entries(images)] == [("cat/2.jpg", 0), ("eel/1.jpg", 2)]


class TestWhatCannotBeRead:
    def test_a_folder_that_the_system_does_not_read_is_named(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scan = os.scandir

        def fail(path: str) -> Any:
            if path.endswith("deep"):
                raise PermissionError(13, "Permission denied", path)
            return scan(path)

        monkeypatch.setattr(os, "scandir", fail)
        with pytest.raises(ListError, match=r"cannot read the folder .*dog/deep: Permission denied"):
            read_list(folder, LabelSpec())

    def test_an_image_that_nobody_reads_is_a_reject_and_not_absent(self, tmp_path: Path) -> None:
        photos = fill(tmp_path / "photos", "dog/1.jpg")
        (photos / "dog" / "eel.jpg").symlink_to("/mnt/gone/eel.jpg")
        (photos / "dog" / "loop.jpg").symlink_to("loop.jpg")
        names = [f"2{suffix}" for suffix in (".jpg", ".gif", ".heic", ".AVIF", ".jfif")]
        for name in names:
            (photos / "dog" / name).write_bytes(b"\0\0\0\x18ftypheic" * 9)
        with pytest.raises(TooManyRejects, match="7 of 8 lines refused"):
            pack(photos, tmp_path / "none", max_rejects="6")
        pack(photos, tmp_path / "out", max_rejects="7")
        rejects = read_rejects(tmp_path / "out", Manifest.load(tmp_path / "out"))
        assert {reject.path for reject in rejects} == {f"dog/{name}" for name in (*names, "eel.jpg", "loop.jpg")}


LOOPS: dict[str, dict[str, str]] = {
    "to itself": {"dog/all": "."},
    "to its parent": {"dog/deep/all": ".."},
    "to the top": {"dog/all": ".."},
    "a class that is the top": {"all": "."},
    "to each other": {"dog/cats": "../cat", "cat/dogs": "../dog"},
}


class TestLinks:
    @pytest.mark.parametrize("case", LOOPS)
    def test_a_loop_is_an_error(self, tmp_path: Path, case: str) -> None:
        photos = fill(tmp_path / "photos", "dog/1.jpg", "dog/deep/2.jpg", "cat/3.jpg")
        for link, target in LOOPS[case].items():
            (photos / link).symlink_to(target)
        with soon(), pytest.raises(ListError, match="leads back to a folder that it is in, so its images have no end"):
            read_list(photos, LabelSpec())

    def test_a_folder_in_two_places_is_listed_twice(self, tmp_path: Path, torchvision: Any) -> None:
        photos = fill(tmp_path / "photos", "dog/1.jpg", "cat/2.jpg")
        (photos / "cat" / "dogs").symlink_to("../dog")
        (photos / "cat" / "again").symlink_to("../dog")
        found = listed(photos)
        assert found == [("cat/2.jpg", 0), ("cat/again/1.jpg", 0), ("cat/dogs/1.jpg", 0), ("dog/1.jpg", 1)]
        assert [str(photos / path) for path, _ in found] == [
            path for path, _ in torchvision.datasets.ImageFolder(photos).samples
        ]


@pytest.mark.parametrize("name", ["a\nb.jpg", "a 1.jpg", "caf\udce9.jpg", "\x1b[31m.jpg", ' ",;.jpg'])
def test_any_file_name_is_listed(tmp_path: Path, name: str) -> None:
    photos = fill(tmp_path / "photos", f"dog {name}/{name}", "eel/2.jpg")
    images = read_list(photos, LabelSpec())
    assert [(entry.path, entry.label) for entry in entries(images)] == [(f"dog {name}/{name}", 0), ("eel/2.jpg", 1)]
    assert images.classes == (f"dog {name}", "eel")


class TestOutputInside:
    """What is packed into may lie in the image folder: it is left out of what is packed."""

    @pytest.mark.parametrize(("place", "labels"), [("dog/out", "int"), ("out", "none")])
    def test_the_same_command_continues(self, tmp_path: Path, place: str, labels: str) -> None:
        photos = fill(tmp_path / "photos", "dog/1.jpg", "eel/2.jpg", "eel/3.jpg")
        options = PackOptions(labels=LabelSpec.parse(labels), shard_size=1)
        pack(photos, tmp_path / "elsewhere", options)
        assert pack(photos, photos / place, options).packed == 3
        before = tree(photos / place)
        assert before == tree(tmp_path / "elsewhere")
        (photos / place / "photos-000001.tar").unlink()
        assert pack(photos, photos / place, options).packed == 1
        assert tree(photos / place) == before

    def test_but_not_the_image_folder_itself(self, tmp_path: Path) -> None:
        photos = fill(tmp_path / "photos", "dog/1.jpg")
        with pytest.raises(OutputConflict, match=r"photos is not empty \(dog\), and has no plan\.json"):
            pack(photos, photos)
