"""Every code block of the documents runs as it stands, or says why it does not."""

from __future__ import annotations

import io
import os
import re
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from helpers.documents import DOCUMENTS, ROOT, blocks, run
from helpers.support import encoded, packed, picture, require_module
from PIL import Image

from packtrain import StoreOptions

# What is only shown.
SHOWN = ("c", "json", "text", "yaml")
IMAGES = 24
# These run in every sample of the tests.
FIRST = ("README.md", "docs/quick-start.md")
# Modules of their own run these, and look at what comes out.
ELSEWHERE = ("docs/fields.md", "docs/growing-cache.md", "docs/recipes.md")
NEEDED = ("accelerate", "lightning", "nvidia", "timm", "webdataset")
NAMES = [
    document.relative_to(ROOT).as_posix()
    for document in DOCUMENTS
    if document.relative_to(ROOT).as_posix() not in ELSEWHERE
    and any(block.runs for block in blocks(document.read_text()))
]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that the reader of any document has: photographs, lists of them, image folders, a packed dataset."""
    folder = tmp_path_factory.mktemp("scene")
    for name in ("images", "masks", "train/cat", "train/dog", "val/cat", "val/dog", "archive"):
        (folder / name).mkdir(parents=True)
    plain, table = [], ["path,class,seg,caption,boxes"]
    for number in range(IMAGES):
        name, kind = f"images/{number}.jpg", ("cat", "dog")[number % 2]
        (folder / name).write_bytes(encoded(picture(number, 160, 120)))
        Image.fromarray(np.full((120, 160), number % 7, np.uint8)).save(folder / f"masks/{number}.png")
        for part in ("train", "val") if number % 3 else ("train",):
            os.link(folder / name, folder / part / kind / f"{number}.jpg")
        plain.append(f"{name} {number % 2}")
        boxes = ('"[[10, 20, 60, 90]]"', '"[[5, 5, 50, 40], [70, 20, 120, 90]]"', "")[number % 3]
        table.append(f"{name},{kind},masks/{number}.png,{'a cat on a mat' * (number % 2)},{boxes}")
    (folder / "train.txt").write_text("\n".join(plain) + "\n")
    (folder / "train.csv").write_text("\n".join(table) + "\n")
    (folder / "images/train.txt").write_text("\n".join(plain).replace("images/", "") + "\n")
    (folder / "train.py").write_text("import sys\nfrom packtrain import open_dataset\nopen_dataset(sys.argv[1])[0]\n")
    (folder / "examples").symlink_to(ROOT / "examples")
    for name in ("shards", "compressed"):
        (folder / name).mkdir()
    for shard in range(2):
        for name in (f"shards/train-{shard:06}.tar", f"compressed/train-{shard:06}.tar.gz"):
            with tarfile.open(folder / name, "w:gz" if name.endswith("gz") else "w") as tar:
                for number in range(shard * 12, shard * 12 + 12):
                    tar.add(folder / f"images/{number}.jpg", f"{number}.jpg")
                    for kind, text in (("cls", "1"), ("txt", "a cat"), ("json", '{"class_id": 1}')):
                        member = tarfile.TarInfo(f"{number}.{kind}")
                        member.size = len(text)
                        tar.addfile(member, io.BytesIO(text.encode()))
    packed(folder / "train.txt", folder / "out", "tar", store=StoreOptions("crop-ready"))
    shutil.copytree(folder / "out", folder / "archive/imagenet")
    return folder


@pytest.fixture
def reader(scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a document's reader, a copy of the scene."""
    shutil.copytree(scene, tmp_path, symlinks=True, dirs_exist_ok=True, copy_function=os.link)
    for name in ("data", "dev/shm", "local", "nvme", "scratch", "shared"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples")
    return tmp_path


# A warning that is shown would be imported, with all of Lightning, by the process that collects results.
@pytest.mark.filterwarnings("ignore:::lightning")
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in FIRST else pytest.mark.complete) for n in NAMES])
def test_the_code_of_a_document_runs(name: str, reader: Path, request: pytest.FixtureRequest) -> None:
    document = ROOT / name
    text = "\n".join(block.text for block in blocks(document.read_text()) if block.runs)
    # First: Lightning and timm import it.
    if re.search(r"^(?:import|from) (?:torchvision|lightning|timm)\b", text, re.MULTILINE):
        request.getfixturevalue("torchvision")
    for module in NEEDED:
        if re.search(rf"^(?:import|from) {module}\b", text, re.MULTILINE):
            require_module(module)
    for target in re.findall(r"^packtrain pack \S+ ([\w/-]+)", text, re.MULTILINE):
        shutil.rmtree(reader / target, ignore_errors=True)  # a document that packs it begins without it
    if "s3://bucket" not in text:
        run(document, reader)
        return
    require_module("obstore")
    server = request.getfixturevalue("moto_server")
    bucket = server.fresh()
    dataset = () if "packtrain pack" in text else ("archive/imagenet",)
    for path in (path for name in ("images", "shards", *dataset) for path in (reader / name).rglob("*")):
        if path.is_file():
            key = path.relative_to(reader).as_posix().removeprefix("archive/")
            server.put(f"{server.key(bucket)}/{key}", path.read_bytes())
    with server.in_environment():
        run(document, reader, bucket)


def test_every_block_says_what_it_is() -> None:
    unmarked = [
        f"{document.relative_to(ROOT)}:{block.line} is {block.language or 'nothing'}"
        for document in DOCUMENTS
        for block in blocks(document.read_text())
        if block.language not in ("python", "sh", *SHOWN) and not block.language.startswith("{")
    ]
    assert not unmarked


def test_a_reason_belongs_to_the_block_behind_it() -> None:
    text = "<!-- not run: no GPU -->\n```python\na\n```\n\n```python\nb\n```\n\n<!-- not run: x -->\n\n```sh\nc\n```\n"
    assert [(block.line, block.reason, block.runs) for block in blocks(text)] == [
        (3, "no GPU", False),
        (7, None, True),
        (13, "x", False),
    ]
