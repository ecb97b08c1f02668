"""Reopens a finished dataset, so that missing shards can be packed again."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from packtrain._core.errors import CorruptFile
from packtrain._core.files import fsync_folder
from packtrain._core.index import Index
from packtrain._core.manifest import MANIFEST, PLAN, Manifest

from .listing import Listing, Reject
from .merge import read_rejects
from .notes import NOTE_COLUMNS, ShardNote, make_parts, shard_is_present
from .plan import Plan


def reopen(folder: Path, plan: Plan, images: Listing, retry_rejects: bool) -> Manifest | None:
    """Turns a finished dataset into an unfinished one if shards are missing or are to be packed again.

    The notes of the sound shards are written before the manifest is removed, so a crash loses nothing.

    Args:
        folder: Folder of the dataset.
        plan: Plan of the dataset.
        images: The list.
        retry_rejects: True if shards with refused lines are to be packed again.

    Returns:
        The manifest if no shard has to be packed; None if the dataset was reopened.

    Raises:
        CorruptFile: Manifest, index or rejects.jsonl is damaged, or the manifest belongs to another plan.
    """
    manifest = Manifest.load(folder)
    if manifest.plan_sha256 != plan.sha256 or len(manifest.shards) != len(plan.shards):
        raise CorruptFile(f"{folder}: manifest and plan do not belong together. Pack into another folder", file=PLAN)
    rejects = {item.line: item for item in read_rejects(folder, manifest)}
    refused = [_refused(plan, images, number, rejects) for number in range(len(plan.shards))]
    sound = [
        shard_is_present(folder, info) and not (retry_rejects and lines)
        for info, lines in zip(manifest.shards, refused, strict=True)
    ]
    if all(sound):
        return manifest
    index = Index.of(folder, manifest)
    index.check_all()
    make_parts(folder)
    first = 0
    for info, rejected, keep in zip(manifest.shards, refused, sound, strict=True):
        rows = index.rows_at(np.arange(first, first + info.records))
        first += info.records
        if keep:
            columns = {name: index[name][rows] for name in (*NOTE_COLUMNS, "label") if name in index}
            ShardNote(plan.sha256, info, rejected, columns).save(folder)
    fsync_folder(folder)
    (folder / MANIFEST).unlink()
    fsync_folder(folder)
    return None


def _refused(plan: Plan, images: Listing, number: int, rejects: dict[int, Reject]) -> tuple[Reject, ...]:
    """Returns those of `rejects`, which are by line, that were planned for shard `number`."""
    if not rejects:
        return ()
    lines = np.sort(images.line_numbers(plan.ordinals(number))).tolist()
    return tuple(rejects[line] for line in lines if line in rejects)
