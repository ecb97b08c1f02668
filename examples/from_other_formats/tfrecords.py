"""Packs TFRecord files of ImageNet, which the package tfrecord reads: python tfrecords.py OUT FILE..."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from tfrecord.reader import tfrecord_loader

from packtrain import pack

FEATURES = {"image/encoded": "byte", "image/class/label": "int"}


def samples(paths: Iterable[str], first_label: int = 1) -> Iterator[dict[str, Any]]:
    """Yields the samples of all files, whose lowest label is `first_label`: TensorFlow's ImageNet counts from 1."""
    for path in paths:
        for found in tfrecord_loader(path, None, FEATURES):
            label = int(found["image/class/label"].item()) - first_label
            yield {"image": bytes(found["image/encoded"]), "label": label}


if __name__ == "__main__":
    out, *paths = sys.argv[1:]
    pack(samples(sorted(paths)), out)
