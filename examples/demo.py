"""Packs a list in every format, verifies, reads and trains on each, and compares. `make demo` runs it.

It makes its own images from photographs of scikit-image; PACKTRAIN_IMAGES=train.txt names a list of your own.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import PIL
from demo_images import make_images
from lenet.train import EpochResult, TrainOptions, count_classes, train
from PIL import Image
from torch.utils.data import Dataset

from packtrain import PackedDataset, PackOptions, open_dataset, pack, verify
from packtrain.errors import PacktrainError

FORMATS: Final = ("tar", "hdf5", "lmdb")
LOOSE: Final = "loose files"
MAX_LINES: Final = 2000
"""Lines taken of a longer list."""
READS: Final = 5
"""Number of times that each source is read; the fastest counts."""
TRAINING: Final = TrainOptions(epochs=1, batch_size=32)
CORES: Final = len(os.sched_getaffinity(0))
MARK: Final = "made-by-the-demo.txt"


class LooseFiles(Dataset[tuple[Any, Any]]):
    """The images of a packed dataset, read from their own files as torchvision's ImageFolder does."""

    def __init__(self, packed: PackedDataset, root: Path) -> None:
        # The rows of the dataset, not the lines of the list: packing may have rejected some lines.
        self.paths = [root / packed.filename(row) for row in range(len(packed))]
        self.targets = packed.targets.tolist()

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        with self.paths[row].open("rb") as file:
            image: Any = Image.open(file).convert("RGB")
        return image, self.targets[row]


Source = LooseFiles | PackedDataset


def demo(out: Path) -> None:
    """Runs the demo and leaves everything it makes in the folder `out`."""
    start_afresh(out)
    programs = os.path.relpath(Path(sys.executable).parent)
    print(f"Each step is headed by the command that does the same; the programs are in {programs}/.\n")
    image_list, root = choose_list(out)
    warm_up(image_list, root, out / "warm-up")
    pack_rates = {name: pack_as(name, image_list, root, out / name) for name in FORMATS}
    for name in FORMATS:
        verify_all(out / name)
    packed = {name: open_dataset(out / name) for name in FORMATS}
    loose = LooseFiles(packed["tar"], root)
    same_images = all(same_pixels(loose, dataset) for dataset in packed.values())
    sources: dict[str, Source] = {LOOSE: loose, **packed}
    read_rates = measure_reading(sources)
    epochs = {name: train_on(out / name, dataset) for name, dataset in packed.items()}
    same_training = len({(epoch.loss, epoch.accuracy) for epoch in epochs.values()}) == 1
    print_table(sources, pack_rates, read_rates, epochs)
    print_remarks(same_images and same_training, packed["tar"].decoder.version)


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


def warm_up(image_list: Path, root: Path, folder: Path) -> None:
    """Packs once unmeasured: otherwise the first format would pay for imports and for reading files from the disk."""
    folder.mkdir()
    for name in FORMATS:
        pack(image_list, folder / name, PackOptions(format=name, root=root))
    shutil.rmtree(folder)


def pack_as(name: str, image_list: Path, root: Path, folder: Path) -> float:
    """Packs the list in one format. Returns images per second."""
    elsewhere = [] if root == image_list.parent else ["--root", root]
    announce("packtrain", "pack", image_list, folder, "--format", name, *elsewhere)
    start = time.perf_counter()
    report = pack(image_list, folder, PackOptions(format=name, root=root), num_workers=CORES)
    seconds = time.perf_counter() - start
    print(f"  {report.records:,} records, {report.rejects} lines rejected, {seconds:.2f} s")
    return report.records / seconds


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


def measure_reading(sources: dict[str, Source]) -> dict[str, float]:
    """Images per second when this process decodes all images one after the other."""
    print(f"\nReading and decoding all images, {READS} times in turn from {', '.join(sources)}", flush=True)
    best = dict.fromkeys(sources, float("inf"))
    # In turn, so that other work on this machine affects all sources.
    for _ in range(READS):
        for name, dataset in sources.items():
            start = time.perf_counter()
            for row in range(len(dataset)):
                dataset[row]
            best[name] = min(best[name], time.perf_counter() - start)
    return {name: len(dataset) / best[name] for name, dataset in sources.items()}


def train_on(folder: Path, dataset: PackedDataset) -> EpochResult:
    """Trains a LeNet for one epoch."""
    announce("python", "examples/lenet/train.py", folder, "--batch-size", TRAINING.batch_size)
    epoch = train(dataset, count_classes(dataset), TRAINING).epochs[-1]
    # Not its images/s: the first training in a process is slower than later ones.
    print(f"  loss {epoch.loss:.3f}, accuracy {epoch.accuracy:.1%}")
    return epoch


def print_table(
    sources: dict[str, Source],
    pack_rates: dict[str, float],
    read_rates: dict[str, float],
    epochs: dict[str, EpochResult],
) -> None:
    """Prints a line for each source."""
    print(f"\n{'format':<12} {'bytes':>12} {'pack':>9} {'read':>9}   one epoch of LeNet")
    print(f"{'':<12} {'':>12} {'images/s':>9} {'images/s':>9} {'loss':>8} {'accuracy':>9}")
    for name, dataset in sources.items():
        if isinstance(dataset, PackedDataset):
            size, epoch = dataset.store.manifest.bytes, epochs[name]
            pack_rate, loss, accuracy = f"{pack_rates[name]:,.0f}", f"{epoch.loss:.3f}", f"{epoch.accuracy:.1%}"
        else:
            size, pack_rate, loss, accuracy = sum(path.stat().st_size for path in dataset.paths), "-", "-", "-"
        print(f"{name:<12} {size:>12,} {pack_rate:>9} {read_rates[name]:>9,.0f} {loss:>8} {accuracy:>9}")


def print_remarks(same: bool, decoder: str) -> None:
    """Prints what the columns mean, and whether all sources gave the same result."""
    print(f"""
pack: transcoded to crop-ready, checked and written to disk.
read: whole images decoded one after the other, from memory;
the files by Pillow {PIL.__version__}, the datasets by {decoder} ({CORES} cores).
Pixels, loss and accuracy {"are the same" if same else "DIFFER, WHICH IS A BUG"}.
Pixels are compared with those of the files, too.

This is a demo on a few images and no benchmark: for figures see benchmarks/README.md.""")


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
