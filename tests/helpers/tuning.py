"""What the tests of tuning share: a dataset on a host with four cores, and the prefetch factors that are tried."""

from __future__ import annotations

from packtrain._extras.tuning import TuneTarget

TARGET = TuneTarget(
    path="/data/train",
    store="crop-ready",
    records=1000,
    record_bytes=100_000,
    decoders=("extension", "pillow"),
    excluded={"accimage": "not installed"},
    cores=4,
    default_workers=4,
)

PREFETCHES = (2, 4, 8)
