"""Laws of DALI's pixels: they are those of Loader, within the tolerance that the module of the engine states."""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import corpus
from helpers.dali import require_dali
from helpers.jpegs import ARITHMETIC, any_jpeg
from helpers.support import FORMATS, encoded, packed, picture
from PIL import Image

from packtrain import Loader, StoreOptions, open_dataset
from packtrain.dali import DaliLoader
from packtrain.errors import UsageError
from packtrain.transforms import (
    CenterCrop,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)

SUBSAMPLINGS = ("4:4:4", "4:2:2", "4:2:0", "4:1:1")
FLIPS = [RandomHorizontalFlip(), RandomVerticalFlip()]
# Transform; how many pixels at the edge may differ by more; largest difference elsewhere.
CASES: dict[str, tuple[list[Any], int, int]] = {
    "random crop": ([RandomResizedCrop(48), *FLIPS], 1, 1),
    "enlarged crop": ([RandomResizedCrop(80, scale=(0.05, 0.1)), *FLIPS], 0, 1),
    "window": ([Resize(72), CenterCrop(56), *FLIPS], 0, 1),
    "window at the edge": ([Resize(56), CenterCrop(56)], 1, 1),
    "no resize": ([RandomCrop(60), *FLIPS], 0, 0),
    "bicubic": ([RandomResizedCrop(48, interpolation="bicubic"), *FLIPS], 2, 1),
    "lanczos": ([RandomResizedCrop(48, interpolation="lanczos"), *FLIPS], 3, 1),
}
STORES = {
    "crop-ready": StoreOptions(),
    "verbatim": StoreOptions("verbatim"),
    "jpeg": StoreOptions("jpeg", resize="short=90"),
}


@pytest.fixture(autouse=True)
def _dali() -> None:
    require_dali()


def medium(seed: int, width: int, height: int) -> Image.Image:
    """A picture without black or white, at which Pillow clips between the two passes of a resize."""
    return picture(seed, width, height).point(lambda value: 64 + value // 2)


def listed(folder: Path, files: Sequence[bytes]) -> Path:
    folder.mkdir()
    for number, data in enumerate(files):
        (folder / f"{number}.img").write_bytes(data)
    (folder / "train.txt").write_text("".join(f"{number}.img {number % 3}\n" for number in range(len(files))))
    return folder / "train.txt"


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kinds = itertools.product(SUBSAMPLINGS, (False, True))
    files = [
        encoded(medium(n, 120 + 7 * n, 100 + 3 * n), quality=90, subsampling=subsampling, progressive=progressive)
        for n, (subsampling, progressive) in enumerate(kinds)
    ]
    files.append(encoded(medium(20, 131, 117).convert("L")))
    return listed(tmp_path_factory.mktemp("photographs") / "source", files)


def batches(kind: type[Loader], dataset: Any, epochs: int = 3, **options: Any) -> list[tuple[torch.Tensor, ...]]:
    options = {"shuffle": True, "seed": 3, **({"num_workers": 0} if kind is Loader else {"num_threads": 2}), **options}
    with kind(dataset, 4, **options) as loader:
        return [batch for _ in range(epochs) for batch in loader]


def assert_close(found: torch.Tensor, expected: torch.Tensor, edge: int, most: int) -> None:
    assert found.dtype == expected.dtype and found.shape == expected.shape and found.stride() == expected.stride()
    apart = (found.int() - expected.int()).abs()
    inner = apart[..., edge : apart.shape[2] - edge, edge : apart.shape[3] - edge]
    assert int(inner.max()) <= most
    assert float(apart.float().mean()) < 0.5


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("name", CASES)
def test_pixels_are_those_of_loader(name: str, store: str, photographs: Path, tmp_path: Path) -> None:
    transform, edge, most = CASES[name]
    dataset = open_dataset(packed(photographs, tmp_path / "out", "tar", store=STORES[store]), transform=transform)
    pairs = zip(batches(DaliLoader, dataset), batches(Loader, dataset), strict=True)
    for (found, labels), (expected, others) in pairs:
        assert torch.equal(labels, others)
        assert_close(found, expected, edge, most)


def test_nearest_differs_only_on_the_border_of_two_pixels(photographs: Path, tmp_path: Path) -> None:
    transform = [RandomResizedCrop(48, interpolation="nearest"), *FLIPS]
    dataset = open_dataset(packed(photographs, tmp_path / "out", "tar", store=StoreOptions()), transform=transform)
    pairs = zip(batches(DaliLoader, dataset, 10), batches(Loader, dataset, 10), strict=True)
    differ = [(found != expected).float().mean() for (found, _), (expected, _) in pairs]
    assert float(torch.stack(differ).mean()) < 0.05


@pytest.mark.parametrize("format_name", FORMATS)
def test_formats_make_no_difference(format_name: str, photographs: Path, tmp_path: Path) -> None:
    out = packed(photographs, tmp_path / "out", format_name, store=StoreOptions())
    dataset = open_dataset(out, transform=CASES["random crop"][0])
    for (found, _), (expected, _) in zip(batches(DaliLoader, dataset), batches(Loader, dataset), strict=True):
        assert_close(found, expected, 1, 1)


def test_no_kind_of_image_gives_other_pixels(tmp_path: Path) -> None:
    photograph = picture(1, 60, 50)
    random = np.random.default_rng(0)
    transparent = np.asarray(photograph.convert("RGBA")).copy()
    transparent[..., 3] = random.integers(0, 256, transparent.shape[:2])
    oriented = Image.Exif()
    oriented[corpus.ORIENTATION] = 6
    files = [
        *corpus.jpegs(),
        *corpus.pngs(),
        encoded(corpus.wide_grey(), "PNG"),
        *ARITHMETIC.values(),
        *(any_jpeg(random)[1] for _ in range(20)),
        encoded(photograph.convert("CMYK")),
        encoded(Image.fromarray(transparent), "PNG"),
        encoded(photograph, "PNG", transparency=(1, 2, 3)),
        encoded(photograph.quantize(12), "PNG", transparency=3, bits=4),
        *(encoded(photograph, each) for each in ("GIF", "BMP", "TIFF", "PPM")),
        encoded(photograph.quantize(64), "TIFF"),
        encoded(photograph, "TIFF", exif=oriented),
        encoded(photograph) + b"behind it",
    ]
    files = [data for data in files if min(Image.open(io.BytesIO(data)).size) >= 12]
    listing = listed(tmp_path / "source", files)
    for store in ("verbatim", "crop-ready"):
        out = packed(listing, tmp_path / store, "tar", store=StoreOptions(store), max_rejects="20%")
        # Without a resize, nothing is to differ.
        dataset = open_dataset(out, transform=[RandomCrop(12)])
        assert len(dataset) > 50
        for (found, _), (expected, _) in zip(batches(DaliLoader, dataset), batches(Loader, dataset), strict=True):
            assert torch.equal(found, expected)


@pytest.mark.parametrize("name", ["box", "hamming"])
def test_filters_that_dali_lacks_are_named(name: str, photographs: Path, tmp_path: Path) -> None:
    dataset = open_dataset(
        packed(photographs, tmp_path / "out", "tar"), transform=[RandomResizedCrop(32, interpolation=name)]
    )
    with pytest.raises(UsageError, match=f"{name}.*bilinear"):
        batches(DaliLoader, dataset)
