"""Laws of lists as people have them: each becomes a dataset by typing what the messages say, one after the other."""

from __future__ import annotations

import gzip
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from helpers.support import encoded, picture, tool

from packtrain import open_dataset

from .conftest import Run

PATHS = ("i/0.jpg", "i/1.PNG", "i/x/a b.jpg", "i/2.jpeg")
LABELS = (2, 0, 1, 0)
NAMES = ("eel", "cat", "dog", "cat")
LONG = ("great, white shark", "African elephant", "cat", "African elephant")


class Case(NamedTuple):
    """A list, and what it means.

    Attributes:
        form: How a line is written, with `path`, `label`, `name`, `long` and `n`; or the whole text.
        labels: The labels.
        header: The first line.
        file: Name of the list.
        message: What the first message says, beside what to type.
        paths: The paths of the dataset, if these are not `PATHS`.
    """

    form: str | bytes
    labels: tuple[Any, ...] | None = LABELS
    header: str = ""
    file: str = "train.txt"
    message: str = ""
    paths: tuple[str, ...] = PATHS

    @property
    def text(self) -> bytes:
        """The list."""
        if isinstance(self.form, bytes):
            return self.form
        rows = zip(PATHS, LABELS, NAMES, LONG, range(4), strict=True)
        lines = [
            self.form.format(path=path, label=label, name=name, long=long, n=n) for path, label, name, long, n in rows
        ]
        return (self.header + "".join(lines)).encode()


BY_NAME = tuple(sorted(set(NAMES)).index(name) for name in NAMES)
BY_LONG = tuple(sorted(set(LONG)).index(name) for name in LONG)
PLAIN = Case("{path} {label}\n").text
FIRST = "begins with the label, but the path has to come first"
CASES: dict[str, Case] = {
    "the label first": Case("{label} {path}\n", message=FIRST),
    "a name first": Case("{name} {path}\n", BY_NAME, message=FIRST),
    "the label first, and tabs": Case("{label}\t{path}\n", message="Line 0 has 2 columns, with the path in column 2"),
    "the label first, and commas": Case('{label},"{path}"\r\n', file="train.csv"),
    "the label first, CRLF, and a fraction": Case("{label}.5 {path}\r\n", tuple(label + 0.5 for label in LABELS)),
    "the label first, and a header": Case("{label},{path}\n", header="label,path\n"),
    "MXNet's": Case("{n}\t{label}.0\t{path}\n", file="train.lst"),
    "MXNet's, with blanks": Case("{n} {label} {path}\n", message=FIRST),
    "a number first": Case("{n} {path} {label}\n", message="Line 0 has a number before the path"),
    "names": Case("{path} {name}\n", BY_NAME, message="The lines look like --labels class"),
    "names with blanks": Case("{path} {long}\n", BY_LONG, message="looks like the name of a class with blanks in it"),
    "names with commas, and quotes": Case('{path},"{long}"\n', BY_LONG, message="The lines look like --labels class"),
    "a name that ends in a number": Case("{path} class, 0{label}\n", message="looks like the name of a class"),
    "numbers and a name": Case(b"i/0.jpg 2\ni/1.PNG 0\ni/2.jpeg cat\ni/0.jpg cat\n", (1, 0, 2, 2), paths=()),
    "pandas'": Case("{n},{path},{name}\n", BY_NAME, header=",path,label\n", file="train.csv"),
    "Kaggle's": Case("i/{n},{name}\n", BY_NAME, header="id,breed\n", file="train.csv", paths=()),
    "ids without a header": Case("i/{n} {label}\n", message="The paths lack a suffix: i/0.jpg is there", paths=()),
    "ids in another folder": Case(
        "{n},{label}\n", header="id,label\n", file="train.csv", paths=(), message="say which to pack"
    ),
    "three columns and a header": Case("{path},{label},train\n", header="path,label,split\n", file="train.csv"),
    "three columns": Case("{path};{label};train\n", file="train.csv"),
    "three columns and blanks": Case("{path} {label} train\n", message="Behind the path, line 0 has 2 columns"),
    "values in a cell": Case(
        '{path},"{label} {n}"\n', ((2, 0), (0, 1), (1, 2), (0, 3)), header="path,labels\n", file="train.csv"
    ),
    "a vector": Case("{path},{label},{n}\n", ((2, 0), (0, 1), (1, 2), (0, 3)), file="train.csv"),
    "no label": Case("{path}\n", None, message="The lines look like --labels none"),
    "captions": Case("{path},a dog runs over the hill of {name}\n", None, file="train.csv"),
    "images and masks in a table": Case(b"m/0.png,m/0.png\n", None, file="a.csv", paths=("m/0.png",)),
    "colons": Case("{path}: {label}\n", message="are separated by ':', not by blanks"),
    "bars": Case("{path}|{name}\n", BY_NAME, message="are separated by '|', not by blanks"),
    "backslashes": Case(PLAIN.replace(b"/", b"\\"), message="The paths have backslashes"),
    "backslashes and a drive": Case(
        b"".join(b"C:\\data\\%b" % line for line in PLAIN.replace(b"/", b"\\").splitlines(True))
    ),
    "backslashes in a table": Case("i\\{n}.jpg,{label}\n", header="id,label\n", file="train.csv", paths=()),
    "paths of another machine": Case(
        "/data/{path} {label}\n", message="The paths begin with /data/, but i/0.jpg is in ROOT"
    ),
    "another root": Case("x/a b.jpg {label}\n", message="x/a b.jpg is in i.", paths=()),
    "UTF-16": Case(PLAIN.decode().encode("utf-16"), message="is encoded in UTF-16"),
    "gzip": Case(gzip.compress(PLAIN), file="train.txt.gz", message="is compressed"),
    "JSON lines": Case('{{"path": "{path}", "label": {label}}}\n'),
    "JSON": Case(b'[{"path": "i/0.jpg", "label": 2},\n{"path": "i/1.PNG", "label": 0}]', (2, 0), paths=PATHS[:2]),
    "JSON under a key": Case(b'{"my data": [{"path": "i/0.jpg", "label": 2}]}', (2,), file="a.json", paths=PATHS[:1]),
    "JSON of many lines": Case(
        b'{\n"path": "i/0.jpg",\n"label": 2}\n{"path": "i/1.PNG",\n"label": 0}', (2, 0), file="a.json", paths=PATHS[:2]
    ),
    "a new name of a class for a table": Case(
        "{path},{name}\n", BY_NAME, header="photo,kind\n", file="train.csv", message="say which to pack"
    ),
}


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("there") / "my images"
    for number, path in enumerate((*PATHS, "i/1.jpg", "i/2.jpg", "i/3.jpg", "i/caf\xe9.jpg", "m/0.png")):
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        image = picture(number)
        file.write_bytes(encoded(image.convert("L"), "PNG") if path.startswith("m") else encoded(image))
    return folder


@pytest.fixture
def folder(there: Path, tmp_path: Path) -> Path:
    return shutil.copytree(there, tmp_path / there.name)


def next_command(message: str, command: list[str], folder: Path) -> list[str]:
    """Does what a message says, and returns the next command; `OUT` stands for the dataset."""
    if found := re.search(r"(?:Type: |for example: )(.*)", message):
        rewrite, _, words = found[1].rpartition("packtrain ")
        if not words.startswith("pack "):
            rewrite, _, name = found[1].removesuffix(" in its place").rpartition(", and pack ")
            words = shlex.join([command[0], *shlex.split(name), *command[2:]])
        if rewrite:
            if rewrite.startswith("jq "):
                tool("jq", "jq")
            subprocess.run(["bash", "-e", "-c", rewrite.removesuffix("&& ")], cwd=folder, check=True)
        return shlex.split(words)
    found = re.search(r"Give (--.*)", message)
    assert found, message
    return [*command, *shlex.split(found[1])]


@pytest.mark.parametrize("name", CASES)
def test_typing_what_the_messages_say_packs_the_list(
    name: str, run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    case, out = CASES[name], folder / "out"
    (folder / case.file).write_bytes(case.text.replace(b"ROOT", bytes(folder)))
    command, messages = ["pack", case.file, "OUT"], []
    while (outcome := run(*(str(out) if word == "OUT" else word for word in command))).code:
        messages.append(outcome.err)
        assert len(messages) <= 4, messages
        command = next_command(outcome.err.removesuffix("\n"), command, folder)
    if case.message:
        assert case.message.replace("ROOT", str(folder)) in messages[0]
    opened = open_dataset(out)
    assert (None if case.labels is None else [pytest.approx(label) for label in case.labels]) == (
        None if case.labels is None else opened.targets.tolist()
    )
    for row, path in enumerate(case.paths):
        assert opened.filename(row).removeprefix(f"{folder}/") == path
