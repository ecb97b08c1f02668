"""Laws of lists as people have them: each becomes a dataset by typing what the messages say, one after the other."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from helpers.support import encoded, picture

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
        words: Options of the first command.
        paths: The paths of the dataset, if these are not `PATHS`.
    """

    form: str | bytes
    labels: tuple[Any, ...] | None = LABELS
    header: str = ""
    file: str = "train.txt"
    message: str = ""
    words: str = ""
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
CASES: dict[str, Case] = {
    "Caffe's": Case("{path} {label}\n"),
    "the label first, and a header": Case("{label},{path}\n", header="label,path\n"),
    "names": Case("{path} {name}\n", BY_NAME, message="The lines look like --labels class"),
    "names with blanks, and tabs": Case("{path}\t{long}\n", BY_LONG, message="The lines look like --labels class"),
    "names with commas, and quotes": Case('{path},"{long}"\n', BY_LONG, message="The lines look like --labels class"),
    "names in a table": Case('{path},"{long}"\n', BY_LONG, header="path,label\n", file="train.csv"),
    "numbers and a name": Case(b"i/0.jpg 2\ni/1.PNG 0\ni/2.jpeg cat\ni/0.jpg cat\n", (1, 0, 2, 2), paths=()),
    "pandas'": Case("{n},{path},{name}\n", BY_NAME, header=",path,label\n", file="train.csv"),
    "three columns and a header": Case("{path},{label},train\n", header="path,label,split\n", file="train.csv"),
    "a vector": Case("{path},{label},{n}\n", ((2, 0), (0, 1), (1, 2), (0, 3)), file="train.csv"),
    "no label": Case("{path}\n", None, message="The lines look like --labels none"),
    "another root": Case("x/a b.jpg {label}\n", message="x/a b.jpg is in i: give --root i", paths=()),
    "JSON lines": Case('{{"path": "{path}", "label": {label}}}\n'),
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


def next_command(message: str, command: list[str]) -> list[str]:
    """Returns the command that a message asks for; `OUT` stands for the dataset."""
    if found := re.search(r"for example: packtrain (.*)", message):
        return shlex.split(found[1])
    found = re.search(r"look like (--labels \S+):|(?:Give|give) (--.*)", message)
    assert found, message
    return [*command, *shlex.split(found[1] or found[2])]


@pytest.mark.parametrize("name", CASES)
def test_typing_what_the_messages_say_packs_the_list(
    name: str, run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    case, out = CASES[name], folder / "out"
    (folder / case.file).write_bytes(case.text.replace(b"ROOT", bytes(folder)))
    command, messages = ["pack", case.file, "OUT", *shlex.split(case.words)], []
    while (outcome := run(*(str(out) if word == "OUT" else word for word in command))).code:
        messages.append(outcome.err)
        assert len(messages) <= 4, messages
        command = next_command(outcome.err.removesuffix("\n"), command)
    if case.message:
        assert case.message.replace("ROOT", str(folder)) in messages[0]
    opened = open_dataset(out)
    assert (None if case.labels is None else [pytest.approx(label) for label in case.labels]) == (
        None if case.labels is None else opened.targets.tolist()
    )
    for row, path in enumerate(case.paths):
        assert opened.filename(row).removeprefix(f"{folder}/") == path
