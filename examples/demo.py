"""Packs photographs in every format, verifies them, trains a network on them, and compares. `make demo` runs it.

It cuts its images from photographs of scikit-image; PACKTRAIN_IMAGES=train.txt names a list of your own.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
import PIL
import torch
from demo_images import make_images
from demo_network import Epoch, learn
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from packtrain import Loader, PackedDataset, PackOptions, concat, open_dataset, pack, verify
from packtrain.errors import PacktrainError
from packtrain.transforms import Compose, PILToTensor, RandomHorizontalFlip, RandomResizedCrop

FORMATS: Final = ("tar", "hdf5", "lmdb")
LOOSE: Final = "loose files"
MAX_LINES: Final = 2000
"""Lines taken of a longer list."""
CROPS: Final = (RandomResizedCrop(224), RandomHorizontalFlip())
"""The transforms that the loaders are compared with."""
PASSES: Final = 2
"""Number of times that each loader makes `LOADED` crops, after a first pass; the fastest counts."""
LOADED: Final = 1500
HELD_OUT: Final = 5
"""One image of so many is kept from the training, and tests the network."""
CORES: Final = len(os.sched_getaffinity(0))
MARK: Final = "made-by-the-demo.txt"


class LooseFiles(Dataset[tuple[Any, int]]):
    """The images of a packed dataset, read from their own files as torchvision's ImageFolder does."""

    def __init__(self, packed: PackedDataset, root: Path, transform: Callable[[Any], Any] | None = None) -> None:
        # The rows of the dataset, not the lines of the list: packing may have rejected some lines.
        self.paths = [root / packed.filename(row) for row in range(len(packed))]
        self.targets = packed.targets.tolist()
        self.transform = transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        with self.paths[row].open("rb") as file:
            image: Any = Image.open(file).convert("RGB")
        return image if self.transform is None else self.transform(image), self.targets[row]


def demo(out: Path) -> None:
    """Runs the demo and leaves everything it makes in the folder `out`."""
    start_afresh(out)
    programs = os.path.relpath(Path(sys.executable).parent)
    print(f"Each step is headed by the command that does the same; the programs are in {programs}/.\n")
    image_list, root = choose_list(out)
    for name in FORMATS:
        pack_as(name, image_list, root, out / name)
    for name in FORMATS:
        verify_all(out / name)
    packed = {name: open_dataset(out / name) for name in FORMATS}
    loose = LooseFiles(packed["tar"], root)
    same = all(same_pixels(loose, dataset) for dataset in packed.values())
    epochs = train(packed["tar"])
    rates = measure_crops(packed, root)
    print_table(loose, packed, rates)
    draw(out / "demo.png", epochs, rates)
    print_remarks(same, packed["tar"].decoder.version, out / "demo.png")


def start_afresh(out: Path) -> None:
    """Deletes what an earlier demo made, and nothing else."""
    if out.exists() and not (out / MARK).exists():
        sys.exit(f"error: {out} exists, and no earlier demo has made it; choose another folder with --out")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / MARK).write_text("The next demo deletes this folder and everything in it.\n")


def choose_list(out: Path) -> tuple[Path, Path]:
    """The list to pack, and the folder that its paths are relative to."""
    given = os.environ.get("PACKTRAIN_IMAGES")
    if not given:
        image_list = make_images(out / "images")
        return image_list, image_list.parent
    image_list = Path(given)
    lines = [line for line in image_list.read_bytes().splitlines(keepends=True) if line.strip()]
    if len(lines) <= MAX_LINES:
        print(f"PACKTRAIN_IMAGES={image_list}: {len(lines):,} lines")
        return image_list, image_list.parent
    print(f"PACKTRAIN_IMAGES={image_list}: {len(lines):,} lines, of which the demo takes {MAX_LINES:,}")
    # Evenly spread over the list, which may be sorted by class.
    chosen = [lines[len(lines) * number // MAX_LINES] for number in range(MAX_LINES)]
    (out / "train.txt").write_bytes(b"".join(chosen))
    return out / "train.txt", image_list.parent


def pack_as(name: str, image_list: Path, root: Path, folder: Path) -> None:
    """Packs the list in one format."""
    elsewhere = [] if root == image_list.parent else ["--root", root]
    announce("packtrain", "pack", image_list, folder, "--format", name, *elsewhere)
    start = time.perf_counter()
    report = pack(image_list, folder, PackOptions(format=name, root=root), num_workers=CORES)
    seconds = time.perf_counter() - start
    print(f"  {report.records:,} records, {report.rejects} lines rejected, {seconds:.1f} s with the start of processes")


def verify_all(folder: Path) -> None:
    """Checks everything in a dataset and decodes each image."""
    announce("packtrain", "verify", folder, "--decode")
    report = verify(folder, decode_images=True, num_workers=CORES)
    if report.problems:
        sys.exit("\n".join(f"{problem.file}: {problem.message}" for problem in report.problems))
    print(f"  {report.records:,} records checked and decoded, no problems")


def same_pixels(loose: LooseFiles, packed: PackedDataset) -> bool:
    """True if each image of the dataset equals its file, pixel by pixel."""
    return all(np.array_equal(loose[row][0], packed[row][0]) for row in range(len(packed)))


def train(dataset: PackedDataset) -> list[Epoch]:
    """Trains a network on most of the images, and tests it on the others."""
    rows = range(len(dataset))
    held_out = dataset.subset(rows[::HELD_OUT])
    training = dataset.subset([row for row in rows if row % HELD_OUT])
    print(
        f"\nA network learns from random crops of {len(training):,} images; {len(held_out):,} others test it",
        flush=True,
    )
    epochs = []
    for epoch in learn(training, held_out, int(dataset.targets.max()) + 1):
        epochs.append(epoch)
        print(
            f"  {epoch.seconds:4.1f} s: loss {epoch.loss:.3f}, {epoch.accuracy:.0%} of the others are right", flush=True
        )
    return epochs


def measure_crops(packed: dict[str, PackedDataset], root: Path) -> dict[str, float]:
    """Random crops per second that each loader makes with a worker on each core."""
    print(f"\nRandomResizedCrop(224) and flip, {CORES} workers: {PASSES} passes of each loader in turn", flush=True)
    repeats = -(-LOADED // len(packed["tar"]))
    files = LooseFiles(packed["tar"], root, Compose([*CROPS, PILToTensor()]))
    loaders: dict[str, Iterable[Any]] = {
        LOOSE: DataLoader(
            torch.utils.data.ConcatDataset([files] * repeats),
            64,
            shuffle=True,
            num_workers=CORES,
            persistent_workers=True,
        )
    }
    for name, dataset in packed.items():
        repeated = concat([dataset.with_transform(CROPS)] * repeats)
        loaders[name] = Loader(repeated, 64, shuffle=True, num_workers=CORES)
    best = dict.fromkeys(loaders, 0.0)
    # In turn, so that other work on this machine affects all of them. The first pass starts the workers.
    for number in range(PASSES + 1):
        for name, loader in loaders.items():
            rate = crops_per_second(loader)
            best[name] = max(best[name], rate if number else 0.0)
    return best


def crops_per_second(loader: Iterable[Any]) -> float:
    """The rate of one pass over batches of (images, labels)."""
    start = time.perf_counter()
    count = sum(len(labels) for _, labels in loader)
    return count / (time.perf_counter() - start)


def print_table(loose: LooseFiles, packed: dict[str, PackedDataset], rates: dict[str, float]) -> None:
    """Prints a line for each source."""
    print(f"\n{'source':<12} {'bytes':>12} {'crops/s':>9}")
    sizes = {LOOSE: sum(path.stat().st_size for path in loose.paths)}
    sizes |= {name: dataset.store.manifest.bytes for name, dataset in packed.items()}
    for name, size in sizes.items():
        print(f"{name:<12} {size:>12,} {rates[name]:>9,.0f}")


def draw(path: Path, epochs: list[Epoch], rates: dict[str, float]) -> None:
    """Draws how the network learned, and the rates of the loaders."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot([epoch.seconds for epoch in epochs], [epoch.accuracy for epoch in epochs], marker="o")
    left.set(xlabel="seconds of training", ylabel="held-out images that are right", ylim=(0, 1.03))
    names = list(rates)
    bars = right.barh(names, list(rates.values()), color=["0.6"] + ["C0"] * len(FORMATS))
    right.bar_label(bars, fmt="{:,.0f}", padding=3)
    right.invert_yaxis()
    right.margins(x=0.15)
    right.set(xlabel=f"crops per second, {CORES} workers")
    figure.savefig(path, dpi=120)


def print_remarks(same: bool, decoder: str, chart: Path) -> None:
    """Prints what the columns mean, and whether all formats have the pixels of the files."""
    print(f"""
crops/s: from memory, in batches of 64 on {CORES} cores;
the files by torch's DataLoader and Pillow {PIL.__version__}, the datasets by packtrain's Loader and {decoder}.
The pixels of each format and of the files {"are the same" if same else "DIFFER, WHICH IS A BUG"}.
The chart is {chart}.

This is a demo on a few images and no benchmark: for figures see docs/benchmarks.md.""")


def announce(*command: object) -> None:
    """Prints the command line that does the same as the next step."""
    print(f"\n$ {shlex.join(map(str, command))}", flush=True)


def main() -> None:
    """Reads the command line and runs the demo."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="folder for everything that the demo makes")
    out = parser.parse_args().out
    try:
        demo(out)
    except (PacktrainError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
