"""Laws of the decoders that use a GPU, as far as they can be had without one, and tests for a GPU."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.gpu_decoding import pillow_pixels
from helpers.support import packed
from PIL import Image

from packtrain import Loader, open_dataset
from packtrain._core.options import StoreOptions
from packtrain._readers.loader import cuda_decoder
from packtrain._readers.loader.cuda_decoder import NvImageCodec, decode_of, require_codec
from packtrain._readers.loader.decoding import BatchDecoder
from packtrain.errors import LoaderError, MissingDependency, UsageError
from packtrain.transforms import RandomHorizontalFlip, RandomResizedCrop

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def encoded(kind: str = "JPEG", *, grey: bool = False, **options: Any) -> bytes:
    small = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
    image = Image.fromarray(small).resize((53, 41), Image.Resampling.BICUBIC)
    memory = io.BytesIO()
    (image.convert("L") if grey else image).save(memory, kind, **options)
    return memory.getvalue()


def pictures() -> list[bytes]:
    turned = Image.Exif()
    turned[0x0112] = 6
    return [
        encoded(),
        encoded(progressive=True),
        encoded(grey=True),
        encoded(subsampling=0),
        encoded(exif=turned.tobytes()),
    ]


RUBBISH = [b"rubbish" * 20, b"", encoded()[:200]]


@pytest.mark.parametrize(
    ("version", "words"), [(None, "is not installed"), ("0.6.1", "0.6.1 is too old"), ("odd", "odd is too old")]
)
@pytest.mark.parametrize(("cuda", "package"), [("12.8", "cu12"), ("13.0", "cu13"), (None, "cu12")])
def test_without_a_sound_codec_the_message_says_what_to_install(
    version: str | None, words: str, cuda: str | None, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_decoder, "_version", lambda package: version)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    with pytest.raises(MissingDependency, match=words) as raised:
        decode_of("cuda", GPU)
    assert f"pip install -U 'nvidia-nvimgcodec-{package}[nvjpeg]'" in str(raised.value)


@pytest.mark.parametrize("version", ["0.7.0", "0.9.0.20", "1.0"])
def test_later_versions_are_accepted(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_decoder, "_version", lambda package: version)
    assert require_codec() == version and decode_of("cuda", GPU) is not None


@pytest.mark.parametrize("device", [None, CPU])
def test_a_gpu_decodes_only_what_goes_to_it(device: torch.device | None) -> None:
    with pytest.raises(UsageError, match="needs device='cuda'"):
        decode_of("cuda", device)
    assert decode_of("cpu", device) is None
    with pytest.raises(UsageError, match="decode='gpu'"):
        decode_of("gpu", device)  # type: ignore[arg-type]


def test_the_decoder_is_made_when_it_is_used_and_does_not_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    lazily = BatchDecoder(Counting, nothing, CPU)
    Counting.made = 0
    assert pickle.loads(pickle.dumps(lazily)) and Counting.made == 0
    for _ in range(2):
        assert lazily.decode([b""]) == [None]
    assert Counting.made == 1
    pickle.loads(pickle.dumps(lazily)).decode([])
    assert Counting.made == 2


@pytest.mark.parametrize("kind", [ImportError, OSError, RuntimeError])
def test_a_decoder_that_cannot_be_made_is_the_loaders_failure(kind: type[Exception]) -> None:
    def make(device: torch.device) -> Any:
        raise kind("libnvjpeg.so.12: cannot open shared object file")

    with pytest.raises(LoaderError, match=r"libnvjpeg.so.12.*packtrain doctor.*decode='cpu'"):
        BatchDecoder(make, nothing, CPU).decode([b""])


def nothing() -> None:
    pass


class Counting:
    made = 0

    def __init__(self, device: torch.device) -> None:
        type(self).made += 1

    def decode(self, data: Any) -> list[Any]:
        return [None] * len(data)


# --- nvImageCodec's own CPU decoders: the calls are those for a GPU ---


@pytest.fixture
def codec() -> NvImageCodec:
    pytest.importorskip("nvidia.nvimgcodec", reason="nvImageCodec is not installed")
    return NvImageCodec(CPU)


@pytest.mark.complete
class TestNvImageCodecOnTheCpu:
    def test_pixels_are_pillows(self, codec: NvImageCodec) -> None:
        images = [*pictures(), encoded("PNG"), encoded("BMP")]
        for data, pixels in zip(images, codec.decode([memoryview(each) for each in images]), strict=True):
            assert pixels is not None and torch.equal(pixels, pillow_pixels(data))

    def test_what_is_refused_spoils_no_other(self, codec: NvImageCodec) -> None:
        good = pictures()[0]
        found = codec.decode([good, *RUBBISH, good])
        assert [pixels is None for pixels in found] == [False, True, True, True, False]
        assert codec.decode(RUBBISH[:1]) == [None]

    def test_its_own_failure_is_the_loaders(self, codec: NvImageCodec) -> None:
        class Failing:
            def decode(self, *_: Any, **__: Any) -> Any:
                raise RuntimeError("CUDA Runtime failure: '#2'")

        codec._decoder = Failing()
        with pytest.raises(LoaderError, match=r"'#2'.*smaller batch"):
            codec.decode(pictures())

    def test_its_version_is_sound(self, codec: NvImageCodec) -> None:
        assert require_codec()


# --- a GPU ---

needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")]
TRAIN = [RandomResizedCrop(64), RandomHorizontalFlip()]


@pytest.fixture
def decoder() -> NvImageCodec:
    pytest.importorskip("nvidia.nvimgcodec")
    return NvImageCodec(GPU)


@pytest.fixture(scope="module")
def folder(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(images, tmp_path_factory.mktemp("gpu") / "set", "tar", store=StoreOptions())


class TestOnAGpu:
    pytestmark = needs_gpu

    def test_pixels_are_nearly_pillows(self, decoder: NvImageCodec) -> None:
        for data, pixels in zip(pictures(), decoder.decode(pictures()), strict=True):
            assert pixels is not None and pixels.is_cuda
            deviation = (pixels.cpu().int() - pillow_pixels(data).int()).abs()
            assert deviation.float().mean() < 2

    def test_what_is_refused_spoils_no_other(self, decoder: NvImageCodec) -> None:
        good = pictures()[0]
        found = decoder.decode([good, *RUBBISH[:2], good])
        assert [pixels is None for pixels in found] == [False, True, True, False]
        assert found[0] is not None and found[3] is not None and torch.equal(found[0], found[3])

    def test_memory_that_queued_work_reads_is_not_overwritten(self) -> None:
        """As in meta-pytorch/torchcodec#1634. Without waiting, this fails on some GPUs only."""
        batches = decode_of("cuda", GPU)
        assert batches is not None
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            for _ in range(100):
                torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]
                found = batches.decode([encoded(), encoded(grey=True)] * 8)
                before = [each.clone() for each in found if each is not None]
                torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]
                sums = torch.stack([each.long().sum() for each in found if each is not None])
                del found
                batches.decode([encoded(subsampling=0)] * 16)
                assert sums.tolist() == [int(each.long().sum()) for each in before]

    @pytest.mark.parametrize("workers", [0, 2])
    def test_batches_are_nearly_those_of_the_cpu(self, folder: Path, workers: int) -> None:
        options: dict[str, Any] = {"shuffle": True, "seed": 1, "num_workers": workers}
        dataset = open_dataset(folder, transform=TRAIN)
        expected = list(Loader(dataset, 4, **options))
        with Loader(dataset, 4, decode="cuda", device="cuda", **options) as loader:
            for (images, labels), (others, same) in zip(loader, expected, strict=True):
                assert images.is_cuda and images.stride() == others.stride()
                assert torch.equal(labels.cpu(), same)
                assert (images.cpu().int() - others.int()).abs().float().mean() < 6

    def test_memory_is_flat(self, folder: Path) -> None:
        with Loader(open_dataset(folder, transform=TRAIN), 4, decode="cuda", device="cuda", num_workers=2) as loader:
            free = []
            for _ in range(30):
                for images, _ in loader:
                    images.float().sum()
                del images
                torch.cuda.synchronize()
                # All of the GPU's memory, because a decoder has some of its own.
                free.append(torch.cuda.mem_get_info()[0])
        assert min(free[15:]) >= min(free[:15]) - 2**24
