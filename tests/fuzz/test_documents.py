"""Documents that somebody forged are refused, or do no harm."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz import documents
from helpers.support import FORMATS, image_set

from packtrain import PackOptions
from packtrain._core.options import StoreOptions

STORES = {
    "verbatim": StoreOptions("verbatim"),
    "crop-ready": StoreOptions(),
    "coefficients": StoreOptions("coefficients"),
    "raw": StoreOptions("raw"),
}


def campaign(folder: Path, format: str, store: str, step: int) -> documents.Campaign:
    """Runs every `step`-th case on a dataset of four rows in several shards."""
    listing = image_set(folder / "images", 5)
    (listing.parent / "image 2.jpg").write_bytes(b"<html>404</html>")
    options = PackOptions(format, STORES[store], shard_size=15_000 if store == "raw" else 3000)
    return documents.run(folder, listing, options, step)


@pytest.mark.complete
@pytest.mark.parametrize(("format", "store"), [("tar", "crop-ready"), ("hdf5", "raw")])
def test_some_forged_documents(memory_path: Path, format: str, store: str) -> None:
    found = campaign(memory_path, format, store, 250)
    assert not found.failures, "\n".join(found.failures)
    assert found.uses > 60 and found.refused > found.uses // 3


@pytest.mark.stress
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("format", FORMATS)
def test_all_forged_documents(memory_path: Path, format: str, store: str) -> None:
    found = campaign(memory_path, format, store, 1 if store == "verbatim" else 6)
    assert not found.failures, "\n".join(found.failures)
    assert found.uses > 3000
