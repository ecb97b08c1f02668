"""Finished datasets: what they have lost since, and how they are reopened, so that it can be packed again."""

from __future__ import annotations

import numpy as np

from packtrain._core.errors import CorruptFile, OutputConflict
from packtrain._core.index import Index
from packtrain._core.manifest import MANIFEST, PLAN, Manifest, ShardInfo, holds

from .columns import ShardColumns
from .listing import Listing, Reject
from .notes import ListFacts, NoteFacts, ShardNote, make_parts
from .output import Output
from .plan import Plan
from .rejects import read_rejects


def reopen(output: Output, plan: Plan, images: Listing, retry_rejects: bool) -> bool:
    """Turns a finished dataset into an unfinished one if shards are missing or are to be packed again.

    The notes of the sound shards are written before the manifest is removed, so a crash loses nothing.

    Args:
        output: Where the dataset is.
        plan: Plan of the dataset.
        images: The list.
        retry_rejects: True if shards with refused lines are to be packed again.

    Returns:
        True if the dataset was reopened; False if no shard has to be packed.

    Raises:
        CorruptFile: Manifest, index or rejects.jsonl is damaged, or the manifest belongs to another plan.
    """
    folder = output.folder
    manifest, lost = finished(output, plan)
    output.bring_index()
    _require_index(output, manifest)
    rejects = {item.line: item for item in read_rejects(folder, manifest)}
    refused = [_refused(plan, images, number, rejects) for number in range(len(plan.shards))]
    sound = [number not in lost and not (retry_rejects and lines) for number, lines in enumerate(refused)]
    if all(sound):
        return False
    index = Index.of(folder, manifest)
    found = ShardColumns.from_index(index, plan.schema)
    make_parts(folder)
    first = 0
    listed = ListFacts(images.duplicates, tuple(images.rejects))
    for number, (info, rejected, keep) in enumerate(zip(manifest.shards, refused, sound, strict=True)):
        rows = index.rows_at(np.arange(first, first + info.records))
        first += info.records
        if keep:
            facts = NoteFacts(plan.sha256, info, rejected, None if number else listed)
            ShardNote(facts, found.rows(rows)).save(folder)
    output.unpublish()
    return True


def finished(output: Output, plan: Plan) -> tuple[Manifest, list[int]]:
    """Return the manifest of a finished dataset, and the numbers of the shards that it has lost since.

    Raises:
        CorruptFile: The manifest is damaged, or belongs to another plan.
    """
    manifest = Manifest.load(output.folder)
    if manifest.plan_sha256 != plan.sha256 or len(manifest.shards) != len(plan.shards):
        raise CorruptFile(
            f"{output.address}: manifest and plan do not belong together. Pack into another folder", file=PLAN
        )
    return manifest, [number for number, info in enumerate(manifest.shards) if not output.holds(info)]


def require_as_merged(output: Output, info: ShardInfo) -> None:
    """Makes sure that a shard that has just been packed was merged like this, if it was merged meanwhile.

    Raises:
        OutputConflict: Another process has packed it with other bytes, which the manifest is about.
    """
    if holds(output.folder, MANIFEST) and info not in Manifest.load(output.folder).shards:
        raise OutputConflict(
            f"{output.address} was merged while {info.name} was packed once more, now with other bytes, because its "
            "images differ from what another process has read. Remove this shard and run the same command without "
            "--part, which packs it again"
        )


def _require_index(output: Output, manifest: Manifest) -> None:
    """Looks for the files of the index, without which a dataset is not complete."""
    for column in manifest.columns:
        path = output.folder / column.file
        if not path.exists() or path.stat().st_size != column.bytes:
            raise CorruptFile(
                f"{output.address / column.file} is missing, or has another size than was written. Take it from a "
                f"sound copy; or remove {output.address / MANIFEST} and run the same command again, which packs all "
                "shards again",
                file=column.file,
            )


def _refused(plan: Plan, images: Listing, number: int, rejects: dict[int, Reject]) -> tuple[Reject, ...]:
    """Returns those of `rejects`, which are by line, that were planned for shard `number`."""
    if not rejects:
        return ()
    lines = np.sort(images.line_numbers(plan.ordinals(number))).tolist()
    return tuple(rejects[line] for line in lines if line in rejects)
