"""Files that are not what they should be. All of it through `pack`."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from helpers.corpus import png_of, wide_grey
from helpers.support import encoded, image_set, items, packed, picture, sources
from PIL import Image, ImageFile

from packtrain import open_dataset, verify
from packtrain._core.manifest import Manifest
from packtrain._core.options import StoreOptions
from packtrain._packer.rejects import read_rejects
from packtrain.errors import TooManyRejects

JPEG = encoded(picture(0))
PNG = encoded(picture(0), "PNG")


def holding(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


def linking(target: str) -> Callable[[Path], object]:
    return lambda path: path.symlink_to(target)


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: None, "No such file or directory"),
    "dangling link": (linking("nowhere"), "No such file or directory"),
    "link to itself": (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
    "directory": (Path.mkdir, "it is a folder"),
    "FIFO": (os.mkfifo, "it is a FIFO, not a regular file"),
    "device": (linking("/dev/zero"), "not a regular file"),
    "empty": (holding(b""), "empty file"),
    "HTML": (
        holding(b"<!DOCTYPE html><p>404</p>"),
        r"not an image that Pillow knows; it begins with b'<!DOCTYPE html>",
    ),
    "zeros": (holding(bytes(5000)), "not an image that Pillow knows"),
    "truncated JPEG": (holding(JPEG[:-200]), "Pillow refuses it: OSError: image file is truncated"),
    "truncated in its header": (holding(JPEG[:40]), "Pillow"),
    "JPEG without a frame": (
        holding(b"\xff\xd8\xff\xe0" + bytes(5000)),
        "it begins like a file of format JPEG, but Pillow cannot make sense of its header",
    ),
    "truncated PNG": (holding(PNG[:-200]), "Pillow refuses it: OSError: image file is truncated"),
    "zeros in the middle of a JPEG header": (holding(JPEG[:20] + bytes(300) + JPEG[320:]), "Pillow"),
    "a table in the middle of a picture": (holding(JPEG[:-200] + b"\xff\xc4" + JPEG[-198:]), "broken data stream"),
    "16 bits": (holding(encoded(wide_grey(), "PNG")), "its pixels are 16 bits wide, .* convert it to 8 bits first"),
    "EPS named .jpg": (holding(encoded(picture(1), "EPS")), "a file of format EPS, .*: convert it to PNG or JPEG"),
    "PDF": (holding(b"%PDF-1.7\n"), "a file of format PDF, .*: convert it to PNG or JPEG"),
    "decompression bomb": (
        holding(png_of(30_000, 30_000, 1, 0, b"")),
        "DecompressionBombError: .* raise PIL.Image.MAX_IMAGE_PIXELS",
    ),
}

ACCEPTED: dict[str, bytes] = {
    "PNG named .JPEG": PNG,
    "CMYK": encoded(picture(1, mode="CMYK")),
    "GIF": encoded(picture(2), "GIF"),
    "palette": encoded(picture(3, mode="P"), "PNG"),
    "transparent": encoded(picture(4, mode="RGBA"), "PNG"),
    "two levels": encoded(picture(5, mode="1"), "PNG"),
    "BMP": encoded(picture(6), "BMP"),
    "TIFF": encoded(picture(7), "TIFF"),
    "bytes behind the end": JPEG + b"\0" * 50,
    "a second picture behind the first": JPEG + encoded(picture(8)),
    "broken EXIF": JPEG[:2] + b"\xff\xe1\x00\x10Exif\0\0garbage!" + JPEG[2:],
    "PNG without its end": PNG[:-12],
}
"""What Pillow reads, training code can use."""


def test_bad_files_are_rejects_that_say_why_and_the_others_are_packed(tmp_path: Path) -> None:
    listing = image_set(tmp_path / "images", 2)
    labels = [source.label for source in sources(listing)]
    for number, (make, _) in enumerate(REFUSED.values()):
        make(tmp_path / "images" / f"{number}.jpg")
    with listing.open("a") as file:
        file.writelines(f"{number}.jpg 9\n" for number in range(len(REFUSED)))
    out = packed(listing, tmp_path / "out", "tar", max_rejects="99")
    rejects = read_rejects(out, Manifest.load(out))
    for number, (reject, (kind, (_, reason))) in enumerate(zip(rejects, REFUSED.items(), strict=True)):
        assert (reject.line, reject.path) == (number + 2, f"{number}.jpg")
        assert re.search(reason, reject.reason), kind
        assert "0x7f" not in reject.reason, "an address in a reason makes two runs differ"
    assert [label for _, label in items(open_dataset(out))] == labels
    with pytest.raises(TooManyRejects, match=r" lines refused, 0 allowed.*\n  line \d+: '\d+\.jpg': "):
        packed(listing, tmp_path / "none allowed", "tar", max_rejects="0")


@pytest.mark.filterwarnings("ignore")  # Pillow warns of some of them
@pytest.mark.parametrize(
    "store",
    [
        StoreOptions("verbatim"),
        StoreOptions("verbatim", check=True),
        StoreOptions("raw"),
        StoreOptions("raw", mode="L"),
    ],
    ids=["verbatim", "check", "raw", "grey"],
)
def test_odd_files_that_pillow_reads_are_packed_as_they_are_or_with_their_pixels(
    tmp_path: Path, store: StoreOptions
) -> None:
    for number, data in enumerate(ACCEPTED.values()):
        (tmp_path / f"{number}.JPEG").write_bytes(data)
    (tmp_path / "train.txt").write_text("".join(f"{number}.JPEG 1\n" for number in range(len(ACCEPTED))))
    opened = open_dataset(packed(tmp_path / "train.txt", tmp_path / "out", "tar", store=store))
    for row, (kind, data) in enumerate(ACCEPTED.items()):
        expected = Image.open(io.BytesIO(data)).convert(store.mode)
        assert store.store == "raw" or opened.record(row) == data, kind
        assert opened.image(row).tobytes() == expected.tobytes(), kind
        assert (opened.store.index["width"][row], opened.store.index["height"][row]) == expected.size, kind
    assert not verify(tmp_path / "out", decode_images=True).problems


@pytest.mark.parametrize("store", ["verbatim", "raw"])
def test_a_truncated_image_is_a_reject_whatever_the_caller_lets_pillow_load(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other processes would not read the record: those of loaders, or of another packer."""
    listing = image_set(tmp_path / "images", 2)
    (tmp_path / "images" / "image 1.jpg").write_bytes(JPEG[:-200])
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    out = packed(listing, tmp_path / "out", "tar", max_rejects="1", store=StoreOptions(store))
    assert [reject.line for reject in read_rejects(out, Manifest.load(out))] == [1]
    assert ImageFile.LOAD_TRUNCATED_IMAGES
    with monkeypatch.context() as patch:
        patch.setattr("packtrain._packer.images.whole_images_only", nullcontext)
        older = packed(listing, tmp_path / "older", "tar")
    if store == "verbatim":
        (problem,) = verify(older, decode_images=True).problems
        assert "image file is truncated" in problem.message
