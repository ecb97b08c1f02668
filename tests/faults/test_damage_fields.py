"""Damage to a dataset of many fields: `verify` says which file is damaged, and which record of which row."""

from __future__ import annotations

import shutil
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from helpers.damage import assert_named_by_verify, changed, files, flipped
from helpers.fields import COLUMNS, WITHOUT_IMAGE, field_set
from helpers.support import FORMATS, packed

from packtrain import verify
from packtrain._core.manifest import Manifest
from packtrain._packer.options import Columns

COUNT = 5
CONTENTS = {"with images": COLUMNS, "without images": WITHOUT_IMAGE}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """Five samples of many fields in every format, with and without an image."""
    listing = field_set(tmp_path_factory.mktemp("fields"), COUNT, bad=False)
    folder = tmp_path_factory.mktemp("datasets")

    def made(format: str, columns: Columns, size: int) -> Path:
        return packed(listing, folder / f"{format} {size}", format, columns=columns, shard_size=size)

    sizes = {"with images": 9000, "without images": 400}
    return {
        (format, name): made(format, columns, sizes[name]) for format in FORMATS for name, columns in CONTENTS.items()
    }


@pytest.fixture(params=CONTENTS)
def dataset(
    request: pytest.FixtureRequest, models: dict[tuple[str, str], Path], tmp_path: Path, format_name: str
) -> Path:
    """A copy to damage, in every format, with and without an image."""
    copy: Path = shutil.copytree(models[format_name, request.param], tmp_path / "dataset")
    assert not verify(copy).problems
    assert len(Manifest.load(copy).shards) > 1
    return copy


@pytest.mark.complete
def test_a_flipped_byte_of_any_record_is_named_with_row_and_file(dataset: Path) -> None:
    manifest = Manifest.load(dataset)
    shards, lines = (np.load(dataset / "index" / f"{name}.npy").tolist() for name in ("shard", "line"))
    tried = 0
    for field in manifest.schema.fields:
        columns = (np.load(dataset / "index" / f"{field.prefix}{name}.npy").tolist() for name in ("offset", "length"))
        for row, (offset, length) in enumerate(zip(*columns, strict=True)):
            # One row of each field has another turn than that of the field before.
            if length <= 0 or row % 2 != tried % 2:
                continue
            name = manifest.shards[shards[row]].name
            with changed(dataset / name, flipped(offset + length // 2)):
                found = [problem for problem in verify(dataset).problems if problem.row is not None]
            assert [(problem.file, problem.row, problem.line) for problem in found] == [(name, row, lines[row])]
            if field.name != "image":
                assert field.name in found[0].message
            tried += 1
            break
    assert tried == len(manifest.schema.fields)


def offsets(path: Path, most: int) -> list[int]:
    """Offsets spread over a file, the first and the last among them."""
    size = path.stat().st_size
    return sorted({*range(0, size, -(-size // most)), size - 1} if size else ())


def assert_every_flip_is_named(dataset: Path, most: int, part: slice) -> None:
    cases = ((name, offset) for name in files(dataset) for offset in offsets(dataset / name, most))
    for name, offset in islice(cases, part.start, None, part.step):
        with changed(dataset / name, flipped(offset, mask=1 << offset % 8)):
            assert_named_by_verify(dataset, name, (name, offset))


@pytest.mark.complete
def test_a_flipped_byte_in_any_file_is_named(dataset: Path) -> None:
    """Every third case."""
    assert_every_flip_is_named(dataset, 4, slice(0, None, 3))


@pytest.mark.stress
@pytest.mark.parametrize("part", range(8))
def test_many_flipped_bytes_in_any_file_are_named(dataset: Path, part: int) -> None:
    assert_every_flip_is_named(dataset, 60, slice(part, None, 8))
