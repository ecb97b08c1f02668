"""Imports are a budget: what a fresh interpreter has loaded after each of the ways in."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest
from helpers.support import image_set, packed

TENSORS = {"torch"}
CONTAINERS = {"h5py", "lmdb", "webdataset"}
IMAGES = {"PIL"}
ARRAYS = {"numpy"}
# What packing a list does not need: nobody is to wait for it who waits for the first record.
DATASETS = {"packtrain._packer.dataset_rows", "packtrain._packer.foreign.indexer", "packtrain._readers.dataset.store"}


def loaded_after(code: str) -> set[str]:
    """The modules in a fresh interpreter after `code`, which may end with SystemExit."""
    report = "import json, sys\nprint('\\n' + json.dumps(sorted(sys.modules)))"
    indented = "\n".join(f"    {line}" for line in code.splitlines())
    script = f"try:\n{indented}\nexcept SystemExit as stop:\n    assert not stop.code, stop.code\n{report}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def command(line: str) -> str:
    module = {"packtrain": "main", "pack": "pack_cmd"}[line.split()[0]]
    return f"import sys\nsys.argv = {line.split()!r}\nfrom packtrain._cli.{module} import main\nmain()"


@pytest.mark.parametrize(
    ("code", "barred"),
    [
        ("import packtrain", TENSORS | CONTAINERS | IMAGES | ARRAYS),
        ("import packtrain._core", TENSORS | CONTAINERS | IMAGES),
        ("import packtrain._readers", TENSORS | CONTAINERS | IMAGES),
        ("import packtrain._formats", TENSORS | CONTAINERS),
        ("import packtrain._packer.pack", TENSORS | CONTAINERS | IMAGES | DATASETS),
        ("import packtrain._packer.verifier", TENSORS | CONTAINERS),
        ("import packtrain._cli", {"click", "multiprocessing"}),
        ("import packtrain._formats.writing", TENSORS | CONTAINERS),
        (command("packtrain --help"), TENSORS | CONTAINERS | IMAGES | ARRAYS),
        (command("packtrain --version"), TENSORS | CONTAINERS | IMAGES | ARRAYS),
        (command("packtrain doctor --help"), TENSORS | CONTAINERS | IMAGES | ARRAYS),
        (command("packtrain stage --help"), TENSORS | CONTAINERS | IMAGES | ARRAYS),
        (command("packtrain staged list --to /tmp"), TENSORS | CONTAINERS | IMAGES),
        ("from packtrain import stage", TENSORS | CONTAINERS | IMAGES | ARRAYS),
        (command("packtrain pack --help"), TENSORS | CONTAINERS),
        (command("pack --help"), TENSORS | CONTAINERS),
        ("from packtrain._extras.looking import looker, sheet, terminal", TENSORS | CONTAINERS | IMAGES),
        ("from packtrain import *", {"hypothesis", "packtrain._testing", "pytest"}),
    ],
)
def test_loads_only_what_it_needs(code: str, barred: Collection[str]) -> None:
    assert not loaded_after(code) & set(barred)


@pytest.mark.complete
def test_a_dataset_loads_torch() -> None:
    """The other side of the law: the name is there, and torch comes with it rather than before."""
    assert "torch" in loaded_after("from packtrain import open_dataset")


@pytest.mark.complete
@pytest.mark.parametrize("decode", [False, True])
def test_webdataset_and_torch_come_only_with_images_that_are_decoded(tmp_path: Path, decode: bool) -> None:
    """They take half a second to import, which nobody is to wait for who verifies a small dataset."""
    listing = image_set(tmp_path / "images", 1)
    dataset = packed(listing, tmp_path / "out", "tar")
    loaded = loaded_after(
        f"from packtrain import verify\nassert not verify({str(dataset)!r}, decode_images={decode}).problems"
    )
    assert loaded & {"webdataset", "torch"} == ({"webdataset", "torch"} if decode else set())


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_another_system_may_import_it_and_is_refused_when_it_is_used(
    system: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import packtrain
    from packtrain._cli.main import main

    monkeypatch.setattr(sys, "platform", system)
    assert packtrain.__version__
    with pytest.raises(packtrain.errors.MissingDependency, match=f"runs on Linux, and this is {system}"):
        packtrain.open_dataset  # noqa: B018
    monkeypatch.setattr(sys, "argv", ["packtrain", "info", "d"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 1 and f"runs on Linux, and this is {system}" in capsys.readouterr().err
