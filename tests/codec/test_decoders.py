"""Laws of the decoders: whatever is installed and chosen, the pixels are Pillow's.

The oracle of them all is a full decode, ``Image.open(...).convert(mode)``, sliced as an array.
"""

from __future__ import annotations

import base64
import io
import pickle
import struct
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from helpers.jpegs import scan_bomb
from helpers.support import encoded, picture
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from packtrain._codec import decoders, native
from packtrain._codec import pixels as conversions
from packtrain._codec.decoders import DECODERS, Decoder, candidates, decoder
from packtrain._codec.decoders.base import BackEnd, Encoded
from packtrain._codec.decoders.selfcheck import deviation, sampled, samples
from packtrain._codec.geometry import Box
from packtrain._codec.jpeg_markers import frame_header
from packtrain._codec.pixels import array_from_image, rgb_image
from packtrain._core.installing import build_command, extra_command
from packtrain.errors import MissingDependency, UsageError

BACK_ENDS = tuple(name for name in DECODERS if name not in ("auto", "pillow"))
SAMPLINGS = {"4:4:4": (1, 1), "4:2:2": (2, 1), "4:2:0": (2, 2), "4:4:0": (1, 2), "4:1:1": (4, 1)}
SCALES = (2, 4, 8)


def colour(sampling: str, columns: int, rows: int, trim: tuple[int, int], seed: int = 0) -> bytes:
    """A colour JPEG of this many MCUs, without the last `trim` pixels at the right and the bottom."""
    across, down = SAMPLINGS[sampling]
    blocks = columns * rows * (across * down + 2)
    grey = encoded(picture(seed, 8 * blocks, 8, "L"), quality=95)
    return sampled(grey, (across, down), 8 * across * columns - trim[0], 8 * down * rows - trim[1])


def sources() -> dict[str, bytes]:
    found = {}
    for number, (name, (across, down)) in enumerate(SAMPLINGS.items()):
        found[name] = colour(name, 7, 9, (0, 0), number)
        found[f"{name}, odd"] = colour(name, 7, 5, (5, 3), number)
        found[f"{name}, one pixel"] = colour(name, 1, 1, (8 * across - 1, 8 * down - 1), number)
    photo = picture(1, 101, 67)
    turned = Image.Exif()
    turned[0x0112] = 6
    cmyk = encoded(photo.convert("CMYK"))
    transform = cmyk.index(b"Adobe") + 11
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (67, 101, 3), np.uint8))
    found |= {
        "noise": encoded(noise, quality=30),
        "grey": encoded(photo.convert("L")),
        "progressive": encoded(photo, progressive=True, quality=98, subsampling=0),
        "progressive 4:2:0": encoded(photo, progressive=True),
        "progressive grey": encoded(photo.convert("L"), progressive=True),
        "restarts": encoded(photo, restart_marker_blocks=2),
        "stored as RGB": encoded(photo, keep_rgb=True),
        "with EXIF and ICC": encoded(photo, exif=turned, icc_profile=b"colours" * 9000),
        "CMYK": cmyk,
        "YCCK": cmyk[:transform] + b"\2" + cmyk[transform + 1 :],
        "two pictures": encoded(photo, "MPO", save_all=True, append_images=[photo.rotate(90)]),
    }
    return found


def others() -> dict[str, bytes]:
    """Files that are not JPEGs."""
    photo = picture(2, 45, 31)
    clear = photo.convert("RGBA")
    clear.putalpha(photo.convert("L"))
    return {
        "PNG": encoded(photo, "PNG"),
        "PNG with alpha": encoded(clear, "PNG"),
        "PNG of 16 bits": encoded(Image.fromarray(np.asarray(photo.convert("L")).astype(np.uint16) * 3), "PNG"),
        "palette": encoded(photo.convert("P"), "GIF"),
        "black and white": encoded(photo.convert("1"), "TIFF"),
    }


SOURCES, OTHERS = sources(), others()


def oracle(data: bytes, mode: str) -> npt.NDArray[np.uint8]:
    """Pillow's full decode, [height, width] or [height, width, 3]."""
    return np.asarray(Image.open(io.BytesIO(data)).convert(mode))


def scaled_oracle(data: bytes, mode: str, scale: int) -> npt.NDArray[np.uint8]:
    image = Image.open(io.BytesIO(data))
    image.draft(None, (image.width // scale, image.height // scale))
    return np.asarray(image.convert(mode))


def pixels(image: Image.Image, mode: str) -> npt.NDArray[np.uint8]:
    assert image.mode == mode or (image.mode, mode) == ("RGBX", "RGB")
    array = np.asarray(image)
    return array if array.ndim == 2 else array[..., :3]


def boxes(width: int, height: int) -> Iterator[Box]:
    yield Box(0, 0, width, height)
    yield Box(0, 0, 1, 1)
    yield Box(width - 1, height - 1, 1, 1)
    yield Box(width // 3, 0, max(1, width // 3), height)
    yield Box(0, height // 3, width, max(1, height // 2))
    yield Box(width // 2, height // 2, width - width // 2, height - height // 2)


def cropped(array: npt.NDArray[np.uint8], box: Box) -> npt.NDArray[np.uint8]:
    return array[box.top : box.top + box.height, box.left : box.left + box.width]


class StandIn:
    """`accimage.Image` on top of Pillow: it has the interface of the original, not its pixels."""

    channels = 3

    def __init__(self, path: object) -> None:
        assert type(path) is bytes, "it takes a path or bytes, no other buffer"
        image = Image.open(io.BytesIO(path))
        if image.format != "JPEG" or image.mode == "CMYK":
            raise OSError("JPEG decoding failed: Unsupported color conversion request on buffer")
        self._image = image.convert("RGB")

    @property
    def width(self) -> int:
        return self._image.width

    @property
    def height(self) -> int:
        return self._image.height

    def crop(self, box: tuple[int, int, int, int]) -> StandIn:
        left, upper, right, lower = box
        if not (0 <= left < right <= self.width and 0 <= upper < lower <= self.height):
            raise ValueError("coordinate (%d) extends beyond image")
        self._image = self._image.crop(box)
        return self

    def copyto(self, buffer: Any) -> None:
        memoryview(buffer)[:] = np.asarray(self._image).transpose(2, 0, 1).tobytes()


def stand_in_accimage(monkeypatch: pytest.MonkeyPatch, image: type) -> None:
    module = ModuleType("accimage")
    module.Image = image  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "accimage", module)
    forget(monkeypatch, "accimage")


def forget(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Makes the next import of a decoder's module import it again, now and after the test."""
    module = f"{decoders.__name__}.{name}"
    monkeypatch.setitem(sys.modules, module, ModuleType(module))
    del sys.modules[module]


@pytest.fixture(params=DECODERS)
def each(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Decoder:
    """Every decoder that is installed, and the stand-in for accimage."""
    name: str = request.param
    if name == "accimage":
        stand_in_accimage(monkeypatch, StandIn)
    try:
        return decoder(name)
    except MissingDependency as error:
        pytest.skip(str(error))


@pytest.mark.product
@pytest.mark.parametrize("mode", ["RGB", "L"])
class TestPixels:
    @pytest.mark.parametrize("source", SOURCES)
    def test_a_rectangle_is_that_of_the_full_decode(self, each: Decoder, source: str, mode: str) -> None:
        data, whole = SOURCES[source], oracle(SOURCES[source], mode)
        assert np.array_equal(pixels(each.decode(data, mode), mode), whole)
        for box in boxes(whole.shape[1], whole.shape[0]):
            assert np.array_equal(pixels(each.decode(data, mode, box), mode), cropped(whole, box)), box

    @pytest.mark.parametrize("scale", SCALES)
    @pytest.mark.parametrize("source", [name for name in SOURCES if "one pixel" not in name])
    def test_a_scaled_image_is_what_draft_gives(self, each: Decoder, source: str, mode: str, scale: int) -> None:
        data, whole = SOURCES[source], scaled_oracle(SOURCES[source], mode, scale)
        height, width = oracle(data, mode).shape[:2]
        assert whole.shape[:2] == (-(-height // scale), -(-width // scale))
        assert np.array_equal(pixels(each.decode(data, mode, None, scale), mode), whole)
        for box in boxes(whole.shape[1], whole.shape[0]):
            assert np.array_equal(pixels(each.decode(data, mode, box, scale), mode), cropped(whole, box)), box

    @pytest.mark.parametrize("scale", SCALES)
    def test_one_pixel_stays_one_pixel(self, each: Decoder, mode: str, scale: int) -> None:
        for name in SAMPLINGS:
            assert each.decode(SOURCES[f"{name}, one pixel"], mode, None, scale).size == (1, 1)

    @pytest.mark.parametrize("source", OTHERS)
    def test_other_formats_are_decoded_too(self, each: Decoder, source: str, mode: str) -> None:
        data, whole = OTHERS[source], oracle(OTHERS[source], mode)
        for box in boxes(whole.shape[1], whole.shape[0]):
            assert np.array_equal(pixels(each.decode(data, mode, box), mode), cropped(whole, box)), box
        for scale in SCALES:
            mean = np.asarray(Image.fromarray(whole).reduce(scale))
            assert np.array_equal(pixels(each.decode(data, mode, None, scale), mode), mean)
            box = Box(1, 1, 2, 2)
            assert np.array_equal(pixels(each.decode(data, mode, box, scale), mode), cropped(mean, box))


@pytest.mark.parametrize("source", ["4:2:0, odd", "grey", "YCCK"])
def test_the_bytes_may_lie_in_the_middle_of_a_mapped_file(each: Decoder, source: str) -> None:
    data = SOURCES[source]
    mapped = memoryview(b"?" + data + b"?")[1:-1]
    assert np.array_equal(pixels(each.decode(mapped, "RGB"), "RGB"), oracle(data, "RGB"))


def test_the_image_is_an_ordinary_one(each: Decoder) -> None:
    """The image may use memory that is not Pillow's, but must behave like any other image."""
    data, box = SOURCES["4:2:0, odd"], Box(9, 7, 60, 50)
    image, again = each.decode(data, "RGB", box), each.decode(data, "RGB", box)
    expected = Image.fromarray(cropped(oracle(data, "RGB"), box))
    for method, arguments in {"resize": ((22, 24), 2), "transpose": (0,), "rotate": (30,), "convert": ("L",)}.items():
        got, wanted = getattr(image, method)(*arguments), getattr(expected, method)(*arguments)
        assert np.array_equal(pixels(got, wanted.mode), np.asarray(wanted)), method
    image.putpixel((0, 0), (1, 2, 3))
    assert np.asarray(image)[0, 0, :3].tolist() == [1, 2, 3]
    assert np.array_equal(pixels(again, "RGB"), np.asarray(expected))
    assert np.array_equal(pixels(each.decode(data, "RGB", box), "RGB"), np.asarray(expected))


@pytest.mark.parametrize("scale", [1, 2])
@pytest.mark.parametrize("source", ["4:2:0", "grey", "CMYK"])
def test_a_box_that_is_not_inside_is_refused(each: Decoder, source: str, scale: int) -> None:
    data = SOURCES[source]
    height, width = (-(-side // scale) for side in oracle(data, "L").shape)
    for box in (
        Box(-1, 0, 2, 2),
        Box(0, -1, 2, 2),
        Box(1, 0, width, 1),
        Box(0, 1, 1, height),
        Box(0, 0, 0, 1),
        Box(3, 3, 1, 0),
    ):
        with pytest.raises(ValueError, match=f"is not inside an image of {width} x {height} pixels"):
            each.decode(data, "RGB", box, scale)


@pytest.mark.parametrize("kind", ["truncated", "empty", "text", "no frame"])
def test_what_pillow_refuses_raises_what_pillow_raises(each: Decoder, kind: str) -> None:
    whole = SOURCES["4:2:0"]
    data = {
        "truncated": whole[: len(whole) // 2],
        "empty": b"",
        "text": b"<html>",
        "no frame": whole[: whole.index(b"\xff\xc0")] + b"\xff\xd9",
    }[kind]
    with pytest.raises(Exception) as expected:  # noqa: PT011
        Image.open(io.BytesIO(data)).convert("RGB")
    with pytest.raises(type(expected.value)):
        each.decode(data, "RGB")


def test_what_pillow_warns_of_is_decoded_by_pillow(each: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 101 * 67 - 1)
    with pytest.warns(Image.DecompressionBombWarning):
        each.decode(SOURCES["grey"], "RGB")
    with pytest.warns(Image.DecompressionBombWarning):
        each.decode(SOURCES["grey"], "RGB", Box(0, 0, 5, 5))
    assert each.pixels(SOURCES["4:2:0"]) is None
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", (101 * 67 - 1) // 2)
    for box in (None, Box(0, 0, 5, 5)):
        with pytest.raises(Image.DecompressionBombError):
            each.decode(SOURCES["grey"], "RGB", box)


def test_what_would_take_very_long_is_refused(each: Decoder) -> None:
    bomb = scan_bomb(6000, 6000, 60)
    for box in (None, Box(0, 0, 5, 5)):
        with pytest.raises(Image.DecompressionBombError, match="60 scans of 6000 x 6000 pixels"):
            each.decode(bomb, "RGB", box)
    assert each.pixels(bomb) is None


def test_a_decoder_goes_to_other_processes(each: Decoder) -> None:
    again = pickle.loads(pickle.dumps(each))
    assert (type(again), again.version) == (type(each), each.version)


def test_which_pillow_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    import PIL
    from PIL import features

    monkeypatch.setattr(PIL, "__version__", "12.1.1.post0")
    assert decoder("pillow").version == f"pillow-simd 12.1.1.post0, libjpeg-turbo {features.version('libjpeg_turbo')}"
    monkeypatch.setattr(PIL, "__version__", "13.0.0")
    assert decoder("pillow").version.startswith("Pillow 13.0.0, ")


class Odd(BackEnd):
    """Decodes as Pillow does, except for what `fault` changes."""

    name = "simplejpeg"
    version = "odd"

    def __init__(self, sample: str = "", mode: str = "RGB", scale: int = 1, box: bool = False) -> None:
        self._odd = samples().get(sample), mode, scale, box

    def attempt(self, data: Encoded, mode: str, box: Box | None, scale: int) -> Image.Image:
        image = decoder("pillow").decode(data, mode, box, scale)
        if (data, mode, scale, box is not None) == self._odd:
            first: Any = image.getpixel((0, 0))
            image.putpixel((0, 0), first ^ 1 if mode == "L" else (first[0], first[1], first[2] ^ 1))
        return image


class Refusing(BackEnd):
    """Refuses everything."""

    name = "extension"
    version = "none"

    def attempt(self, data: Encoded, mode: str, box: Box | None, scale: int) -> Image.Image:
        raise ValueError("not today")


class TestSelfCheck:
    def test_the_samples_differ_in_what_matters(self) -> None:
        """According to Pillow's own parser: the sampling factors of each sample, and which of them is progressive."""
        found = {name: Image.open(io.BytesIO(data)) for name, data in samples().items()}
        assert {name: image.layer[0][1:3] for name, image in found.items() if name in SAMPLINGS} == SAMPLINGS  # type: ignore[attr-defined]
        assert [name for name, image in found.items() if image.mode == "L"] == ["grey"]
        assert [name for name, image in found.items() if image.info.get("progressive")] == ["progressive"]
        for image in found.values():
            assert image.width % 8 and image.height % 8
            assert all(high - low > 50 for low, high in np.reshape(image.getextrema(), (-1, 2)))

    def test_the_back_ends_that_are_installed_pass(self) -> None:
        for candidate in candidates():
            assert candidate.problem is None or candidate.decoder is None

    @pytest.mark.parametrize("sample", samples())
    @pytest.mark.parametrize(
        ("mode", "scale", "box"), [("RGB", 1, False), ("L", 1, True), ("RGB", 2, False), ("L", 8, False)]
    )
    def test_one_bit_is_enough(self, sample: str, mode: str, scale: int, box: bool) -> None:
        problem = deviation(Odd(sample, mode, scale, box))
        assert problem == f"decodes a small {sample} JPEG to other pixels than Pillow (mode {mode}, scale {scale})"

    def test_to_refuse_is_no_way_to_pass(self) -> None:
        assert deviation(Refusing()) == "refuses a small 4:4:4 JPEG: not today"


class TestAuto:
    @pytest.fixture(autouse=True)
    def fresh(self) -> Iterator[None]:
        decoders._fastest_exact.cache_clear()
        yield
        decoders._fastest_exact.cache_clear()

    def install(self, monkeypatch: pytest.MonkeyPatch, **found: BackEnd | None) -> None:
        for name, back_end in found.items():
            module: Any = None
            if back_end is not None:
                module = ModuleType(name)
                module.DECODER = back_end
            monkeypatch.setitem(sys.modules, f"{decoders.__name__}.{name}", module)

    def test_the_extension_comes_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        extension = Odd()
        self.install(monkeypatch, extension=extension, simplejpeg=Odd())
        assert decoder() is decoder("auto") is extension

    @pytest.mark.parametrize("extension", [None, Refusing(), Odd("4:2:0"), Odd("grey", "L", 4)])
    def test_then_simplejpeg(self, monkeypatch: pytest.MonkeyPatch, extension: BackEnd | None) -> None:
        simplejpeg = Odd()
        self.install(monkeypatch, extension=extension, simplejpeg=simplejpeg)
        assert decoder() is simplejpeg

    @pytest.mark.parametrize("simplejpeg", [None, Odd("4:1:1")])
    def test_then_pillow(self, monkeypatch: pytest.MonkeyPatch, simplejpeg: BackEnd | None) -> None:
        self.install(monkeypatch, extension=Refusing(), simplejpeg=simplejpeg)
        assert decoder().name == "pillow"
        assert [(name, found is None) for name, found, _ in candidates()] == [
            ("extension", False),
            ("simplejpeg", simplejpeg is None),
            ("pillow", False),
        ]
        assert [problem is None for _, _, problem in candidates()] == [False, False, True]

    def test_a_back_end_that_deviates_can_still_be_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        extension = Odd("4:4:4")
        self.install(monkeypatch, extension=extension)
        assert decoder("extension") is extension


@pytest.mark.parametrize("fill", [1, 2, 700])
def test_fill_bytes_before_a_marker(each: Decoder, fill: int) -> None:
    """T.81, B.1.1.2: any number of bytes 0xFF may precede a marker."""
    data = SOURCES["4:2:0, odd"]
    for marker in (b"\xff\xdb", b"\xff\xc0", b"\xff\xc4"):
        filled = data.replace(marker, b"\xff" * fill + marker, 1)
        assert np.array_equal(pixels(each.decode(filled, "RGB"), "RGB"), oracle(data, "RGB"))
        header = frame_header(filled)
        assert header is not None and (header.height, header.width) == oracle(data, "L").shape
    assert frame_header(b"\xff\xd8" + b"\xff" * fill) is None


@pytest.mark.parametrize("marker", [0x00, 0x01, 0xD0, 0xD7, 0xD8, 0xD9])
def test_a_marker_without_a_segment_hides_no_frame_header(each: Decoder, marker: int) -> None:
    """Decoders read on right behind such a marker. What follows it is not a length."""
    data = SOURCES["4:2:0, odd"]
    hidden = struct.pack(">BBHBHHB", 0xFF, 0xC0, 17, 8, 8, 8, 3) + bytes(9)
    comments = [bytes(0xFF00), bytes(246) + hidden]
    # As a length, the first comment's marker leads to `hidden`.
    pieces = b"".join(struct.pack(">BBH", 0xFF, 0xFE, len(body) + 2) + body for body in comments)
    hostile = data[:2] + bytes([0xFF, marker]) + pieces + data[2:]
    assert hostile[4 + 0xFFFE :].startswith(hidden)
    assert frame_header(hostile) is None
    if 0xD0 <= marker <= 0xD7:
        assert np.array_equal(pixels(each.decode(hostile, "RGB"), "RGB"), oracle(data, "RGB"))


def test_simplejpeg_reads_one_copy_of_a_record_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What its header says decides how much memory TurboJPEG may write to."""
    module = pytest.importorskip("packtrain._codec.decoders.simplejpeg")
    source = SOURCES["4:2:0, odd"]
    mapped = bytearray(source)
    read_header = module.simplejpeg.decode_jpeg_header

    def read_and_change(data: Encoded) -> Any:
        found = read_header(data)
        mapped[:] = bytes(len(mapped))
        return found

    monkeypatch.setattr(module.simplejpeg, "decode_jpeg_header", read_and_change)
    image = module.DECODER.attempt(memoryview(mapped), "RGB", None, 1)
    assert np.array_equal(pixels(image, "RGB"), oracle(source, "RGB"))


def test_a_sampling_that_has_no_name(each: Decoder) -> None:
    """Four rows of luma for each of chroma: TurboJPEG calls it 4:4:1, and simplejpeg does not know that."""
    flat = Image.fromarray(np.arange(96, 144, dtype=np.uint8)[:, None].repeat(64, 1))
    data = sampled(encoded(flat, "JPEG"), (1, 4), 29, 59)
    whole = oracle(data, "RGB")
    assert np.array_equal(pixels(each.decode(data, "RGB"), "RGB"), whole)
    assert np.array_equal(pixels(each.decode(data, "RGB", Box(3, 5, 20, 30)), "RGB"), whole[5:35, 3:23])


class TestNames:
    @pytest.mark.parametrize(("name", "hint"), [("simplejpg", "; did you mean 'simplejpeg'?"), ("dali", ""), ("", "")])
    def test_an_unknown_name(self, name: str, hint: str) -> None:
        with pytest.raises(UsageError) as error:
            decoder(name)
        assert str(error.value) == f"decoder={name!r}: expected one of {', '.join(DECODERS)}{hint}"

    @pytest.mark.parametrize(
        ("name", "module", "command"),
        [
            ("extension", "packtrain._codec.native._extension", f"`{build_command()}`"),
            ("simplejpeg", "simplejpeg", f"`{extra_command('simplejpeg')}`"),
            ("accimage", "accimage", "`conda install -c conda-forge accimage`"),
        ],
    )
    def test_what_is_not_installed(self, monkeypatch: pytest.MonkeyPatch, name: str, module: str, command: str) -> None:
        monkeypatch.setitem(sys.modules, module, None)
        if module == "packtrain._codec.native._extension":
            for attribute, value in zip(("extension", "absence"), native._imported(), strict=True):
                monkeypatch.setattr(native, attribute, value)
        forget(monkeypatch, name)
        with pytest.raises(MissingDependency) as error:
            decoder(name)
        assert str(error.value).startswith(f"decoder {name!r} cannot be imported (")
        assert str(error.value).endswith(command)


# Made by libjpeg-turbo's `cjpeg -lossless 1` of a grey image whose pixel (x, y) is 9 x + 5 y, 21 x 19 pixels.
LOSSLESS = base64.b85decode(
    "|JeWF01!$>Nk#wx0RR9200961|HA+a2mliR6#)Se0RO}Q761VO0RR910000000000000C72>;pu2mt{A0RRBc=}J<Rr722Ml%*+3Q&goXN>Y@i"
    "DN0h5r75aXl%*+3Qk11BN>Y^7DN0h5r722Ml%*+3YLulZN>Y@iDN0h5r8P=Yl%*+3Qk11BN>ZAoDN0h5r722Ml%*+6Qk11BN>Y@iDN0h5rm0F&"
    "l%*+3Qk11BN>fy&DN0h5r722Ml%*-EQk11BN>Y@iDN0h5)hS9+l%*+3Qk11BN@|p)DN0h5r722Ml%+LFQk11BN>Y@iDN0hBr722Ml%*+3Qk11B"
    "O;VJlDN0h5r722Ml%}alQk11BN>Y@iDN1lfQk11BN>Y@iDN0hD5SpbaN>Y@iDN0h5r8pr!|Je"
)


class TestLossless:
    """libjpeg-turbo 3 reads JPEGs without a DCT, which have only one scale; earlier versions refuse them."""

    def test_the_scale_is_never_asked_of_libjpeg(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = []
        monkeypatch.setattr(JpegImageFile, "draft", lambda *given: asked.append(given))
        monkeypatch.setattr(JpegImageFile, "load", lambda image: None)
        monkeypatch.setattr(Image.Image, "convert", lambda image, mode: Image.new(mode, image.size))
        decoder("pillow").decode(LOSSLESS, "L", None, 4)
        assert not asked
        decoder("pillow").decode(SOURCES["grey"], "L", None, 4)
        assert asked

    @pytest.mark.parametrize("scale", [1, 2, 8])
    def test_pixels(self, each: Decoder, scale: int) -> None:
        whole = np.fromfunction(lambda y, x: 9 * x + 5 * y, (19, 21)).astype(np.uint8)
        mean = np.asarray(Image.fromarray(whole).reduce(scale))
        box = Box(1, 1, mean.shape[1] - 1, mean.shape[0] - 1)
        try:
            Image.open(io.BytesIO(LOSSLESS)).load()
        except OSError:
            pytest.skip("the libjpeg of this Pillow does not read lossless JPEGs")
        assert np.array_equal(pixels(each.decode(LOSSLESS, "L", None, scale), "L"), mean)
        assert np.array_equal(pixels(each.decode(LOSSLESS, "L", box, scale), "L"), cropped(mean, box))

    def test_no_back_end_asks_for_a_scale_either(self, each: Decoder) -> None:
        """TurboJPEG would write the whole image into the memory of a smaller one."""
        if isinstance(each, BackEnd):
            with pytest.raises((ValueError, OSError)):
                each.attempt(LOSSLESS, "L", None, 8)


class TestFallback:
    def test_what_a_back_end_refuses_is_pillows(self) -> None:
        for data in (SOURCES["4:2:0"], SOURCES["CMYK"], OTHERS["PNG"]):
            assert np.array_equal(pixels(Refusing().decode(data, "RGB"), "RGB"), oracle(data, "RGB"))

    def test_a_fault_of_the_program_is_not_taken_for_a_refusal(self) -> None:
        class Broken(Refusing):
            def attempt(self, data: Encoded, mode: str, box: Box | None, scale: int) -> Image.Image:
                raise AssertionError

        with pytest.raises(AssertionError):
            Broken().decode(SOURCES["grey"], "RGB")

    @pytest.mark.parametrize("name", BACK_ENDS)
    def test_ordinary_jpegs_never_reach_pillow(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        if name == "accimage":
            stand_in_accimage(monkeypatch, StandIn)
        try:
            back_end = decoder(name)
        except MissingDependency as error:
            pytest.skip(str(error))
        assert isinstance(back_end, BackEnd)
        for source in (*SAMPLINGS, "grey", "progressive", "restarts", "stored as RGB", "with EXIF and ICC"):
            for mode in ("RGB", "L"):
                back_end.attempt(SOURCES[source], mode, Box(1, 2, 3, 4), 1)

    def test_an_accimage_that_reads_only_files(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Old:
            def __init__(self, path: object) -> None:
                raise TypeError("argument 1 must be str, not bytes")

        stand_in_accimage(monkeypatch, Old)
        with pytest.raises(MissingDependency, match=r"before version 0\.2\.0"):
            decoder("accimage").decode(SOURCES["4:4:4"], "RGB")


class TestRgbx:
    PIXELS = bytes(range(2 * 20))

    @pytest.mark.parametrize("maps", [True, False])
    def test_the_first_three_of_four_bytes_count(self, monkeypatch: pytest.MonkeyPatch, maps: bool) -> None:
        monkeypatch.setattr(conversions, "_maps_rgb", lambda: maps)
        image = rgb_image(memoryview(self.PIXELS), 3, 2, 20)
        expected = np.arange(40, dtype=np.uint8).reshape(2, 5, 4)[:, :3, :3]
        assert image.mode == ("RGB" if maps else "RGBX")
        assert np.array_equal(pixels(image, "RGB"), expected)
        with pytest.raises(ValueError, match="not large enough"):
            rgb_image(self.PIXELS, 3, 3, 20)

    @pytest.mark.parametrize("stride", [12, 20])
    @pytest.mark.parametrize("mirrored", [False, True])
    def test_its_pixels_can_be_had_as_an_array(self, stride: int, mirrored: bool) -> None:
        """Pillow 12 crashes if it is asked to export such an image."""
        image = rgb_image(self.PIXELS, 3, 2, stride)
        rows = [list(self.PIXELS[start : start + 12]) for start in (0, stride)]
        expected = np.array(rows, np.uint8).reshape(2, 3, 4)[:, :: -1 if mirrored else 1, :3]
        assert np.array_equal(array_from_image(image, mirrored=mirrored), expected)

    @pytest.mark.parametrize("fault", [AttributeError, TypeError, ValueError, None])
    def test_a_pillow_that_knows_no_such_mapping(
        self, monkeypatch: pytest.MonkeyPatch, fault: type[Exception] | None
    ) -> None:
        def changed(*arguments: object) -> Image.Image:
            if fault is not None:
                raise fault
            return Image.new("RGB", (2, 1))

        assert conversions._maps_rgb.__wrapped__()
        monkeypatch.setattr(conversions, "_map_rgb", changed)
        assert not conversions._maps_rgb.__wrapped__()
