"""A new store mode is an entry in `core/store_modes.py`, and how its records are made; all else follows.

If its records are no image files, it is also an entry in `codec/record_forms.py`. Other modules hold on to the tables
when they are imported, so the mode is added in a process of its own.
"""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.support import ONE_FORMAT, encoded, picture
from PIL import Image

SCRIPT = """
import sys
import zlib
from dataclasses import replace
from types import MappingProxyType

from packtrain._codec import record_forms
from packtrain._core import store_modes

MAGIC = bytes.fromhex("8950545a0d0a1a0a")
HEADER = slice(len(MAGIC), 32)


def image_file(record):
    return bytes(record[HEADER]) + zlib.decompress(record[HEADER.stop :])


form = record_forms.RecordForm(MAGIC, "ptz", "none", image_file, lambda record: bytes(record[HEADER]))
record_forms.FORMS["deflated"] = record_forms._BY_MAGIC[MAGIC] = form
store_modes.STORE_MODES = MappingProxyType(
    {**store_modes.STORE_MODES, "deflated": store_modes.StoreMode("deflated")}
)

from packtrain._packer import images

known = images._converted


def converted(source, options):
    if options.store != "deflated":
        return known(source, options)
    stored = known(source, replace(options, store="raw"))
    header = b"P6 %7d %8d 255\\n" % (stored.header.width, stored.header.height)
    record = MAGIC + header + zlib.compress(stored.payload)
    return stored._replace(payload=record, header=stored.header._replace(extension="ptz"))


images._converted = converted

from packtrain._cli.main import group

format, folder = sys.argv[1:]
for command in (
    f"pack {folder}/list.txt {folder}/set --store deflated --resize short=20 --format {format}",
    f"verify {folder}/set --decode",
    f"pack {folder}/set {folder}/kept --store verbatim",
    f"export {folder}/set {folder}/exported --to folder",
    f"pack {folder}/set {folder}/raw --store raw",
):
    workers = [] if "export" in command else ["--workers", "1"]
    assert not group.main([*command.split(), *workers], standalone_mode=False), command

from packtrain import Loader, open_dataset
from packtrain.transforms import CenterCrop

assert bytes(open_dataset(f"{folder}/kept").record(0)).startswith(b"P6")
expected = open_dataset(f"{folder}/raw", [CenterCrop(16)])
for name in ("set", "kept"):
    with Loader(open_dataset(f"{folder}/{name}", [CenterCrop(16)]), 4, num_workers=1) as loader:
        for row, image in enumerate(next(iter(loader))[0]):
            assert (image == expected[row][0]).all()
"""


@pytest.mark.complete
@ONE_FORMAT
def test_a_mode_of_records_that_are_no_image_files_is_packed_read_and_exported(
    tmp_path: Path, format_name: str
) -> None:
    files = [encoded(picture(seed, 40, 30), "PNG") for seed in range(4)]
    for number, data in enumerate(files):
        (tmp_path / f"{number}.png").write_bytes(data)
    (tmp_path / "list.txt").write_text("".join(f"{number}.png 0\n" for number in range(len(files))))
    command = [sys.executable, "-c", SCRIPT, format_name, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    for number, data in enumerate(files):
        (file,) = (tmp_path / "exported").rglob(f"{number}.ppm")
        small = Image.open(io.BytesIO(data)).convert("RGB").resize((26, 20), Image.Resampling.BILINEAR)
        np.testing.assert_array_equal(np.asarray(Image.open(file)), np.asarray(small))
