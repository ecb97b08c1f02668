"""Laws of image folders: nothing in them is lost, and nothing is listed without end."""

from __future__ import annotations

import os
from collections.abc import Callable
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
    folder = tmp_path / "my photos"
    fill(
        folder,
        "dog/b.jpg",
        "dog/B.JPEG",
        "dog/a.png",
        "dog/deep/er/c.webp",
        "dog/deep-er/c.webp",
        "dog/notes.txt",
        "Zebra/1 2.jpg",
        "ant/x.jpg.tmp",
        "ant/x.tif",
        "loose.jpg",
        ".hidden/h.bmp",
    )
    (folder / "linked").symlink_to(folder / "ant", target_is_directory=True)
    return folder


def test_it_is_what_torchvision_finds(folder: Path, torchvision: Any) -> None:
    theirs = torchvision.datasets.ImageFolder(folder)
    images = read_list(folder, LabelSpec())
    assert list(images.classes or ()) == theirs.classes == [".hidden", "Zebra", "ant", "dog", "linked"]
    assert [(images.source.resolve(entry.path), entry.label) for entry in entries(images)] == theirs.samples
    assert len(images) == 9 and images.name == "my-photos"


@pytest.mark.parametrize("options", [{"labels": LabelSpec("int", 2)}, {"root": Path()}], ids=str)
def test_it_brings_its_own_labels_and_root(folder: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        read_list(folder, **{"labels": LabelSpec(), **options})


def test_without_labels_all_images_below_it_are_packed(folder: Path) -> None:
    images = read_list(folder, LabelSpec("none"))
    assert images.classes is None
    assert {(entry.path, entry.label) for entry in entries(images)} == {
        (path, None) for path in ("loose.jpg", *(path for path, _ in listed(folder)))
    }


NO_CLASSES: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda folder: None, r"has no class folders\. Name a folder like class/name\.jpg, or a list"),
    "loose images": (lambda folder: fill(folder, "a.jpg"), "no class folders.*class/name.jpg.*or .*--labels none"),
    "no images": (lambda folder: (folder / "cat").mkdir(), r"has no images in class folders \(class/name\.jpg\)"),
}


@pytest.mark.parametrize("case", NO_CLASSES)
def test_a_folder_without_class_folders_is_refused_with_what_to_do(tmp_path: Path, case: str) -> None:
    make, message = NO_CLASSES[case]
    make(tmp_path)
    with pytest.raises(ListError, match=message):
        read_list(tmp_path, LabelSpec())


def test_an_empty_class_folder_is_an_error_unless_allowed_as_in_torchvision(folder: Path, torchvision: Any) -> None:
    (folder / "empty").mkdir()
    (folder / "empty" / "readme").touch()
    with pytest.raises(ListError, match=r"class folders without images: empty\. Remove them, .*--allow-empty"):
        read_list(folder, LabelSpec())
    theirs = torchvision.datasets.ImageFolder(folder, allow_empty=True)
    images = read_list(folder, LabelSpec(), allow_empty=True)
    assert list(images.classes or ()) == theirs.classes
    assert [entry.label for entry in entries(images)] == theirs.targets


class TestClassNames:
    """A file of class names numbers class folders too, so that trees that lack classes are numbered alike."""

    def classes(self, folder: Path, *names: str) -> Path:
        (folder.parent / "classes.txt").write_text("\n".join(names))
        return folder.parent / "classes.txt"

    def test_folders_have_the_numbers_of_their_names(self, tmp_path: Path) -> None:
        validation = fill(tmp_path / "val", "eel/1.jpg", "cat/2.jpg")
        names = ("cat", "dog", "eel")
        images = read_list(validation, LabelSpec(), classes=self.classes(validation, *names))
        assert images.classes == names
        assert [(entry.path, entry.label) for entry in entries(images)] == [("cat/2.jpg", 0), ("eel/1.jpg", 2)]

    def test_a_folder_that_has_no_name_there_is_an_error(self, tmp_path: Path) -> None:
        validation = fill(tmp_path / "val", "eel/1.jpg", "catt/2.jpg")
        with pytest.raises(
            ListError, match=r"class folder .*catt is not among the 2 class names\. .*; did you mean 'cat'\?$"
        ):
            read_list(validation, LabelSpec(), classes=self.classes(validation, "cat", "eel"))

    def test_a_name_that_stands_twice_fits_no_folder(self, tmp_path: Path) -> None:
        validation = fill(tmp_path / "val", "crane/1.jpg")
        with pytest.raises(ListError, match="crane: the file of --classes has this name more than once"):
            read_list(validation, LabelSpec(), classes=self.classes(validation, "crane", "eel", "crane"))


class TestWhatCannotBeRead:
    def test_a_folder_whose_path_is_too_long_to_be_read_is_named(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(folder / "dog")
        for _ in range(20):
            os.mkdir("d" * 250)
            os.chdir("d" * 250)
        (Path("lost.jpg")).touch()
        with pytest.raises(ListError, match=r"cannot read the folder .*: File name too long\. Nobody knows"):
            read_list(folder, LabelSpec())

    def test_so_is_one_that_the_system_does_not_read(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        scan = os.scandir

        def fail(path: str) -> Any:
            if path.endswith("deep"):
                raise PermissionError(13, "Permission denied", path)
            return scan(path)

        monkeypatch.setattr(os, "scandir", fail)
        with pytest.raises(ListError, match=r"cannot read the folder .*dog/deep: Permission denied"):
            read_list(folder, LabelSpec())

    @pytest.mark.parametrize("place", ["", "dog", "dog/deep/er"])
    def test_a_link_that_leads_nowhere_could_be_a_class(self, folder: Path, place: str) -> None:
        (folder / place / "eel").symlink_to("/mnt/gone/eel")
        with pytest.raises(ListError, match=r"eel is a link that leads nowhere \(No such file or directory\)"):
            read_list(folder, LabelSpec())

    @pytest.mark.parametrize("target", ["/mnt/gone/eel.jpg", "eel.jpg"])
    def test_a_link_with_the_name_of_an_image_is_a_reject(self, tmp_path: Path, target: str) -> None:
        photos = fill(tmp_path / "photos", "dog/1.jpg")
        (photos / "dog" / "eel.jpg").symlink_to(target)
        report = pack(photos, tmp_path / "out", max_rejects="1")
        assert (report.records, report.rejects) == (1, 1)

    @pytest.mark.parametrize("suffix", [".jpg", ".gif", ".heic", ".AVIF", ".jfif"])
    def test_an_image_that_pillow_does_not_read_is_a_reject_and_not_absent(self, tmp_path: Path, suffix: str) -> None:
        photos = fill(tmp_path / "photos", "dog/1.jpg")
        (photos / "dog" / f"2{suffix}").write_bytes(b"\0\0\0\x18ftypheic" * 9)
        with pytest.raises(TooManyRejects, match=f"1 of 2 lines refused.*\n.*2{suffix}"):
            pack(photos, tmp_path / "none", max_rejects="0")
        pack(photos, tmp_path / "out", max_rejects="1")
        (reject,) = read_rejects(tmp_path / "out", Manifest.load(tmp_path / "out"))
        assert (reject.line, reject.path) == (1, f"dog/2{suffix}")


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
def test_any_file_name_is_packed(tmp_path: Path, name: str) -> None:
    photos = fill(tmp_path / "photos", f"dog {name}/{name}", "eel/2.jpg")
    assert listed(photos) == [(f"dog {name}/{name}", 0), ("eel/2.jpg", 1)]
    pack(photos, tmp_path / "out", max_rejects="0")
    assert Manifest.load(tmp_path / "out").classes == (f"dog {name}", "eel")


class TestOutputInside:
    """What is packed into may lie in the image folder: it is left out of what is packed."""

    @pytest.mark.parametrize("place", ["out", "dog/out"])
    @pytest.mark.parametrize("labels", ["int", "none"])
    def test_the_same_command_continues(self, tmp_path: Path, place: str, labels: str) -> None:
        photos = fill(tmp_path / "photos", "dog/1.jpg", "eel/2.jpg", "eel/3.jpg")
        options = PackOptions(labels=LabelSpec.parse(labels), shard_size=1)
        pack(photos, tmp_path / "elsewhere", options)
        assert pack(photos, photos / place, options).packed == 3
        before = tree(photos / place)
        assert before == tree(tmp_path / "elsewhere")
        assert pack(photos, photos / place, options).complete_before
        (photos / place / "photos-000001.tar").unlink()
        assert pack(photos, photos / place, options).packed == 1
        assert tree(photos / place) == before

    def test_but_not_the_image_folder_itself(self, tmp_path: Path) -> None:
        photos = fill(tmp_path / "photos", "dog/1.jpg")
        with pytest.raises(OutputConflict, match=r"photos is not empty \(dog\), and has no plan\.json"):
            pack(photos, photos)
