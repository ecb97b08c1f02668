"""Laws of reading a list of images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtrain._core.options import LabelSpec
from packtrain._packer.listing import ImageList, ListedImage, read_list
from packtrain.errors import ListError, UsageError

LISTS: dict[str, tuple[bytes, list[ListedImage]]] = {
    "path and label": (b"a.jpg 1\n", [ListedImage(0, "a.jpg", 1)]),
    "spaces in the path": (b"a  b c.jpg 1\n", [ListedImage(0, "a  b c.jpg", 1)]),
    "a path that begins with a space": (b" a.jpg 1\n", [ListedImage(0, " a.jpg", 1)]),
    "a path that ends in a number": (b"n01 2 3\n", [ListedImage(0, "n01 2", 3)]),
    "tabs": (b"a\tb.jpg\t1\n", [ListedImage(0, "a\tb.jpg", 1)]),
    "several blanks around the label": (b"a.jpg \t  1  \n", [ListedImage(0, "a.jpg", 1)]),
    "a byte order mark": (b"\xef\xbb\xbfa.jpg 1\n", [ListedImage(0, "a.jpg", 1)]),
    "CRLF": (b"a.jpg 1\r\nb.jpg 2\r\n", [ListedImage(0, "a.jpg", 1), ListedImage(1, "b.jpg", 2)]),
    "no newline at the end": (b"a.jpg 1\nb.jpg 2", [ListedImage(0, "a.jpg", 1), ListedImage(1, "b.jpg", 2)]),
    "blank lines are counted": (
        b"\n \t\r\na.jpg 1\n\n\nb.jpg 2\n\n",
        [ListedImage(2, "a.jpg", 1), ListedImage(5, "b.jpg", 2)],
    ),
    "signs and zeros": (
        b"a -7\nb +7\nc 007\n",
        [ListedImage(0, "a", -7), ListedImage(1, "b", 7), ListedImage(2, "c", 7)],
    ),
    "64 bits": (
        b"a 9223372036854775807\nb -9223372036854775808\n",
        [ListedImage(0, "a", 2**63 - 1), ListedImage(1, "b", -(2**63))],
    ),
    "not UTF-8": (b"caf\xe9.jpg 1\n", [ListedImage(0, "caf\udce9.jpg", 1)]),
    "Unicode's own line ends": ("a\u2028b\x85c.jpg 1\n".encode(), [ListedImage(0, "a\u2028b\x85c.jpg", 1)]),
}

BAD_LINES: dict[str, tuple[str, bytes, str]] = {
    "a word as label": ("int", b"a.jpg cat", "label 'cat' is not an integer"),
    "a fraction as label": ("int", b"a.jpg 1.0", "label '1.0' is not an integer"),
    "an underscore in a label": ("int", b"a.jpg 1_0", "label '1_0' is not an integer"),
    "digits of another script": ("int", "a.jpg \u0661".encode(), "is not an integer"),
    "a label of 65 bits": ("int", b"a.jpg 9223372036854775808", "is not an integer"),
    "no label": ("int", b"a.jpg", "expected a path and 1 label value"),
    "no path": ("int", b" 1", "expected a path and 1 label value"),
    "too few values": ("int*3", b"a.jpg 1 2", "expected a path and 3 label value"),
    "not a number": ("float", b"a.jpg x", "label 'x' is not a finite number"),
    "NaN": ("float*2", b"a.jpg 1 nan", "label 'nan' is not a finite number"),
    "infinite": ("float", b"a.jpg inf", "is not a finite number"),
    "beyond float32": ("float", b"a.jpg 1e39", "is not a finite number"),
    "NUL": ("int", b"a\0.jpg 1", "NUL byte"),
    "NUL without label": ("none", b"a\0.jpg", "NUL byte"),
}


def parsed(text: bytes, labels: str = "int", classes: tuple[str, ...] | None = None) -> ImageList:
    return ImageList(text, LabelSpec.parse(labels), name="train", root=Path("/data"), classes=classes)


def entries(images: ImageList) -> list[ListedImage]:
    return list(images.entries(np.arange(len(images))))


@pytest.mark.parametrize("case", LISTS)
def test_a_line_is_a_path_and_a_label_cut_from_the_right(case: str) -> None:
    text, expected = LISTS[case]
    images = parsed(text)
    assert entries(images) == expected
    assert (images.lines, images.rejects) == (len(expected), [])


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_line_of_another_form_is_a_reject_and_the_others_stay(case: str) -> None:
    labels, line, reason = BAD_LINES[case]
    good = b"b.jpg" + b" 5" * LabelSpec.parse(labels).fields
    images = parsed(b"\n".join([good, line, good + b"\r"]), labels)
    assert [entry.line for entry in entries(images)] == [0, 2]
    (reject,) = images.rejects
    assert (reject.line, reject.path.encode("utf-8", "surrogateescape")) == (1, line)
    assert reason in reject.reason
    assert images.lines == 3


def test_repeated_lines_are_kept_and_counted() -> None:
    images = parsed(b"a 1\nb 2\na 1\na 1\n\n\nb 3\n")
    assert [entry.path for entry in entries(images)] == ["a", "b", "a", "a", "b"]
    assert images.duplicates == 2


@pytest.mark.parametrize("text", [b"", b"\n \r\n\t\n", b"\xef\xbb\xbf", b"a.jpg\nb.jpg\n"])
def test_a_list_without_a_usable_line_is_refused(text: bytes) -> None:
    with pytest.raises(ListError, match=r"train: none of \d lines can be used"):
        parsed(text)


def test_the_first_bad_line_of_a_hopeless_list_is_named() -> None:
    with pytest.raises(ListError, match="none of 2 lines can be used: line 1: expected a path and 1 label"):
        parsed(b"\na.jpg\nb.jpg\n")


WHITE = b" \t\n\r\x0b\x0c"
PATHS = st.binary(min_size=1, max_size=12).filter(
    lambda path: path[-1:].strip(WHITE) and not set(path) & {0, ord("\n")} and not path.startswith(b"\xef")
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
}


@st.composite
def written_lists(draw: st.DrawFn) -> tuple[str, bytes, list[ListedImage]]:
    """A list as some other program might write it, and what it says."""
    kind = draw(st.sampled_from(["none", "int", "float"]))
    count = 0 if kind == "none" else draw(st.integers(1, 3))
    scalar = count == 1 and draw(st.booleans())
    text, expected = draw(st.sampled_from([b"", b"\xef\xbb\xbf"])), []
    for line in range(draw(st.integers(1, 6))):
        end = draw(st.sampled_from([b"\n", b"\r\n", b" \t\n"]))
        if draw(st.booleans()) and line:
            text += draw(st.sampled_from([b"", b"  ", b"\t\r"])) + end
            continue
        path = draw(PATHS)
        values = tuple(draw(VALUES[kind]) for _ in range(count))
        blanks = draw(st.sampled_from([b" ", b"\t", b"  \t "]))
        text += blanks.join([path, *(repr(value).encode() for value in values)]) + end
        expected.append(
            ListedImage(line, path.decode("utf-8", "surrogateescape"), values[0] if scalar else values or None)
        )
    if draw(st.booleans()):
        text = text.rstrip(b"\r\n")
    return kind if scalar or not count else f"{kind}*{count}", text, expected


@given(written_lists())
def test_any_list_reads_as_what_was_written(written: tuple[str, bytes, list[ListedImage]]) -> None:
    labels, text, expected = written
    images = parsed(text, labels)
    assert entries(images) == expected
    assert images.lines == len(expected)


def test_relative_paths_start_at_the_lists_folder_or_at_root(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a b.jpg 1\n/abs/c.jpg 2\n")
    for root, start in ((None, tmp_path), (Path("/other"), Path("/other"))):
        images = read_list(tmp_path / "train.txt", LabelSpec(), root=root)
        assert [images.resolve(entry.path) for entry in entries(images)] == [f"{start}/a b.jpg", "/abs/c.jpg"]


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("train.txt", "train"),
        ("my list (2).v1.txt", "my-list-2-v1"),
        ("图.txt", "data"),
        ("-x.lst", "x"),
        (".txt", "txt"),
    ],
)
def test_shards_are_named_by_the_list_in_plain_ascii(tmp_path: Path, file: str, name: str) -> None:
    (tmp_path / file).write_text("a.jpg 1\n")
    assert read_list(tmp_path / file, LabelSpec()).name == name


def test_class_names_are_lines_and_labels_stay_within_them(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a 0\nb 1\nc 2\nd -1\n")
    (tmp_path / "classes.txt").write_bytes("\ufefftench, Tinca tinca\r\ngoldfish\u2028Carassius\r\n".encode())
    images = read_list(tmp_path / "train.txt", LabelSpec(), classes=tmp_path / "classes.txt")
    assert images.classes == ("tench, Tinca tinca", "goldfish\u2028Carassius")
    assert [entry.label for entry in entries(images)] == [0, 1]
    assert [reject.reason for reject in images.rejects] == [
        "label 2 is outside the 2 class names",
        "label -1 is outside the 2 class names",
    ]


@pytest.mark.parametrize("content", [None, b"\xff\xfe"], ids=["missing", "not UTF-8"])
def test_class_names_that_cannot_be_read_are_a_list_error(tmp_path: Path, content: bytes | None) -> None:
    (tmp_path / "train.txt").write_text("a 0\n")
    if content is not None:
        (tmp_path / "classes.txt").write_bytes(content)
    with pytest.raises(ListError, match="cannot read the list"):
        read_list(tmp_path / "train.txt", LabelSpec(), classes=tmp_path / "classes.txt")


def test_a_list_that_is_not_there_is_a_list_error(tmp_path: Path) -> None:
    with pytest.raises(ListError, match=r"cannot read the list .*train\.txt.*No such file"):
        read_list(tmp_path / "train.txt", LabelSpec())


class TestFolder:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """An image folder with what such folders have in them."""
        folder = tmp_path / "my photos"
        for name in (
            "dog/b.jpg",
            "dog/B.JPEG",
            "dog/a.png",
            "dog/deep/er/c.webp",
            "dog/notes.txt",
            "Zebra/1 2.jpg",
            "ant/x.jpg.tmp",
            "ant/x.tif",
            "empty/readme",
            "loose.jpg",
            ".hidden/h.bmp",
        ):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(b"")
        (folder / "linked").symlink_to(folder / "ant", target_is_directory=True)
        return folder

    def test_class_folders_in_the_order_of_their_names_are_the_labels(self, folder: Path) -> None:
        images = read_list(folder, LabelSpec())
        assert images.classes == (".hidden", "Zebra", "ant", "dog", "empty", "linked")
        assert [(entry.path, entry.label) for entry in entries(images)] == [
            (".hidden/h.bmp", 0),
            ("Zebra/1 2.jpg", 1),
            ("ant/x.tif", 2),
            ("dog/B.JPEG", 3),
            ("dog/a.png", 3),
            ("dog/b.jpg", 3),
            ("dog/deep/er/c.webp", 3),
            ("linked/x.tif", 5),
        ]
        assert images.name == "my-photos"
        assert images.resolve("ant/x.tif") == str(folder / "ant/x.tif")

    def test_it_is_what_torchvision_finds(self, folder: Path, torchvision: Any) -> None:
        (folder / "empty/e.jpg").write_bytes(b"")  # torchvision refuses a class without images
        theirs = torchvision.datasets.ImageFolder(folder)
        images = read_list(folder, LabelSpec())
        assert list(images.classes or ()) == theirs.classes
        assert [(images.resolve(entry.path), entry.label) for entry in entries(images)] == theirs.samples

    @pytest.mark.parametrize(
        "options", [{"labels": LabelSpec("none")}, {"root": Path()}, {"classes": Path("c")}], ids=str
    )
    def test_it_brings_its_own_labels_names_and_root(self, folder: Path, options: dict[str, Any]) -> None:
        with pytest.raises(UsageError, match="is a folder: its class folders are the labels"):
            read_list(folder, **{"labels": LabelSpec(), **options})

    def test_without_images_it_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "class").mkdir()
        with pytest.raises(ListError, match=r"has no images in class folders \(class/name.jpg\)"):
            read_list(tmp_path, LabelSpec())

    def test_a_line_break_in_a_name_is_refused(self, folder: Path) -> None:
        (folder / "ant/a\nb.jpg").write_bytes(b"")
        with pytest.raises(ListError, match="holds a line break"):
            read_list(folder, LabelSpec())


def test_a_file_of_class_names_without_any_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a.jpg 0\n")
    (tmp_path / "classes.txt").write_text("\n \n")
    with pytest.raises(ListError, match=r"classes\.txt holds no class names"):
        read_list(tmp_path / "train.txt", LabelSpec(), classes=tmp_path / "classes.txt")
