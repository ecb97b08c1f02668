"""Laws of images that are decoded in the consumer's process: batches are those that workers decode."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.gpu_decoding import Engine, Fake, decoding
from helpers.lazily import consumed, lazy
from helpers.support import packed
from PIL import Image
from typing_extensions import Buffer

from packtrain import Loader, index_shards, open_dataset
from packtrain._codec.resizing import style
from packtrain._core.options import StoreOptions
from packtrain._readers.loader.decoding import BatchDecoder, ImageDecoder
from packtrain._readers.loader.samples import SampleMaker
from packtrain.errors import CorruptRecord, LoaderError
from packtrain.transforms import CenterCrop, RandomHorizontalFlip, RandomResizedCrop, RandomVerticalFlip, Resize

TRAIN = [RandomResizedCrop(24), RandomHorizontalFlip(), RandomVerticalFlip(0.3)]
VAL = [Resize(30), CenterCrop(24)]
# A Pillow that rounds weights to 16 bits, and twice at that.
DEVIATION = 0 if style() == 1 else 2
ROWS = 12


def encoded(number: int) -> tuple[str, bytes]:
    noise = np.random.default_rng(number)
    small = noise.integers(0, 256, (6, 8, 3), np.uint8)
    image = Image.fromarray(small).resize((40 + 3 * number, 60 - 2 * number), Image.Resampling.BICUBIC)
    memory = io.BytesIO()
    if number % 5 == 3:
        image.save(memory, "PNG")
        return "png", memory.getvalue()
    image.save(memory, "JPEG", progressive=number % 4 == 1, quality=90)
    return "jpg", memory.getvalue()


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    lines = []
    for number in range(ROWS):
        kind, data = encoded(number)
        (folder / f"{number}.{kind}").write_bytes(data)
        lines.append(f"{number}.{kind} {number}\n")
    (folder / "train.txt").write_text("".join(lines))
    return folder / "train.txt"


@pytest.mark.parametrize("fails", [False, True])
def test_queued_work_is_waited_for_before_decoding_and_after_it(fails: bool) -> None:
    done: list[str] = []

    class Decoder(ImageDecoder):
        def decode(self, data: Sequence[Buffer]) -> Sequence[torch.Tensor | None]:
            done.append("decode")
            if fails:
                raise LoaderError("no memory")
            return [None] * len(data)

    decoder = BatchDecoder(lambda _: Decoder(), lambda: done.append("wait"), torch.device("cpu"))
    with pytest.raises(LoaderError) if fails else nullcontext():
        assert decoder.decode([b"", b""]) == [None, None]
    assert done == ["wait", "decode", "wait"]


@pytest.fixture(scope="module", params=["crop-ready", "verbatim", "indexed"])
def folder(request: pytest.FixtureRequest, listing: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out")
    if request.param != "indexed":
        store = StoreOptions() if request.param == "crop-ready" else StoreOptions("verbatim")
        return packed(listing, out / "set", "tar", store=store, seed=None)
    with tarfile.open(out / "a.tar", "w") as tar:
        for number in range(ROWS):
            kind, data = encoded(number)
            for suffix, content in ((kind, data), ("cls", str(number).encode())):
                member = tarfile.TarInfo(f"{number:03}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    index_shards([out / "a.tar"], out / "index")
    return out / "index"


def loaded(folder: Path, transform: Any = TRAIN, **options: Any) -> Loader:
    options = {"shuffle": True, "seed": 3, "num_workers": 0, **options}
    return Loader(open_dataset(folder, transform=transform), 5, **options)


def assert_alike(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for (images, labels), (others, same) in zip(found, expected, strict=True):
        assert torch.equal(labels, same)
        assert images.dtype == others.dtype and images.stride() == others.stride() and images.shape == others.shape
        assert (images.int() - others.int()).abs().max() <= DEVIATION


# --- the batches ---


@pytest.mark.parametrize("transform", [TRAIN, VAL], ids=["train", "val"])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_those_of_the_workers(folder: Path, transform: Any, workers: int) -> None:
    expected = list(loaded(folder, transform))
    with decoding(Fake()), loaded(folder, transform, decode="cuda", num_workers=workers) as loader:
        assert_alike(list(loader), expected)
        assert loader.stats.present.refused == 0


def test_what_the_decoder_refuses_is_decoded_by_the_cpu(folder: Path) -> None:
    expected = list(loaded(folder))
    with decoding(Fake(lambda number: number % 3 == 1)), loaded(folder, decode="cuda") as loader:
        with pytest.warns(RuntimeWarning, match=r"the GPU refused an image.*row \d+") as warned:
            assert_alike(list(loader), expected)
        assert len(warned) == loader.stats.present.refused == ROWS // 3
        assert loader.skipped == 0


def test_at_most_ten_warnings(folder: Path) -> None:
    with decoding(Fake(lambda number: True)), loaded(folder, decode="cuda") as loader:
        with pytest.warns(RuntimeWarning) as warned:
            list(loader)
        assert (len(warned), loader.stats.present.refused) == (10, ROWS)


def test_an_image_that_is_replayed_is_refused_once(folder: Path) -> None:
    dataset = open_dataset(folder, transform=TRAIN)
    with (
        decoding(Fake(lambda number: number == 0)),
        Loader(dataset, 1, num_workers=0, decode="cuda") as loader,
        loader.headspace(),
    ):
        with pytest.warns(RuntimeWarning, match="refused"):
            list(loader)
        assert (loader.stats.total.samples, loader.stats.total.refused) == (ROWS, 1)


class Wrong(Fake):
    """Decodes the first image to fewer pixels than it has."""

    def decode(self, data: Any) -> list[torch.Tensor | None]:
        found = super().decode(data)
        assert found[0] is not None
        return [found[0][:1, :1], *found[1:]]


def test_pixels_of_another_size_are_not_used(folder: Path) -> None:
    expected = list(loaded(folder))
    with decoding(Wrong()), loaded(folder, decode="cuda") as loader, pytest.warns(RuntimeWarning, match="refused"):
        assert_alike(list(loader), expected)


# --- damaged records ---


@pytest.fixture
def damage(monkeypatch: pytest.MonkeyPatch) -> Callable[[set[int]], None]:
    """Makes the CPU refuse the images of some rows."""

    def damaged(rows: set[int]) -> None:
        sound = SampleMaker.pixels

        def pixels(self: SampleMaker, row: int, data: Any) -> Any:
            if row in rows:
                raise self.undecodable(row, ValueError("no such luck"))
            return sound(self, row, data)

        monkeypatch.setattr(SampleMaker, "pixels", pixels)

    return damaged


def test_a_damaged_record_is_an_error_at_its_batch(folder: Path, damage: Callable[[set[int]], None]) -> None:
    damage({7})
    with decoding(Fake(lambda number: number == 7)), loaded(folder, decode="cuda", shuffle=False) as loader:
        batches = iter(loader)
        assert next(batches)[1].tolist() == [0, 1, 2, 3, 4]
        with pytest.raises(CorruptRecord, match=r"row 7\b.*no such luck") as raised:
            next(batches)
        assert raised.value.row == 7


@pytest.mark.parametrize("refused", [{7}, {0, 4, 11}, {5, 6, 7, 8, 9}])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_record_is_left_out(
    folder: Path, damage: Callable[[set[int]], None], refused: set[int], workers: int
) -> None:
    damage(refused)
    options: dict[str, Any] = {"shuffle": False, "fields": ("row", "position", "path")}
    expected = list(loaded(folder, **options))
    with (
        decoding(Fake(lambda number: number in refused)),
        loaded(folder, decode="cuda", on_error="skip", num_workers=workers, **options) as loader,
    ):
        with pytest.warns(RuntimeWarning, match="left out: .*no such luck"):
            found = list(loader)
        assert loader.skipped == loader.stats.present.skipped == len(refused)
        assert loader.stats.present.samples == ROWS - len(refused)
    kept = [[n for n, row in enumerate(batch[2].tolist()) if row not in refused] for batch in expected]
    expected = [
        tuple(each[some] if isinstance(each, torch.Tensor) else [each[n] for n in some] for each in batch)
        for batch, some in zip(expected, kept, strict=True)
        if some
    ]
    assert_alike([batch[:2] for batch in found], [batch[:2] for batch in expected])
    for one, other in zip(found, expected, strict=True):
        assert all(torch.equal(left, right) for left, right in zip(one[2:4], other[2:4], strict=True))
        assert one[4] == other[4]


# --- the device ---


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of one size, so that the memory of one may become that of another."""
    folder = tmp_path_factory.mktemp("alike")
    for number in range(ROWS):
        pixels = np.random.default_rng(number).integers(0, 256, (20, 24, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    (folder / "train.txt").write_text("".join(f"{number}.png {number}\n" for number in range(ROWS)))
    return packed(folder / "train.txt", folder / "set", "tar", seed=None)


def never(count: int) -> int:
    return 0


def always(count: int) -> int:
    return count - 1


@pytest.mark.complete
@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("policy", [never, always], ids=["late", "early"])
def test_decoded_memory_is_not_overwritten(alike: Path, policy: Any, workers: int, at_once: bool) -> None:
    expected = list(loaded(alike))
    with lazy(policy, inline=always) as device:
        engine = Engine(device, at_once=at_once)
        with (
            decoding(engine, device.synchronize),
            loaded(alike, decode="cuda", device="cuda", num_workers=workers, multiprocessing_context="fork") as loader,
        ):
            assert_alike(consumed(device, loader, 1, policy), expected)


@pytest.mark.complete
def test_a_decoder_that_is_not_waited_for_overwrites_memory(alike: Path) -> None:
    """Shows that the fake device would tell."""
    expected = list(loaded(alike))
    with (
        lazy(never, inline=always) as device,
        decoding(Engine(device, at_once=True)),
        loaded(alike, decode="cuda", device="cuda", num_workers=2, multiprocessing_context="fork") as loader,
    ):
        found = consumed(device, loader, 1, never)
    with pytest.raises(AssertionError):
        assert_alike(found, expected)
