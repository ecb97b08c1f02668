"""The examples do what their documentation says: the LeNet learns, the demo runs, the README's code works."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import demo
import numpy as np
import pytest
import torch
from lenet.train import TrainOptions, TrainResult, count_classes, lenet, random_crop, train
from PIL import Image
from support import encoded, image_set, picture, tree

from packtrain.cli.info_cmd import command as info_command
from packtrain.cli.pack_cmd import command as pack_command
from packtrain.cli.verify_cmd import command as verify_command
from packtrain.core.errors import UsageError
from packtrain.core.options import LabelSpec
from packtrain.packer import PackOptions, pack
from packtrain.readers import PackedDataset, open_dataset

ROOT = Path(__file__).parents[2]
COLOURS = ((220, 30, 30), (30, 200, 40), (40, 60, 220), (230, 220, 60))
EPOCHS = 4


def run(*arguments: object, images: Path | None = None, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PACKTRAIN_IMAGES"}
    if images is not None:
        environment["PACKTRAIN_IMAGES"] = str(images)
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed dataset whose labels are plain to see: 160 noisy pictures in one of four colours."""
    folder = tmp_path_factory.mktemp("colours")
    random = np.random.default_rng(0)
    lines = []
    for number in range(160):
        label = number % len(COLOURS)
        pixels = np.array(COLOURS[label]) + random.normal(0, 20, (40, 44, 3))
        (folder / f"{number}.jpg").write_bytes(encoded(Image.fromarray(pixels.clip(0, 255).astype(np.uint8))))
        lines.append(f"{number}.jpg {label}\n")
    (folder / "train.txt").write_text("".join(lines))
    return pack(folder / "train.txt", folder / "packed").dataset


@pytest.fixture(autouse=True)
def own_threads_and_seed() -> Iterator[None]:
    """`train` sets both for the process; other tests get theirs back."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        yield
    torch.set_num_threads(threads)


def trained(path: Path, *, workers: int = 0, seed: int = 0, start_method: str | None = None) -> TrainResult:
    options = TrainOptions(
        epochs=EPOCHS, batch_size=32, workers=workers, device="cpu", seed=seed, start_method=start_method
    )
    return train(open_dataset(path, transform=random_crop), 10, options)


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
    result = train(open_dataset(colours, transform=random_crop), 10, options)
    assert next(result.model.parameters()).is_cuda
    assert result.epochs[-1].accuracy > 0.9


def test_a_gpu_that_is_not_there_is_missed(colours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="--device cpu"):
        train(open_dataset(colours, transform=random_crop), 10, TrainOptions(device="cuda"))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_seed_gives_the_same_run(colours: Path, workers: int) -> None:
    first, again = trained(colours, workers=workers), trained(colours, workers=workers)
    assert facts(first) == facts(again)
    assert all(map(np.array_equal, weights(first), weights(again)))
    assert facts(first) != facts(trained(colours, workers=workers, seed=1))


@pytest.mark.parametrize("start_method", ["fork", "forkserver", "spawn"])
def test_the_start_method_changes_nothing(colours: Path, start_method: str) -> None:
    assert facts(trained(colours, workers=1, start_method=start_method)) == facts(trained(colours, workers=1))


def test_the_format_changes_nothing(colours: Path, tmp_path: Path, format_name: str) -> None:
    pack(colours.parent / "train.txt", tmp_path / "out", PackOptions(format=format_name, seed=5))
    assert facts(trained(tmp_path / "out")) == facts(trained(colours))


def test_a_crop_is_a_piece_of_the_image() -> None:
    image = Image.fromarray(np.random.default_rng(1).integers(0, 256, (34, 36, 3), np.uint8))
    pixels = np.asarray(image)
    places = [(top, left) for top in range(3) for left in range(5)]
    found = set()
    for _ in range(400):
        crop = random_crop(image)
        assert crop.dtype == torch.uint8
        piece = crop.permute(1, 2, 0).numpy()
        found |= {at for at in places if np.array_equal(piece, pixels[at[0] : at[0] + 32, at[1] : at[1] + 32])}
    assert found == set(places), "every place is drawn at some time, the edges included"


def test_a_small_image_is_centred_on_black() -> None:
    crop = random_crop(Image.new("L", (20, 40), 255))
    assert crop.shape == (3, 32, 32)
    assert (crop[:, :, 6:26] == 255).all()
    assert (crop[:, :, :6] == 0).all() and (crop[:, :, 26:] == 0).all()


def packed_with(folder: Path, lines: str, labels: str) -> PackedDataset:
    image_set(folder, 2)
    (folder / "list.txt").write_text(lines)
    return open_dataset(pack(folder / "list.txt", folder / "out", PackOptions(labels=LabelSpec.parse(labels))).dataset)


def test_the_labels_decide_the_outputs(tmp_path: Path, images: Path) -> None:
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


def test_the_script_says_what_is_wrong_in_one_line(tmp_path: Path) -> None:
    done = run("examples/lenet/train.py", tmp_path, cwd=ROOT)
    assert done.returncode == 1
    assert done.stderr == f"error: {tmp_path} has no manifest.json: not a dataset\n"


# --- the demo ---


def test_the_demo_runs_from_any_list_and_runs_again(tmp_path: Path) -> None:
    source = image_set(tmp_path / "images", 20)
    (tmp_path / "images" / "broken.jpg").write_bytes(b"<html>")
    with source.open("a") as file:
        file.write("broken.jpg 1\n")
    for _ in range(2):
        done = run(ROOT / "examples/demo.py", images=source, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    rows = {line[:12].strip(): line[12:].split() for line in done.stdout.splitlines()}
    loose = sum(path.stat().st_size for path in source.parent.glob("image*.jpg"))
    assert rows["loose files"][0] == f"{loose:,}"
    assert {tuple(rows[name][3:]) for name in ("loose files", "tar", "hdf5", "lmdb")} == {tuple(rows["tar"][3:])}
    assert "Loss and accuracy are the same" in done.stdout
    for name in ("tar", "hdf5", "lmdb"):
        assert len(open_dataset(tmp_path / "demo-out" / name)) == 20


def test_the_demo_takes_a_part_of_a_long_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = image_set(tmp_path / "images", 3)
    source.write_text("".join(f"image {number % 3}.jpg {number // 12}\n" for number in range(96)))
    monkeypatch.setenv("PACKTRAIN_IMAGES", str(source))
    monkeypatch.setattr(demo, "MOST_LINES", 16)
    demo._demo(tmp_path / "out")
    for name in ("tar", "hdf5", "lmdb"):
        targets = open_dataset(tmp_path / "out" / name).targets
        assert np.bincount(targets).tolist() == [2] * 8, "spread evenly over the list"


def test_the_demo_deletes_nothing_that_it_has_not_made(tmp_path: Path) -> None:
    source = image_set(tmp_path / "images", 2)
    done = run(ROOT / "examples/demo.py", "--out", source.parent, images=source, cwd=tmp_path)
    assert done.returncode == 1
    assert "no earlier demo has made it" in done.stderr
    assert source.exists()


def test_the_photographs_are_cut_the_same_way_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    for number, name in enumerate(demo.PHOTOGRAPHS):
        picture(number, 400 + 90 * number, 300 + 50 * number, "L" if number == 1 else "RGB").save(
            tmp_path / "data" / name
        )
    monkeypatch.setattr(demo, "_photograph_folder", lambda: tmp_path / "data")
    lists = [demo._make_photographs(tmp_path / name) for name in ("once", "again")]
    assert tree(tmp_path / "once") == tree(tmp_path / "again")
    lines = lists[0].read_text().splitlines()
    assert len(set(lines)) == 400
    assert np.bincount([int(line.split()[1]) for line in lines]).tolist() == [40] * 10
    for line in lines:
        with Image.open(lists[0].parent / line.split()[0]) as image:
            assert image.format == "JPEG"
            assert 300 <= max(image.size) <= 500


def test_without_photographs_the_demo_says_where_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"make demo.*pip install --no-deps scikit-image.*PACKTRAIN_IMAGES"):
        demo._photograph_folder()


# --- the documents ---


README = ROOT / "README.md"
LENET_README = ROOT / "examples/lenet/README.md"


@pytest.mark.parametrize("document", [README, LENET_README], ids=["README", "lenet"])
def test_the_code_in_the_documents_runs(document: Path, tmp_path: Path, images: Path) -> None:
    pack(images, tmp_path / "out")
    blocks = re.findall(r"^```python\n(.*?)^```", document.read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    for block in blocks:
        path = f"import sys\nsys.path.append({str(ROOT / 'examples')!r})\n" if document == LENET_README else ""
        (tmp_path / "script.py").write_text(path + block)
        done = run("script.py", cwd=tmp_path)
        assert done.returncode == 0, done.stderr


def test_the_verbs_in_the_readme_are_in_the_makefile() -> None:
    verbs = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z]+)$", README.read_text(), re.MULTILINE))
    assert {"demo", "test"} <= named <= verbs


def test_the_options_in_the_readme_are_those_of_the_commands() -> None:
    commands = (pack_command, verify_command, info_command)
    known = {option for command in commands for parameter in command.params for option in parameter.opts}
    spans = " ".join(re.findall(r"`([^`]*packtrain [^`]*|--[^`]*)`", README.read_text()))
    named = set(re.findall(r"--[a-z-]+", spans))
    assert {"--format", "--store", "--decode"} <= named <= known


def test_the_links_in_the_readme_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", README.read_text())
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []
