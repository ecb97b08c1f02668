"""Shared by many tests: image sets made on the fly, folder contents, external tools."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pytest
from PIL import Image

from packtrain import PackOptions, pack
from packtrain._core.options import StoreOptions

FORMATS = ("tar", "hdf5", "lmdb")
START_METHODS = pytest.mark.parametrize(
    "method", ["fork", *(pytest.param(name, marks=pytest.mark.complete) for name in ("forkserver", "spawn"))]
)
"""Every way to start workers; the sample has the one under which workers need not import torch, which takes seconds."""
ONE_FORMAT = pytest.mark.parametrize(
    "format_name", ["hdf5", *(pytest.param(name, marks=pytest.mark.complete) for name in ("tar", "lmdb"))]
)
"""Every format; the sample has one. For laws that hardly depend on it."""
SUFFIXES = {"tar": ".tar", "hdf5": ".h5", "lmdb": ".mdb"}


def picture(seed: int, width: int = 48, height: int = 36, mode: str = "RGB") -> Image.Image:
    """A smooth picture with some noise, different for every seed."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (5, 7, 3), np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC), np.int16)
    noisy = smooth + random.integers(-8, 9, smooth.shape, np.int16)
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).convert(mode)


def encoded(image: Image.Image, format: str = "JPEG", **options: object) -> bytes:
    """The image as the bytes of a file."""
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def image_set(folder: Path, count: int = 12, *, classes: int = 3) -> Path:
    """Writes `count` JPEGs of several sizes, some of them grey, and a train.txt. Returns the list."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for number in range(count):
        image = picture(number, 40 + 3 * number, 60 - 2 * (number % 20), "L" if number % 5 == 4 else "RGB")
        (folder / f"image {number}.jpg").write_bytes(encoded(image))
        lines.append(f"image {number}.jpg {number % classes}\n")
    (folder / "train.txt").write_text("".join(lines))
    return folder / "train.txt"


class Source(NamedTuple):
    """A line of an `image_set` list, read without packtrain."""

    name: str
    data: bytes
    label: int


def sources(listing: Path) -> list[Source]:
    """The lines of an `image_set` list."""
    fields = (line.rsplit(" ", 1) for line in listing.read_text().splitlines())
    return [Source(name, (listing.parent / name).read_bytes(), int(label)) for name, label in fields]


def shard_bytes(listing: Path, records: int) -> int:
    """The shard size at which every shard of this list, stored verbatim, holds `records` records."""
    sizes = [len(source.data) for source in sources(listing)]
    return records * (sum(sizes) // len(sizes))


def packed(
    listing: Path, out: Path, format: str, *, max_rejects: str = "0", num_workers: int = 1, **options: Any
) -> Path:
    """Packs a list with these `PackOptions`, verbatim unless they say otherwise. Returns `out`."""
    options = {"store": StoreOptions("verbatim"), **options}
    pack(listing, out, PackOptions(format=format, **options), num_workers=num_workers, max_rejects=max_rejects)
    return out


def with_classes(out: Path, names: str, *, named: bool = True) -> Path:
    """Packs an image of each class to `out`, with or without the names of the classes. Returns `out`."""
    source = out.with_name(f"{out.name}-source")
    listing = image_set(source, len(names), classes=len(names))
    (source / "classes.txt").write_text("\n".join(names))
    return packed(listing, out, "tar", classes=source / "classes.txt" if named else None)


def items(dataset: Any) -> list[tuple[Any, Any]]:
    """All (image, label) pairs of a dataset, by iterating over it."""
    return list(dataset)


def held(dataset: Any) -> list[tuple[bytes, Any]]:
    """The stored image and the label of each row of a dataset."""
    return [(bytes(dataset.record(row)), dataset.label(row)) for row in range(len(dataset))]


def tree(folder: Path, *without: str) -> dict[str, bytes]:
    """Content of every file below `folder`, by relative path, but for some names."""
    files = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if name not in without}


def flip(path: Path, offset: int) -> None:
    """Changes one byte of a file to a different value, also if its owner may not write to it."""
    path.chmod(path.stat().st_mode | stat.S_IWUSR)
    with path.open("r+b") as file:
        file.seek(offset, os.SEEK_END if offset < 0 else os.SEEK_SET)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0x55]))


def spoil(path: Path, how: str) -> None:
    """Damages a file in one of the ways that files are damaged; before a special file, there need not have been one."""
    if path.is_file():
        path.chmod(path.stat().st_mode | stat.S_IWUSR)
    match how:
        case "short":
            os.truncate(path, path.stat().st_size - 1)
        case "long":
            os.truncate(path, path.stat().st_size + 1)
        case "empty":
            os.truncate(path, 0)
        case "huge":
            os.truncate(path, 1 << 40)
        case "flipped" | "flipped, with its old times":
            before = path.stat()
            flip(path, before.st_size // 2)
            if how != "flipped":
                os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        case "link":
            path.symlink_to(path.rename(path.with_suffix(".elsewhere")))
        case _:
            path.unlink(missing_ok=True)
    match how:
        case "folder":
            path.mkdir()
            (path / "inner").touch()
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "loop":
            path.symlink_to(path.name)
        case "broken link":
            path.symlink_to("nowhere")


@contextmanager
def soon(seconds: float = 5.0) -> Iterator[None]:
    """Fails the test if the body takes more than `seconds`; for code that must not hang."""

    def fail(number: int, frame: object) -> None:
        pytest.fail(f"this took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def tool(name: str, package: str) -> str:
    """Path of an external program. Without it the test is skipped, or fails if PACKTRAIN_REQUIRE_TOOLS=1 is set."""
    path = shutil.which(name)
    return path or _absent(f"{name} is not installed: apt-get install {package}")


def _absent(message: str) -> NoReturn:
    if os.environ.get("PACKTRAIN_REQUIRE_TOOLS") == "1":
        pytest.fail(message)
    pytest.skip(message, allow_module_level=True)


def require_module(name: str) -> None:
    """Skips the test if a package is not installed, or fails it if PACKTRAIN_REQUIRE_TOOLS=1 is set."""
    if find_spec(name) is None:
        _absent(f"{name} is not installed: pip install {name}")


def import_torchvision() -> Any:
    """torchvision; the test is skipped without it. What imports it later gets the same module."""
    if find_spec("torchvision") is None:
        _absent("torchvision is not installed: pip install --no-deps torchvision")
    # A torchvision built for another torch cannot load its C++ operators. Our tests need none of them, but the import
    # fails unless their schemas exist.
    import torch

    try:
        import torchvision
    except RuntimeError:
        library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms", "roi_align", "ps_roi_align", "roi_pool", "ps_roi_pool", "deform_conv2d"):
            for operator in (name, f"_{name}_backward"):
                library.define(f"{operator}(Tensor x) -> Tensor")
        import torchvision
    return torchvision


def output_of(*command: str | os.PathLike[str]) -> str:
    """Standard output of a program, which must succeed and write nothing to standard error."""
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), f"{command}: {done.stdout}"
    return done.stdout


def with_modules(folder: Path) -> dict[str, str]:
    """The environment of a process that finds modules in `folder` first."""
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


def real_list() -> Path:
    """The list of real photographs that PACKTRAIN_IMAGES names; the test is skipped without it."""
    name = os.environ.get("PACKTRAIN_IMAGES")
    if not name:
        pytest.skip("PACKTRAIN_IMAGES names no list of real images")
    return Path(name)


def param_id(value: object) -> str:
    """A parameter's name in the id of a test, without addresses: they differ between pytest-xdist's processes."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))
