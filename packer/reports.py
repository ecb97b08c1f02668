"""What a run of the packer says: its progress, and what it has done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packtrain._core.manifest import Manifest
from packtrain._storage.remote.urls import Url

from .output import Output


@dataclass(frozen=True)
class PackProgress:
    """Progress of a run.

    Attributes:
        done: Number of lines that are done, including those of earlier runs.
        total: Number of lines to pack.
        resumed: Number of lines that earlier runs have done.
        rejects: Number of lines refused so far.
    """

    done: int
    total: int
    resumed: int
    rejects: int


@dataclass(frozen=True)
class PackReport:
    """Result of a run.

    Attributes:
        dataset: Folder or address of the dataset.
        complete_before: True if the dataset was already complete, so that nothing was done.
        packed: Number of shards packed by this run.
        resumed: Number of shards finished by earlier runs.
        records: Number of records in the dataset.
        bytes: Total size of the shards in bytes.
        rejects: Number of refused lines.
        duplicates: Number of lines that repeat an earlier line; they are packed as well.
        remarks: What is worth knowing about the records that this run packed, each with the number of records it is
            about; above all why records are not crop-ready. The commonest first.
        part: The part that was packed, such as ``"3/16"``; None if it was the whole dataset. For a part, the numbers of
            shards, records, bytes and rejects above are those of its shards alone.
        missing: Number of shards of the whole dataset that still had no note when this part was done; 0 without parts.
        classes: Class names by label; None if the labels have no names, and for a part.
    """

    dataset: Path | Url
    complete_before: bool
    packed: int
    resumed: int
    records: int
    bytes: int
    rejects: int
    duplicates: int
    remarks: Mapping[str, int] = field(default_factory=dict)
    part: str | None = None
    missing: int = 0
    classes: tuple[str, ...] | None = None


def dataset_report(output: Output, manifest: Manifest, *, packed: int = 0, complete_before: bool = False) -> PackReport:
    """What there is to say of a finished dataset."""
    return PackReport(
        dataset=output.address,
        complete_before=complete_before,
        packed=packed,
        resumed=len(manifest.shards) - packed,
        records=manifest.records,
        bytes=manifest.bytes,
        rejects=manifest.rejects,
        duplicates=manifest.duplicates,
        classes=manifest.classes,
    )
