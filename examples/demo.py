"""The main job end to end, as `make demo` runs it: pack a list in every format, verify, read, train, compare.

Makes its own list from photographs that scikit-image brings along; PACKTRAIN_IMAGES names another one.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import PIL
from lenet.train import EpochResult, TrainOptions, count_classes, train
from PIL import Image
from torch.utils.data import Dataset

from packtrain import PackedDataset, PackOptions, open_dataset, pack, verify
from packtrain.errors import PacktrainError

PHOTOGRAPHS: Final = (
    "astronaut.png",
    "brick.png",
    "chelsea.png",
    "coffee.png",
    "coins.png",
    "hubble_deep_field.jpg",
    "ihc.png",
    "motorcycle_left.png",
    "retina.jpg",
    "rocket.jpg",
)
CROPS: Final = 40
MOST_LINES: Final = 2000
TURNS: Final = 5
MARK: Final = "made-by-the-demo.txt"
LOOSE: Final = "loose files"
FORMATS: Final = ("tar", "hdf5", "lmdb")
TRAINING: Final = TrainOptions(epochs=1, batch_size=32)


class LooseFiles(Dataset[tuple[Any, Any]]):
    """The images of a packed dataset from their own files, as torchvision's ImageFolder reads them."""

    def __init__(self, packed: PackedDataset, root: Path) -> None:
        # The rows of a packed dataset and not the lines of its list, since packing may have refused some.
        self.paths = [root / packed.filename(row) for row in range(len(packed))]
        self.targets = packed.targets.tolist()

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        with self.paths[row].open("rb") as file:
            image: Any = Image.open(file).convert("RGB")
        return image, self.targets[row]


Source = LooseFiles | PackedDataset


def main() -> None:
    """Runs the demo in a folder that git ignores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="where everything goes")
    out = parser.parse_args().out
    try:
        _demo(out)
    except (PacktrainError, OSError) as error:
        sys.exit(f"error: {error}")


def _demo(out: Path) -> None:
    _start_afresh(out)
    programs = os.path.relpath(Path(sys.executable).parent)
    print(f"Each step below is named by the command that does the same; the programs are in {programs}/.\n")
    source, root = _chosen_list(out)
    _warm_up(source, root, out / "warm-up")
    pack_rates = {name: _pack(name, source, root, out / name) for name in FORMATS}
    for name in FORMATS:
        _verify(out / name)
    packed = {name: open_dataset(out / name) for name in FORMATS}
    loose = LooseFiles(packed[FORMATS[0]], root)
    same = all(_same_pixels(loose, dataset) for dataset in packed.values())
    sources: dict[str, Source] = {LOOSE: loose, **packed}
    read_rates = _read_rates(sources)
    epochs = {name: _train(out / name, dataset) for name, dataset in packed.items()}
    same &= len({(epoch.loss, epoch.accuracy) for epoch in epochs.values()}) == 1
    _print_table(sources, pack_rates, read_rates, epochs)
    print(_remarks(same, packed[FORMATS[0]].decoder.version))


# --- the images ---


def _chosen_list(out: Path) -> tuple[Path, Path]:
    """The list to pack, and the folder that its paths start from."""
    given = os.environ.get("PACKTRAIN_IMAGES")
    if not given:
        return _make_photographs(out / "images"), out / "images"
    source = Path(given)
    lines = [line for line in source.read_bytes().splitlines(keepends=True) if line.strip()]
    print(f"PACKTRAIN_IMAGES={source}: {len(lines):,} lines", end="")
    if len(lines) <= MOST_LINES:
        print()
        return source, source.parent
    # Evenly spread, since a list is often sorted by class.
    chosen = [lines[len(lines) * number // MOST_LINES] for number in range(MOST_LINES)]
    print(f", of which the demo takes {MOST_LINES:,}")
    (out / "train.txt").write_bytes(b"".join(chosen))
    return out / "train.txt", source.parent


def _make_photographs(folder: Path) -> Path:
    """Cuts pieces of all sizes from the photographs; the label of a piece is the photograph. Returns the list."""
    source = _photograph_folder()
    folder.mkdir()
    lines = []
    for label, name in enumerate(PHOTOGRAPHS):
        random = np.random.default_rng(label)
        with Image.open(source / name) as photograph:
            for number in range(CROPS):
                path = f"{Path(name).stem}-{number:02}.jpg"
                _piece(photograph, random).save(
                    folder / path, quality=90, subsampling="4:4:4" if number % 2 else "4:2:0"
                )
                lines.append(f"{path} {label}\n")
    (folder / "train.txt").write_text("".join(lines))
    print(f"Made {len(lines)} JPEGs from {len(PHOTOGRAPHS)} photographs of scikit-image, and {folder / 'train.txt'}")
    return folder / "train.txt"


def _piece(photograph: Image.Image, random: np.random.Generator) -> Image.Image:
    """A random rectangle, mirrored or not, with 300 to 500 pixels on its longer side, as photographs of ImageNet."""
    width, height = (int(side * random.uniform(0.5, 1)) for side in photograph.size)
    left, top = int(random.integers(photograph.width - width + 1)), int(random.integers(photograph.height - height + 1))
    scale = random.uniform(300, 500) / max(width, height)
    size = round(width * scale), round(height * scale)
    piece = photograph.resize(size, Image.Resampling.BICUBIC, box=(left, top, left + width, top + height))
    return piece.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else piece


def _photograph_folder() -> Path:
    # Finding scikit-image instead of importing it: its dependencies are not installed.
    spec = importlib.util.find_spec("skimage")
    folders = spec.submodule_search_locations if spec else None
    if not folders:
        sys.exit(
            "The demo takes its photographs from scikit-image, which is not installed. Run `make demo`, or "
            "`python -m pip install --no-deps scikit-image`, or set PACKTRAIN_IMAGES to an image list of your own."
        )
    return Path(folders[0]) / "data"


# --- the steps ---


def _warm_up(source: Path, root: Path, folder: Path) -> None:
    """Imports what the formats need and brings the files into memory, so that the first format pays for neither."""
    options = [PackOptions(format=name, root=root) for name in FORMATS]
    folder.mkdir()
    for option in options:
        pack(source, folder / option.format, option)
    shutil.rmtree(folder)


def _pack(name: str, source: Path, root: Path, folder: Path) -> float:
    """Packs the list. Returns images/s."""
    elsewhere = [] if root == source.parent else ["--root", root]
    _announce("packtrain", "pack", source, folder, "--format", name, *elsewhere)
    options = PackOptions(format=name, root=root)
    start = time.perf_counter()
    report = pack(source, folder, options, workers=len(os.sched_getaffinity(0)))
    seconds = time.perf_counter() - start
    print(f"  {report.records:,} records, {report.rejects} lines refused, {seconds:.2f} s")
    return report.records / seconds


def _verify(folder: Path) -> None:
    _announce("packtrain", "verify", folder, "--decode")
    found = verify(folder, decode_images=True, workers=len(os.sched_getaffinity(0)))
    if found.problems:
        sys.exit("\n".join(f"{problem.file}: {problem.message}" for problem in found.problems))
    print(f"  {found.records:,} records checked and decoded, all is well")


def _read_rates(sources: dict[str, Source]) -> dict[str, float]:
    """Images/s of decoding all images one after the other in this process: the best of some turns."""
    print(f"\nReading and decoding all images, {TURNS} times in turn from {', '.join(sources)}", flush=True)
    seconds = dict.fromkeys(sources, float("inf"))
    for _ in range(TURNS):
        for name, dataset in sources.items():
            seconds[name] = min(seconds[name], _read_all(dataset))
    return {name: len(dataset) / seconds[name] for name, dataset in sources.items()}


def _read_all(dataset: Source) -> float:
    start = time.perf_counter()
    for row in range(len(dataset)):
        dataset[row]
    return time.perf_counter() - start


def _same_pixels(loose: LooseFiles, packed: PackedDataset) -> bool:
    return all(np.array_equal(loose[row][0], packed[row][0]) for row in range(len(packed)))


def _train(folder: Path, dataset: PackedDataset) -> EpochResult:
    _announce("python", "examples/lenet/train.py", folder, "--batch-size", TRAINING.batch_size)
    epoch = train(dataset, count_classes(dataset), TRAINING).epochs[-1]
    # Without its images/s, which would compare the first run in this process with later ones.
    print(f"  loss {epoch.loss:.3f}, accuracy {epoch.accuracy:.1%}")
    return epoch


def _print_table(
    sources: dict[str, Source],
    pack_rates: dict[str, float],
    read_rates: dict[str, float],
    epochs: dict[str, EpochResult],
) -> None:
    print(f"\n{'format':<12} {'bytes':>12} {'pack':>9} {'read':>9}   one epoch of LeNet")
    print(f"{'':<12} {'':>12} {'images/s':>9} {'images/s':>9} {'loss':>8} {'accuracy':>9}")
    for name, dataset in sources.items():
        pack_rate = f"{pack_rates[name]:,.0f}" if name in pack_rates else "-"
        loss, accuracy = (f"{epochs[name].loss:.3f}", f"{epochs[name].accuracy:.1%}") if name in epochs else ("-", "-")
        print(f"{name:<12} {_bytes(dataset):>12,} {pack_rate:>9} {read_rates[name]:>9,.0f} {loss:>8} {accuracy:>9}")


def _remarks(same: bool, decoder: str) -> str:
    return (
        "\npack: transcoded to crop-ready, checked and on the disk. read: whole images decoded one after the other,\n"
        f"from memory; the files by Pillow {PIL.__version__},\n"
        f"the datasets by {decoder} ({len(os.sched_getaffinity(0))} cores).\n"
        f"Pixels, loss and accuracy {'are the same' if same else 'DIFFER, WHICH IS A BUG'}; "
        "the pixels also as in the loose files.\n\n"
        "These images only drive the demo. It is no benchmark: for figures see benchmarks/README.md."
    )


def _bytes(dataset: Source) -> int:
    if isinstance(dataset, PackedDataset):
        return dataset.store.manifest.bytes
    return sum(path.stat().st_size for path in dataset.paths)


# --- small things ---


def _announce(*command: object) -> None:
    print(f"\n$ {shlex.join(map(str, command))}", flush=True)


def _start_afresh(out: Path) -> None:
    """Empties what an earlier demo has made, and nothing else."""
    if out.exists() and not (out / MARK).exists():
        sys.exit(f"error: {out} is there, and no earlier demo has made it; name another folder with --out")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / MARK).write_text("The next demo deletes this folder and all that is in it.\n")


if __name__ == "__main__":
    main()
