"""All contestants read the same images, and each has the environment and the functions that it names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pytest
from helpers.support import picture
from PIL import Image

from benchmarks import environments
from benchmarks.contestants import CONTESTANTS, PACKTRAIN
from benchmarks.environments import PEERS, REQUIREMENTS, Environment, Unavailable, interpreter, make, why_missing
from benchmarks.peers.common import COEFFICIENTS, PACKED, SIDE, arrays, files, originals
from benchmarks.workloads import WORKLOADS, prepare
from packtrain import open_dataset

SIZES = ((520, 260), (300, 240), (200, 640), (224, 224))
ROOT = Path(__file__).parents[2]


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    """A list of images of several sizes; one path is absolute."""
    folder = tmp_path / "images"
    folder.mkdir()
    lines = []
    for number, size in enumerate(SIZES):
        path = folder / f"{number}.jpg"
        picture(number, *size).save(path, quality=95)
        lines.append(f"{path if number == 1 else path.name} {number}\n")
    (folder / "list.txt").write_text("".join(lines))
    return folder / "list.txt"


def pixels(path: str | Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.array(image.convert("RGB"))


def test_loose_files_are_those_of_the_list_in_every_repetition(listed: Path, tmp_path: Path) -> None:
    described = prepare(WORKLOADS["jpeg"], listed, tmp_path / "data", 12)
    samples, dataset = files(tmp_path / "data"), open_dataset(tmp_path / "data" / PACKED)
    coefficients = open_dataset(tmp_path / "data" / COEFFICIENTS)
    assert described["lines"] == len(samples) == len(dataset) == len(coefficients) == 12
    assert len({path for path, _ in samples}) == 12
    for row, (path, label) in enumerate(samples):
        assert label == row % 4 == dataset.label(row)
        assert Path(path).read_bytes() == (listed.parent / f"{label}.jpg").read_bytes()
        assert (np.array(dataset.image(row)) == pixels(path)).all()
        assert (np.array(coefficients.image(row)) == pixels(path)).all()
        assert not bytes(coefficients.record(row)).startswith(b"\xff\xd8")
    assert originals(tmp_path / "data") == []


def test_shrunk_files_have_the_size_of_packtrain_s_records(listed: Path, tmp_path: Path) -> None:
    prepare(WORKLOADS["jpeg500"], listed, tmp_path / "data", 8)
    samples, dataset = files(tmp_path / "data"), open_dataset(tmp_path / "data" / PACKED)
    sizes = [(500, 250), (300, 240), (156, 500), (224, 224)] * 2
    for row, ((path, label), size) in enumerate(zip(samples, sizes, strict=True)):
        assert dataset.label(row) == label
        with Image.open(path) as image:
            assert image.size == dataset.image(row).size == size
        difference = np.abs(np.array(dataset.image(row), np.int16) - pixels(path))
        assert difference.mean() < 2
    whole = originals(tmp_path / "data")
    assert [label for _, label in whole] == [label for _, label in samples]
    assert [Path(path).name for path, _ in whole] == [f"{label}.jpg" for _, label in samples]


@pytest.mark.parametrize("name", ["raw256-rrc", "raw-crop", "raw-square"])
def test_raw_pixels_are_packtrain_s(listed: Path, tmp_path: Path, name: str) -> None:
    described = prepare(WORKLOADS[name], listed, tmp_path / "data", 8)
    samples, dataset = arrays(tmp_path / "data"), open_dataset(tmp_path / "data" / PACKED)
    # One image is too narrow to take a crop from.
    assert described["used"] == len(samples) == len(dataset) == (8 if name == "raw256-rrc" else 6)
    for row, (image, label) in enumerate(samples):
        assert label == dataset.label(row)
        assert (image == np.array(dataset.image(row))).all()
        assert name == "raw256-rrc" or min(image.shape[:2]) >= SIDE


def functions(module: str) -> set[str]:
    """The functions that a peer's module defines; most of the modules cannot be imported here."""
    tree = ast.parse((ROOT / "benchmarks/peers" / f"{module}.py").read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_contestant_has_the_stream_of_its_workload(name: str) -> None:
    workload = WORKLOADS[name]
    assert workload.contestants[0] == PACKTRAIN
    assert {name for pair in workload.least for name in pair} <= set(workload.contestants)
    for contestant in workload.contestants:
        assert workload.stream in functions(CONTESTANTS[contestant].module)


def test_every_environment_is_described() -> None:
    assert {path.stem for path in REQUIREMENTS.glob("*.txt")} == set(PEERS)
    assert {one.environment for one in CONTESTANTS.values()} - {None} <= set(PEERS)


@pytest.mark.parametrize("name", PEERS)
def test_lists_are_pinned_and_bring_neither_pillow_nor_torch(name: str) -> None:
    lines = (REQUIREMENTS / f"{name}.txt").read_text().splitlines()
    assert lines and all(re.fullmatch(r"[\w.-]+==[\w.!+-]+", line) for line in lines)
    named = {re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower() for line in lines}
    assert not named & {"pillow", "pillow-simd", "torch", "torchvision", "packtrain"}


def test_an_interpreter_is_the_named_one_else_that_of_the_environment_else_this_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(environments, "ENVIRONMENTS", tmp_path)
    monkeypatch.delenv("PACKTRAIN_FFCV_PYTHON", raising=False)
    own = interpreter(None)
    assert interpreter("ffcv") == own
    (tmp_path / "ffcv").mkdir()
    assert interpreter("ffcv") == own  # not finished
    (tmp_path / "ffcv" / ".installed").touch()
    assert interpreter("ffcv") == str(tmp_path / "ffcv/bin/python")
    monkeypatch.setenv("PACKTRAIN_FFCV_PYTHON", "/elsewhere/python")
    assert interpreter("ffcv") == "/elsewhere/python"


def test_a_message_says_what_the_system_lacks_and_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environments, "ENVIRONMENTS", tmp_path)
    said = "libspdl is missing: apt-get install it"
    monkeypatch.setitem(PEERS, "spdl", Environment("PACKTRAIN_SPDL_PYTHON", (), lacks=lambda: said))
    assert "make bench-peers" in why_missing("spdl")
    with pytest.raises(Unavailable, match="apt-get install it"):
        make("spdl")
    assert why_missing("spdl") == said
    assert not (tmp_path / "spdl").exists()
