"""The examples do what their READMEs say: the LeNet learns, the demo runs, options and verbs are those that exist."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import demo
import demo_images
import numpy as np
import pytest
import torch
from demo_network import learn
from helpers.support import image_set, picture, require_module, tree
from lenet.train import CROP, TrainOptions, TrainResult, count_classes, lenet, train
from PIL import Image

from packtrain import PackedDataset, PackOptions, open_dataset, pack
from packtrain._cli.main import COMMANDS
from packtrain._core.options import LabelSpec
from packtrain.errors import UsageError

# Each starts a program that imports torch: too slow for every run.
pytestmark = pytest.mark.complete

ROOT = Path(__file__).parents[2]
EPOCHS = 4


def run(*arguments: object, images: Path | None = None, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PACKTRAIN_IMAGES"}
    if images is not None:
        environment["PACKTRAIN_IMAGES"] = str(images)
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(autouse=True)
def own_threads_and_seed() -> Iterator[None]:
    """`train` sets both for the whole process; this restores them for other tests."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        yield
    torch.set_num_threads(threads)


def trained(path: Path, *, workers: int = 0, seed: int = 0, start_method: str | None = None) -> TrainResult:
    options = TrainOptions(
        epochs=EPOCHS, batch_size=32, workers=workers, device="cpu", seed=seed, start_method=start_method
    )
    return train(open_dataset(path), 10, options)


def facts(result: TrainResult) -> list[tuple[float, float]]:
    return [(epoch.loss, epoch.accuracy) for epoch in result.epochs]


def weights(result: TrainResult) -> list[np.ndarray]:
    return [parameter.detach().numpy() for parameter in result.model.parameters()]


# --- the LeNet ---


def test_the_network_has_the_shape_of_lenet_5() -> None:
    network = lenet(10)
    convolutions = 6 * (3 * 25 + 1) + 16 * (6 * 25 + 1)
    dense = 120 * (16 * 5 * 5 + 1) + 84 * (120 + 1) + 10 * (84 + 1)
    assert sum(parameter.numel() for parameter in network.parameters()) == convolutions + dense
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_it_learns_to_tell_colours_apart(colours: Path) -> None:
    epochs = trained(colours).epochs
    assert [epoch.number for epoch in epochs] == list(range(1, EPOCHS + 1))
    assert epochs[-1].loss < epochs[0].loss / 2
    assert epochs[-1].accuracy > 0.9


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_it_learns_on_a_gpu(colours: Path) -> None:
    options = TrainOptions(epochs=EPOCHS, batch_size=32, workers=2, device="auto")
    result = train(open_dataset(colours), 10, options)
    assert next(result.model.parameters()).is_cuda
    assert result.epochs[-1].accuracy > 0.9


def test_a_missing_gpu_is_an_error(colours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="--device cpu"):
        train(open_dataset(colours), 10, TrainOptions(device="cuda"))


@pytest.fixture(scope="session")
def reference(colours: Path) -> TrainResult:
    return trained(colours)


@pytest.mark.parametrize(("workers", "start_method"), [(0, None), (2, "spawn")])
def test_the_same_seed_gives_the_same_run(
    colours: Path, reference: TrainResult, workers: int, start_method: str | None
) -> None:
    again = trained(colours, workers=workers, start_method=start_method)
    assert facts(again) == facts(reference)
    assert all(map(np.array_equal, weights(again), weights(reference)))


def test_another_seed_gives_another_run(colours: Path, reference: TrainResult) -> None:
    assert facts(trained(colours, seed=1)) != facts(reference)


def test_the_format_changes_nothing(colours: Path, reference: TrainResult, tmp_path: Path, format_name: str) -> None:
    pack(colours.parent / "train.txt", tmp_path / "out", PackOptions(format=format_name, seed=5))
    assert facts(trained(tmp_path / "out")) == facts(reference)


def test_a_small_image_is_padded_with_black() -> None:
    crop = np.array(CROP(Image.new("RGB", (20, 40), (255, 255, 255))))
    assert crop.shape == (32, 32, 3)
    (columns,) = np.nonzero(crop[0, :, 0])
    assert len(columns) == 20 and columns.max() - columns.min() == 19
    assert (crop[:, columns] == 255).all() and crop.sum() == 255 * 3 * 32 * 20


def packed_with(folder: Path, lines: str, labels: str) -> PackedDataset:
    image_set(folder, 2)
    (folder / "list.txt").write_text(lines)
    return open_dataset(pack(folder / "list.txt", folder / "out", PackOptions(labels=LabelSpec.parse(labels))).dataset)


def test_the_labels_decide_the_number_of_outputs(tmp_path: Path, images: Path) -> None:
    assert count_classes(packed_with(tmp_path / "many", "image 0.jpg 999\nimage 1.jpg 0\n", "int")) == 1000
    assert count_classes(packed_with(tmp_path / "few", "image 0.jpg 3\n", "int")) == 10


@pytest.mark.parametrize(
    ("lines", "labels", "says"),
    [
        ("image 0.jpg -1\n", "int", "has label -1"),
        ("image 0.jpg 0.5\n", "float", "has labels float"),
        ("image 0.jpg 1 2\n", "int*2", r"has labels int\*2"),
    ],
)
def test_other_labels_are_refused(tmp_path: Path, lines: str, labels: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        count_classes(packed_with(tmp_path / "set", lines, labels))


def test_the_script_trains(colours: Path) -> None:
    done = run(
        "examples/lenet/train.py", colours, "--epochs=2", "--batch-size=32", "--workers=1", "--device=cpu", cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    first, *epochs = done.stdout.splitlines()
    assert first == "160 images, 10 classes, on cpu"
    assert [line.split(":")[0] for line in epochs] == ["epoch 1", "epoch 2"]


def test_the_script_reports_an_error_in_one_line(tmp_path: Path) -> None:
    done = run("examples/lenet/train.py", tmp_path, cwd=ROOT)
    assert done.returncode == 1
    assert done.stderr == f"error: {tmp_path} has no manifest.json: not a dataset\n"


# --- the demo ---


def test_the_demo_runs_on_any_list_and_runs_again(tmp_path: Path) -> None:
    source = image_set(tmp_path / "images", 20)
    (tmp_path / "images" / "broken.jpg").write_bytes(b"<html>")
    with source.open("a") as file:
        file.write("broken.jpg 1\n")
    # What an earlier demo left.
    (tmp_path / "demo-out").mkdir()
    (tmp_path / "demo-out" / demo.MARK).touch()
    (tmp_path / "demo-out/tar").mkdir()
    done = run(ROOT / "examples/demo.py", images=source, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = {line[:12].strip(): line[12:].split() for line in done.stdout.splitlines()}
    loose = sum(path.stat().st_size for path in source.parent.glob("image*.jpg"))
    assert rows["loose files"][0] == f"{loose:,}"
    assert "The pixels of each format and of the files are the same" in done.stdout
    with Image.open(tmp_path / "demo-out/demo.png") as chart:
        assert chart.format == "PNG"
    for name in ("tar", "hdf5", "lmdb"):
        assert len(open_dataset(tmp_path / "demo-out" / name)) == 20


def test_the_demo_notices_a_pixel_that_differs(tmp_path: Path) -> None:
    source = image_set(tmp_path / "images", 3)
    packed = open_dataset(pack(source, tmp_path / "out").dataset)
    assert demo.same_pixels(demo.LooseFiles(packed, source.parent), packed)
    name = source.parent / packed.filename(2)
    pixels = np.array(Image.open(name))
    pixels[5, 5] ^= 1
    Image.fromarray(pixels).save(name, "PNG")
    assert not demo.same_pixels(demo.LooseFiles(packed, source.parent), packed)


def test_the_demo_takes_a_part_of_a_long_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = image_set(tmp_path / "images", 3)
    source.write_text("".join(f"image {number % 3}.jpg {number // 12}\n" for number in range(96)))
    monkeypatch.setenv("PACKTRAIN_IMAGES", str(source))
    monkeypatch.setattr(demo, "MAX_LINES", 16)
    (tmp_path / "out").mkdir()
    taken, root = demo.choose_list(tmp_path / "out")
    assert root == source.parent
    labels = [int(line.split()[-1]) for line in taken.read_text().splitlines()]
    assert np.bincount(labels).tolist() == [2] * 8, "spread evenly over the list"


def test_the_demo_deletes_only_what_it_made(tmp_path: Path) -> None:
    source = image_set(tmp_path / "images", 2)
    done = run(ROOT / "examples/demo.py", "--out", source.parent, images=source, cwd=tmp_path)
    assert done.returncode == 1
    assert "no earlier demo has made it" in done.stderr
    assert source.exists()


def test_the_photographs_are_cut_the_same_way_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    for number, name in enumerate(demo_images.PHOTOGRAPHS):
        picture(number, 400 + 90 * number, 300 + 50 * number, "L" if number == 1 else "RGB").save(
            tmp_path / "data" / name
        )
    monkeypatch.setattr(demo_images, "photograph_folder", lambda: tmp_path / "data")
    lists = [demo_images.make_images(tmp_path / name) for name in ("once", "again")]
    assert tree(tmp_path / "once") == tree(tmp_path / "again")
    lines = lists[0].read_text().splitlines()
    assert len(set(lines)) == 500
    assert np.bincount([int(line.split()[1]) for line in lines]).tolist() == [50] * 10
    for line in lines:
        with Image.open(lists[0].parent / line.split()[0]) as image:
            assert image.format == "JPEG"
            assert 300 <= max(image.size) <= 500


def test_the_network_of_the_demo_learns(colours: Path) -> None:
    dataset = open_dataset(colours)
    epochs = list(learn(dataset.subset(range(40, 160)), dataset.subset(range(40)), classes=4))
    assert epochs[-1].loss < epochs[0].loss / 2
    assert epochs[-1].accuracy > 0.9
    assert [epoch.seconds for epoch in epochs] == sorted(epoch.seconds for epoch in epochs)


NOTEBOOK = """
import json
cells = json.load(open("demo.ipynb"))["cells"]
assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells), "outputs are not committed"
exec("\\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"))
print("end")
"""


def test_the_notebook_runs(tmp_path: Path) -> None:
    require_module("skimage")
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", NOTEBOOK]
    done = subprocess.run(command, cwd=ROOT / "examples", env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert sum(line.endswith(" 0 problems") for line in told) == 3
    learned = re.findall(r"(\d+)% of the others are right", done.stdout)
    assert int(learned[-1]) > 90
    assert told[-1] == "end"


def test_without_photographs_the_demo_says_where_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"make demo.*pip install --no-deps scikit-image.*PACKTRAIN_IMAGES"):
        demo_images.photograph_folder()


# --- the documents ---


README = ROOT / "README.md"


def test_the_verbs_in_the_documents_are_in_the_makefile() -> None:
    verbs = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    documents = (README, ROOT / "CONTRIBUTING.md", ROOT / "docs/benchmarks.md")
    text = "\n".join(document.read_text() for document in documents)
    named = set(re.findall(r"(?:^|`|=\S* )make ([a-z-]+)", text, re.MULTILINE))
    assert {"demo", "test", "setup", "bench-peers"} <= named <= verbs


def options_of(*commands: click.Command) -> set[str]:
    """The long options of commands."""
    return {
        option
        for command in commands
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--")
    }


def parts_of(command: click.Command) -> list[click.Command]:
    """The commands of a group."""
    return list(command.commands.values()) if isinstance(command, click.Group) else []


def options_in(document: Path) -> set[str]:
    """The options that code spans and code blocks of a document name."""
    spans = re.findall(r"`([^`\n]*packtrain [^`\n]*|--[^`\n]*)`|^(packtrain .*)$", document.read_text(), re.MULTILINE)
    return {option for pair in spans for option in re.findall(r"--[a-z][a-z-]+", " ".join(pair))}


def test_the_options_in_the_documents_are_those_of_the_commands() -> None:
    modules = {name: f"packtrain._cli.{name.replace('-', '_')}_cmd" for name in COMMANDS}
    commands = {name: import_module(module).command for name, module in modules.items()}
    every = options_of(*(part for command in commands.values() for part in (command, *parts_of(command))))
    documents = {path.stem: options_in(path) for path in (ROOT / "docs").glob("*.md")}
    pages = ("packing", "lists", "store-modes", "many-machines", "packing-from-python", "querying")
    packing = set.union(*(documents[page] for page in pages))
    assert options_of(commands["pack"], commands["verify"]) <= packing | documents["object-stores"] <= every
    assert documents["tuning"] == options_of(commands["tune"])
    assert {"--store"} <= options_in(README) <= every
