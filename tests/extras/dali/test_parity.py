"""Laws of DALI's pixels: on a CPU they are those of Loader, and on a GPU it is told to resize in the same way."""

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
from helpers.support import encoded, packed, picture
from PIL import Image

from packtrain import Loader, StoreOptions, open_dataset
from packtrain._codec.geometry import FILTERS, Box, Scale
from packtrain._codec.image_plan import ImagePlan
from packtrain._extras.dali.graph import inputs_of, resized
from packtrain._readers.dataset.image_dataset import samples_of
from packtrain._readers.transforms.undecoded import Undecoded
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

pytestmark = pytest.mark.complete
SUBSAMPLINGS = ("4:4:4", "4:2:2", "4:2:0", "4:1:1")
FLIPS = [RandomHorizontalFlip(), RandomVerticalFlip()]
CASES: dict[str, list[Any]] = {
    "random crop": [RandomResizedCrop(48), *FLIPS],
    "enlarged crop": [RandomResizedCrop(80, scale=(0.05, 0.1)), *FLIPS],
    "window": [Resize(72), CenterCrop(56), *FLIPS],
    "window at the edge": [Resize(56), CenterCrop(56)],
    "no resize": [RandomCrop(60), *FLIPS],
    **{name: [RandomResizedCrop(48, interpolation=name), *FLIPS] for name in sorted(FILTERS)},
}
STORES = {
    "crop-ready": StoreOptions(),
    "verbatim": StoreOptions("verbatim"),
    "jpeg": StoreOptions("jpeg", resize="short=90"),
}


@pytest.fixture(autouse=True)
def _dali() -> None:
    require_dali()


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
        encoded(picture(n, 120 + 7 * n, 100 + 3 * n), quality=90, subsampling=subsampling, progressive=progressive)
        for n, (subsampling, progressive) in enumerate(kinds)
    ]
    files.append(encoded(picture(20, 131, 117).convert("L")))
    return listed(tmp_path_factory.mktemp("photographs") / "source", files)


def batches(kind: type[Loader], dataset: Any, epochs: int = 3, **options: Any) -> list[tuple[torch.Tensor, ...]]:
    options = {"shuffle": True, "seed": 3, **({"num_workers": 0} if kind is Loader else {"num_threads": 2}), **options}
    with kind(dataset, 4, **options) as loader:
        return [batch for _ in range(epochs) for batch in loader]


def assert_same(dataset: Any) -> None:
    pairs = zip(batches(DaliLoader, dataset), batches(Loader, dataset), strict=True)
    for (found, labels), (expected, others) in pairs:
        assert torch.equal(labels, others)
        assert torch.equal(found, expected)
        assert found.stride() == expected.stride()


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("name", CASES)
def test_pixels_are_those_of_loader(name: str, store: str, photographs: Path, tmp_path: Path) -> None:
    out = packed(photographs, tmp_path / "out", "tar", store=STORES[store])
    assert_same(open_dataset(out, transform=CASES[name]))


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
        dataset = open_dataset(out, transform=[RandomCrop(12)])
        assert len(dataset) > 50
        assert_same(dataset)


@pytest.mark.parametrize("name", ["box", "hamming"])
def test_filters_that_dali_lacks_on_a_gpu_are_named(name: str) -> None:
    plan = ImagePlan(Box(0, 0, 9, 9), Scale(5, 5, FILTERS[name]), None, mirrored=False, rest=())
    with pytest.raises(UsageError, match=f"{name}.*bilinear"):
        inputs_of([Undecoded(encoded(picture(1, 9, 9)), plan)], resizes=True)


def resized_by_dali(images: Sequence[Undecoded], width: int, height: int) -> torch.Tensor:
    """Runs on a CPU the part of the graph that is for a GPU: uint8 [images, height, width, 3]."""
    from nvidia.dali import Pipeline, fn, types

    pipeline = Pipeline(len(images), 1, None)
    with pipeline:
        data, start, shape, roi_start, roi_end, filters, mirrored, flipped = fn.external_source(
            source=[inputs_of(images, resizes=True)], num_outputs=8
        )
        decoded = fn.decoders.image(data, device="cpu", output_type=types.RGB, adjust_orientation=False)
        rectangle = {"start": start, "shape": shape, "axes": [0, 1]}
        pipeline.set_outputs(
            resized(decoded, rectangle, (roi_start, roi_end, filters, mirrored, flipped), (width, height))
        )
    return torch.from_numpy(np.array(pipeline.run()[0].as_tensor()))


def test_what_a_gpu_is_told_makes_nearly_the_same_pixels(photographs: Path, tmp_path: Path) -> None:
    """DALI repeats the pixels at the edge, where Pillow leaves out what lies beyond it."""
    for number, name in enumerate(("random crop", "window", "no resize", "bicubic")):
        out = packed(photographs, tmp_path / str(number), "tar")
        dataset = open_dataset(out, transform=CASES[name])
        samples = samples_of(dataset)
        assert samples is not None
        undecoded = samples.undecoded()
        random = np.random.default_rng(number).random((len(dataset), samples.draws)).tolist()
        images = [undecoded.make(row, random[row], finish=False)[0] for row in range(len(dataset))]
        expected = torch.stack([samples.make(row, random[row], finish=False)[0] for row in range(len(dataset))])
        found = resized_by_dali(images, *images[0].size).permute(0, 3, 1, 2)
        apart = (found.int() - expected.int()).abs()
        assert int(apart[..., 2:-2, 2:-2].max()) <= (0 if name == "no resize" else 3)
        assert float(apart.float().mean()) < 0.5
