"""Laws of reading a list of images."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.packing import entries
from helpers.support import soon
from hypothesis import given
from hypothesis import strategies as st

from packtrain import Columns
from packtrain._core.options import LabelSpec
from packtrain._packer.listing import ListedSample
from packtrain._packer.lists.image_list import ImageList
from packtrain._packer.lists.reader import read_list
from packtrain.errors import ListError

EMPTY = (b"", b"\n \r\n\t\n", b"\xef\xbb\xbf", b"path label\n")
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
    "a whole number that float32 rounds": ("float", b"a.jpg 16777217", "label 16777217 is a whole number that float32"),
    "one in a vector": ("float*2", b"a.jpg 0.5 -16777217", "label -16777217 is a whole number that float32"),
    "true": ("int", b"a.jpg true", "label 'true' is not an integer: write 1 for true"),
    "a whole number with a point": ("int", b"a.jpg 1.0", "label '1.0' is not an integer: write it without a point"),
    "beyond float32": ("float", b"a.jpg 1e39", "is not a finite number"),
    "no path before a comma": ("int", b",1", "expected a path and 1 label value"),
    "NUL": ("int", b"a\0.jpg 1", "NUL byte"),
    "NUL without label": ("none", b"a\0.jpg", "NUL byte"),
}


def parsed(text: bytes, labels: str = "int", classes: tuple[str, ...] | None = None) -> ImageList:
    return ImageList(text, LabelSpec.parse(labels), name="train", root=Path("/data"), classes=classes)


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


def test_signs_zeros_and_blank_lines() -> None:
    text = b"\xef\xbb\xbf\n \t\r\n a  b\tc.jpg \t  -7  \r\n\n\nb +7\nc 007\nn01 2 3"
    assert [entry[:3] for entry in entries(parsed(text))] == [
        (2, " a  b\tc.jpg", -7),
        (5, "b", 7),
        (6, "c", 7),
        (7, "n01 2", 3),
    ]


def test_repeated_lines_are_kept_and_counted() -> None:
    images = parsed(b"a 1\nb 2\na 1\na 1\n\n\nb 3\n")
    assert [entry.path for entry in entries(images)] == ["a", "b", "a", "a", "b"]
    assert images.duplicates == 2


@pytest.mark.parametrize(
    ("text", "labels", "message"),
    [
        *((text, "int", r"train: the list is empty\. Write one image per line: its path, a") for text in EMPTY),
        (b"\na.jpg\nb.jpg\n", "int", "none of 2 lines can be used: line 1: expected a path and 1 label"),
        *(
            (separator.join([b"a.jpg", b"African elephant\n"]) * 3, "int", "line 0: label 'African elephant' is not an")
            for separator in (b"\t", b",", b";")
        ),
        (b"label,path\n1,a.jpg\n", "int", "the columns of the list are label, path, but it must have the path first"),
        (b"path,x,y,w,h\na.jpg,1,2,3,4\n", "int", r"path, x, y, w, h, .*: give --labels int\*4, or say which columns"),
    ],
)
def test_what_is_wrong_with_a_list_is_said_of_its_own_columns(text: bytes, labels: str, message: str) -> None:
    with pytest.raises(ListError, match=message):
        parsed(text, labels)


WHITE = b" \t\n\r\x0b\x0c"
# A comma or semicolon before the blank would make it the separator, as in "a.jpg, 0".
PATHS = st.binary(min_size=1, max_size=12).filter(
    lambda path: path[-1:].strip(WHITE + b",;") and not set(path) & {0, ord("\n")} and not path.startswith(b"\xef")
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
}


@st.composite
def written_lists(draw: st.DrawFn) -> tuple[str, bytes, list[ListedSample]]:
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
            ListedSample(line, path.decode("utf-8", "surrogateescape"), values[0] if scalar else values or None)
        )
    if draw(st.booleans()):
        text = text.rstrip(b"\r\n")
    return kind if scalar or not count else f"{kind}*{count}", text, expected


@given(written_lists())
def test_any_list_reads_as_what_was_written(written: tuple[str, bytes, list[ListedSample]]) -> None:
    labels, text, expected = written
    images = parsed(text, labels)
    assert entries(images) == expected
    assert images.lines == len(expected)


def test_relative_paths_start_at_the_lists_folder_or_at_root(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a b.jpg 1\n/abs/c.jpg 2\n")
    for root, start in ((None, tmp_path), (Path("/other"), Path("/other"))):
        images = read_list(tmp_path / "train.txt", LabelSpec(), root=root)
        assert [images.source.resolve(entry.path) for entry in entries(images)] == [f"{start}/a b.jpg", "/abs/c.jpg"]


@pytest.mark.parametrize(
    ("file", "name"), [("my list (2).v1.txt", "my-list-2-v1"), ("图.txt", "data"), ("-x.lst", "x"), (".txt", "txt")]
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
        "label 2 is outside the 2 class names, whose labels are 0 to 1",
        "label -1 is outside the 2 class names, whose labels are 0 to 1",
    ]
    (tmp_path / "train.txt").write_text("a.jpg goldfish\u2028Carassius\nb.jpg cow\n")
    images = read_list(tmp_path / "train.txt", LabelSpec(), classes=tmp_path / "classes.txt", by_name=True)
    assert [entry.label for entry in entries(images)] == [1]
    assert [reject.reason for reject in images.rejects] == ["class 'cow' is not among the 2 class names"]


@pytest.mark.parametrize("separator", [" ", ","])
def test_labels_that_begin_at_1_do_not_get_the_names_of_other_classes(tmp_path: Path, separator: str) -> None:
    """Otherwise, one reject for each image of the last class would be all there is to see."""

    def read(*labels: int, names: str = "a\nb\nc\n") -> int:
        lines = [f"path{separator}label", *(f"{number}.jpg{separator}{label}" for number, label in enumerate(labels))]
        columns = Columns("path", "label") if separator == "," else None
        (tmp_path / "train.txt").write_text("\n".join(lines))
        (tmp_path / "classes.txt").write_text(names)
        return len(read_list(tmp_path / "train.txt", LabelSpec(), columns=columns, classes=tmp_path / "classes.txt"))

    with pytest.raises(ListError, match="labels seem to begin at 1: there is a label 3 and no label 0, "):
        read(1, 2, 3, 1)
    with pytest.raises(ListError, match=r"none of 2 .* label 3 is outside the 3 class names"):
        read(3, 3)
    assert (read(0, 1, 2, 3), read(1, 2, 2), read(1, 2, 4), read(2, 3)) == (3, 3, 2, 1)
    assert read(1, 2, 3, 1, names="nothing\na\nb\nc\n") == 4


@pytest.mark.parametrize("line", ["golden retriever my tench.JPEG", "golden my tench.JPEG", "0 noext"])
def test_nothing_is_suggested_that_would_not_work(tmp_path: Path, line: str) -> None:
    (tmp_path / "noext").touch()
    (tmp_path / "tench.JPEG").touch()
    (tmp_path / "train.txt").write_text(f"{line}\n")
    with pytest.raises(ListError, match="A line is the path of an image, a blank, and its label, such as"):
        read_list(tmp_path / "train.txt", LabelSpec())


CLASSES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (
        lambda path: path.with_name("clases.txt").touch(),
        r"no file of class names .*; did you mean 'clases",
    ),
    "not UTF-8": (lambda path: path.write_bytes(b"\xff\xfe"), "cannot read the class names .*not encoded in UTF-8"),
    "a folder": (Path.mkdir, r"cannot read the class names .*classes\.txt: "),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "cannot read the class names .*it is a device"),
    "empty": (lambda path: path.write_text("\n \n"), r"classes\.txt holds no class names\. Write one per line"),
}


@pytest.mark.parametrize("case", CLASSES)
def test_the_file_of_class_names_is_named_if_it_cannot_be_read(tmp_path: Path, case: str) -> None:
    make, message = CLASSES[case]
    (tmp_path / "train.txt").write_text("a 0\n")
    make(tmp_path / "classes.txt")
    with pytest.raises(ListError, match=message):
        read_list(tmp_path / "train.txt", LabelSpec(), classes=tmp_path / "classes.txt")


def test_advice_does_not_forget_the_file_of_class_names(tmp_path: Path) -> None:
    """Without it, the classes would get other numbers."""
    path, names = tmp_path / "train.txt", tmp_path / "classes.txt"
    path.write_text("a.jpg cow\nb.jpg cat\n")
    names.write_text("eel\ndog\n")
    with pytest.raises(ListError, match=rf"Type: packtrain pack {path} OUT --labels class --classes FILE$"):
        read_list(path, LabelSpec(), classes=names)
    message = (
        r"class 'cow' is not among the 2 class names\. Add the names in the list to the file of --classes, or leave"
    )
    with pytest.raises(ListError, match=message):
        read_list(path, LabelSpec(), classes=names, by_name=True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("train.txt", r"there is no list or image folder .*train\.txt\. Give a file .*; did you mean 'trian\.txt'\?$"),
        ("gone/train.txt", r"there is no list or image folder .*gone.train\.txt\. Give a file"),
        ("x" * 300, "cannot read the list"),
        ("trian.txt/x", "cannot read the list"),
        ("loop/train.txt", "cannot read the list"),
        ("/dev/null", "is a device or a socket"),
        ("/dev/zero", "is a device or a socket"),
    ],
)
def test_a_list_that_cannot_be_read_is_an_error_with_what_is_there_instead(
    tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / "trian.txt").touch()
    (tmp_path / "loop").symlink_to("loop")
    with soon(), pytest.raises(ListError, match=message):
        read_list(tmp_path / name, LabelSpec())


def test_a_huge_line_is_a_line(tmp_path: Path) -> None:
    """Such as a file that is no list at all."""
    line = b"a.jpg " * 2_000_000
    with soon(), pytest.raises(ListError, match="none of 1 lines can be used") as caught:
        parsed(line)
    assert len(str(caught.value)) < 1000
    assert parsed(line + b"\nb.jpg 1\n").lines == 2


def test_a_list_that_has_no_name_starts_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.txt").write_text("a.jpg 1\n")
    with (tmp_path / "train.txt").open("rb") as file:
        images = read_list(Path(f"/dev/fd/{file.fileno()}"), LabelSpec())
    assert (images.name, images.source.resolve(entries(images)[0].path)) == ("data", f"{tmp_path}/a.jpg")


COLUMNS: dict[str, tuple[str, bytes, list[tuple[int, str, Any]]]] = {
    "commas": ("int", b"a.jpg,1\nb c.jpg, 2\n", [(0, "a.jpg", 1), (1, "b c.jpg", 2)]),
    "commas in the path": ("int", b"a,b.jpg,1\n", [(0, "a,b.jpg", 1)]),
    "a header": ("int", b"path,label\na.jpg,1\n", [(1, "a.jpg", 1)]),
    "a header in capitals": ("int", b"Image_Path,Target\r\na.jpg,1\r\n", [(1, "a.jpg", 1)]),
    "a header behind blank lines": ("int", b"\n\npath,label\na.jpg,1\n", [(3, "a.jpg", 1)]),
    "a header and blanks": ("int", b"path label\na.jpg 1\n", [(1, "a.jpg", 1)]),
    "a header and tabs": ("int", b"filename\tclass\na b.jpg\t1\n", [(1, "a b.jpg", 1)]),
    "semicolons": ("float", b"file;weight\na.jpg;0.5\n", [(1, "a.jpg", 0.5)]),
    "pandas with its index": ("int", b",path,label\n0,a.jpg,1\n1,b.jpg,2\n", [(1, "a.jpg", 1), (2, "b.jpg", 2)]),
    "quotes": ("int", b'"a,b.jpg",1\n"c.jpg","2"\n', [(0, "a,b.jpg", 1), (1, "c.jpg", 2)]),
    "quotes in quotes": ("int", b'"a ""b"".jpg",1\nc.jpg,2\n', [(0, 'a "b".jpg', 1), (1, "c.jpg", 2)]),
    "quotes and tabs": ("int", b'"a.jpg"\t"1"\n', [(0, "a.jpg", 1)]),
    "not UTF-8 in quotes": ("int", b'"caf\xe9 ""x"".jpg",1\n', [(0, 'caf\udce9 "x".jpg', 1)]),
    "a vector": ("int*3", b"path,x,y,z\na.jpg,1,2,3\n", [(1, "a.jpg", (1, 2, 3))]),
    "no labels": ("none", b"a,b 1.jpg\npath\n", [(0, "a,b 1.jpg", None), (1, "path", None)]),
    "a comma in blanks": ("int", b"x, 1.jpg 1\ny,2 3\n", [(0, "x, 1.jpg", 1), (1, "y,2", 3)]),
    "the first line is bad": ("int", b"x,3\na.jpg 1\nb.jpg 2\n", [(1, "a.jpg", 1), (2, "b.jpg", 2)]),
    "a file called path": ("int", b"path 1\nimage 2\n", [(0, "path", 1), (1, "image", 2)]),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_a_list_may_have_a_header_and_columns_as_csv_files_have(case: str) -> None:
    labels, text, expected = COLUMNS[case]
    images = parsed(text, labels)
    assert [entry[:3] for entry in entries(images)] == expected
    bad = [0] if case == "the first line is bad" else []
    assert [reject.line for reject in images.rejects] == bad
    assert images.lines == len(expected) + len(bad), "a header is no line of the list"


@given(st.lists(st.tuples(st.text("ab ,;'\"\xe9\t", min_size=1), st.integers(-5, 5)), min_size=1), st.booleans())
def test_what_the_csv_module_writes_is_read(rows: list[tuple[str, int]], header: bool) -> None:
    written = io.StringIO()
    writer = csv.writer(written, quoting=csv.QUOTE_NONNUMERIC)
    if header:
        writer.writerow(["path", "label"])
    writer.writerows([(f"{path}.jpg", label) for path, label in rows])
    images = parsed(written.getvalue().encode())
    assert [(entry.path, entry.label) for entry in entries(images)] == [(f"{path}.jpg", label) for path, label in rows]


NAMED: dict[str, tuple[bytes, tuple[str, ...], list[int]]] = {
    "commas": (b"path,class\na b.jpg,dog\nb.jpg,African elephant\n", ("African elephant", "dog"), [1, 0]),
    "tabs": (b"a.jpg\tgreat white shark\nb.jpg\tcat\n", ("cat", "great white shark"), [1, 0]),
    "a comma in the path": (b"Smith, John/a.jpg dog\n", ("dog",), [0]),
    "a blank in the path": (b"my cat.jpg,cat\n", ("cat",), [0]),
    "numbers": (b"a.jpg 10\nb.jpg 9\n", ("10", "9"), [0, 1]),
    "not UTF-8": (b"a.jpg caf\xe9\n", ("caf\udce9",), [0]),
}


@pytest.mark.parametrize("case", NAMED)
def test_names_as_labels_are_numbered_in_sorted_order(case: str) -> None:
    text, classes, labels = NAMED[case]
    images = ImageList(text, LabelSpec(), name="train", root=Path("/data"), by_name=True)
    assert images.classes == classes
    assert [entry.label for entry in entries(images)] == labels
