"""Tar shards, which `tar`, `webdataset` and DALI can read.

A shard is a POSIX ustar archive with the suffix ``.tar``. Each record is one or two consecutive members:

- ``KEY.EXT``: the bytes of the record. KEY is the line number, in decimal, padded with zeros to nine digits. EXT names
  the encoding in lower case (``jpg``, ``png``, ``npy``, ...).
- The label, unless the dataset has none: ``KEY.cls``, in decimal, for a scalar int; ``KEY.json``, a number or a list of
  numbers, for any other label.

Headers are ustar with mode 0644; uid, gid and mtime are 0, and there are no user or group names. So the same records
give the same bytes. The archive ends with two blocks of zeros, without further padding. Beside each shard is
``NAME.idx``, the index for DALI's webdataset reader, version v1.2: a line ``v1.2 COUNT``, then one line per record with
``EXT OFFSET SIZE NAME`` for each of its members. OFFSET is the offset of the member's data and SIZE its size, both in
bytes.

Raw records are `.npy` files: a 128-byte header and H x W x C uint8 pixels.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from packtrain._core.errors import CorruptFile
from packtrain._core.options import LabelSpec

from . import MOST_LABEL_BYTES, StoredLabel, StoredRecord, read_label

SUFFIX: Final = ".tar"
KEY_DIGITS: Final = 9
BLOCK: Final = 512


def label_extension(labels: LabelSpec) -> str:
    """Returns the extension of the member that holds a label, without the dot."""
    return "cls" if labels == LabelSpec("int") else "json"


def walk(path: Path, labels: LabelSpec) -> Iterator[StoredRecord]:
    """Yields every record of the archive, found by Python's `tarfile`."""
    suffix = label_extension(labels)
    try:
        with tarfile.open(path, "r:") as archive:
            members = iter(archive)
            for member in members:
                if not member.isreg() or member.issparse():
                    raise ValueError(f"member {member.name!r} is not a plain file")
                key, _, _ = member.name.partition(".")
                label: StoredLabel = None
                if labels.kind != "none":
                    partner = next(members, None)
                    if partner is None or partner.name != f"{key}.{suffix}" or not partner.isreg():
                        raise ValueError(f"member {member.name!r} is not followed by {key}.{suffix}")
                    label = read_label(_content(archive, partner))
                yield StoredRecord(int(key), member.offset_data, member.size, label)
    except (tarfile.TarError, ValueError, OSError, RecursionError) as error:
        raise CorruptFile(f"{path} is not a sound tar shard: {error}", file=path.name) from error


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    content = archive.extractfile(member)
    return content.read(MOST_LABEL_BYTES + 1) if content else b""
