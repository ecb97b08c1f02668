"""Writes the dataset of foreign shards: names and links of the shards, labels, index and manifest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np

from packtrain._core.errors import PackError
from packtrain._core.files import make_folder, write_file
from packtrain._core.index import IndexWriter, text_column
from packtrain._core.manifest import INDEX, LINKED_SUFFIX, MANIFEST, FieldInfo, Link, Manifest, ShardInfo
from packtrain._core.options import LabelSpec
from packtrain._core.schema import Field
from packtrain._storage.staging.files import Location

from ..merge_notes import with_figures
from ..notes import MISSING
from ..rejects import write_rejects
from .extending import Before
from .plan import IndexPlan
from .records import Label
from .relinking import AGAIN, base_name, common_folder, path_below
from .scan import Scan
from .tables import Rows

_PLAIN: Final = re.compile(rf"[A-Za-z0-9_-][A-Za-z0-9._-]{{0,250}}{re.escape(LINKED_SUFFIX)}")


def shard_names(places: Sequence[Location], taken: Sequence[str]) -> list[str]:
    """Unique plain names for new shards: what they are called, if that can be.

    Args:
        places: The shards.
        taken: The names of the shards before them.
    """
    used, names = {*taken}, []
    for number, place in enumerate(places, len(taken)):
        name = place.name
        if not _PLAIN.fullmatch(name) or name in used:
            stem = re.sub("[^A-Za-z0-9_-]", "_", PurePosixPath(name).stem)[:100]
            name = f"{stem}-{number:06d}{LINKED_SUFFIX}"
        while name in used:
            name = f"x{name}"
        used.add(name)
        names.append(name)
    return names


def linked_shards(
    scans: Sequence[Scan], places: Sequence[Location], names: Sequence[str], rows: Rows, before: Before | None
) -> tuple[Location, list[ShardInfo]]:
    """Returns the folder that all links start from, and what the manifest says about the shards.

    Raises:
        UsageError: Some lie on this machine and others in a store, or they lie in several buckets.
    """
    old = [] if before is None else before.places()
    base = common_folder([*old, *places])
    infos = []
    for place, shard in zip(old, [] if before is None else before.manifest.shards, strict=True):
        link = Link("", 0) if shard.link is None else shard.link
        infos.append(replace(shard, link=replace(link, path=path_below(place, base))))
    for scan, place, name in zip(scans, places, names, strict=True):
        link, records = Link(path_below(place, base), *scan.state[1:]), int((rows.shards == scan.number).sum())
        infos.append(ShardInfo(name, scan.state.bytes, scan.crc32c, records, (), link))
    return base, infos


def write_dataset(
    temporary: Path,
    folder: Location,
    plan: IndexPlan,
    fields: Sequence[Field],
    rows: Rows,
    links: tuple[Location, Sequence[ShardInfo]],
    before: Before | None,
) -> Manifest:
    """Writes index, rejects.jsonl and manifest to `temporary`; all of it is to lie in `folder`.

    Raises:
        PackError: The labels do not fit together.
    """
    base, shards = links
    spec, classes, labels = settle_labels(rows.labels, None if before is None else before.manifest)
    make_folder(temporary / INDEX)
    writer = IndexWriter(temporary / INDEX, len(rows.lines))
    writer.add("line", rows.lines)
    writer.add("shard", rows.shards)
    for field in fields:
        for name, column in rows.columns[field.name].items():
            writer.add(field.prefix + name, column)
    if labels is not None:
        writer.add("label", labels)
    writer.add("by_place", np.arange(len(rows.lines), dtype="<i8"))
    writer.add_text("path", *text_column(rows.paths, len(rows.paths)))
    manifest = Manifest(
        name=re.sub("[^A-Za-z0-9_-]", "-", folder.name)[:255] or INDEX,
        format="tar",
        fields=tuple(_found(field, rows) for field in fields),
        labels=spec,
        classes=classes,
        records=len(rows.lines),
        lines=len(rows.lines) + len(rows.rejects),
        rejects=len(rows.rejects),
        duplicates=0,
        plan_sha256=plan.sha256,
        written_by=plan.written_by,
        rejects_file=write_rejects(temporary, rows.rejects),
        columns=writer.finish(),
        shards=tuple(shards),
        base=base_name(base, folder),
    )
    write_file(temporary / MANIFEST, [manifest.dump()])
    return manifest


def settle_labels(
    labels: Sequence[Label] | None, before: Manifest | None
) -> tuple[LabelSpec, tuple[str, ...] | None, Any]:
    """Decides the type of the labels: whole numbers, floating-point numbers, or the names of classes.

    Classes are numbered in the order of their names; those that come with new shards follow those of before.

    Returns:
        The type, the names of the classes or None, and the labels as an array [rows] or None.

    Raises:
        PackError: There are numbers and names, or the type differs from that of the dataset `before`.
    """
    if labels is None:
        return LabelSpec("none"), None, None
    kinds = {type(label) for label in labels}
    if str in kinds and len(kinds) > 1:
        raise PackError("some labels are numbers and others are texts: --label takes one or the other")
    classes: tuple[str, ...] | None = None
    if str in kinds:
        known = () if before is None else before.classes or ()
        classes = (*known, *sorted({str(label) for label in labels} - set(known)))
        numbers = {name: number for number, name in enumerate(classes)}
        labels = [numbers[str(label)] for label in labels]
    spec = LabelSpec("float" if float in kinds else "int")
    if before is not None and (spec, classes is None) != (before.labels, before.classes is None):
        raise PackError(f"the labels of the new shards are of another type than those of the dataset. {AGAIN}")
    return spec, classes, np.array(labels, spec.dtype)


def _found(field: Field, rows: Rows) -> FieldInfo:
    """What the manifest says about a field, which is optional if a row is without it."""
    lengths = rows.columns[field.name]["length"]
    return with_figures(replace(field, optional=bool((lengths == MISSING).any())), [lengths])
