"""The extension's libjpeg and those that other packages bring do not meet in a process, whichever comes first."""

from __future__ import annotations

import io
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

OTHERS = ("PIL", "torchvision", "cv2", "simplejpeg")
PROGRAM = """
import hashlib, sys

def packtrain():
    from packtrain._codec.native import require_extension
    extension = require_extension("This test")
    record = extension.transcode(data)
    try:
        extension.transcode(data[:-40])
    except ValueError as error:
        message = str(error)
    pixels, *_ = extension.decode(record, (0, 0, 97, 61), 3, 1)
    return record + pixels + extension.coefficient_record(data) + message.encode()

def PIL():
    import io
    from PIL import Image
    return Image.open(io.BytesIO(data)).tobytes()

def torchvision():
    import torch, torchvision.io
    return torchvision.io.decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8)).numpy().tobytes()

def cv2():
    import cv2, numpy
    return cv2.imdecode(numpy.frombuffer(data, numpy.uint8), cv2.IMREAD_COLOR).tobytes()

def simplejpeg():
    import simplejpeg
    return simplejpeg.decode_jpeg(data).tobytes()

data = open(sys.argv[1], "rb").read()
for name in [*sys.argv[2:], *sys.argv[2:]]:
    print(name, hashlib.sha256(globals()[name]()).hexdigest())
"""


@pytest.fixture(scope="module")
def photograph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("photograph") / "p.jpg"
    pixels = np.random.default_rng(0).integers(0, 256, (8, 13, 3), np.uint8)
    image = Image.fromarray(pixels).resize((97, 61), Image.Resampling.BICUBIC)
    written = io.BytesIO()
    image.save(written, "jpeg", quality=90)
    path.write_bytes(written.getvalue())
    return path


@cache
def digests(photograph: Path, *names: str) -> dict[str, str] | None:
    """Results of each package for a JPEG, twice in turn in one process; None if a package is missing or broken."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, photograph, *names], capture_output=True, text=True)
    assert done.returncode in (0, 1), f"{names}: {done}"
    lines = done.stdout.split()
    found = dict(zip(lines[::2], lines[1::2], strict=True))
    assert len(set(zip(lines[::2], lines[1::2], strict=True))) == len(found), "the second answer is another one"
    return None if done.returncode else found


@pytest.mark.complete
@pytest.mark.parametrize("other", OTHERS)
def test_each_decodes_as_it_does_alone(other: str, photograph: Path) -> None:
    ours, theirs = digests(photograph, "packtrain"), digests(photograph, other)
    assert ours is not None
    if theirs is None:
        pytest.skip(f"{other} is not installed, or decodes nothing here")
    assert digests(photograph, "packtrain", other) == ours | theirs
    assert digests(photograph, other, "packtrain") == ours | theirs
