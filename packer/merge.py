"""Merges the notes of all shards into the index, rejects.jsonl and manifest.json."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from packtrain._core.errors import CorruptFile, PackError
from packtrain._core.files import fsync_folder, make_folder, write_file
from packtrain._core.index import IndexWriter, text_column
from packtrain._core.manifest import INDEX, MANIFEST, REJECTS, ColumnInfo, FieldInfo, FileInfo, Manifest
from packtrain._core.opening import read_regular
from packtrain._core.problems import reading
from packtrain._core.schema import Field, Schema
from packtrain._core.typed import Mismatch, parse_json

from .listing import Listing, Reject
from .notes import MISSING, PARTS, ShardNote, load_note
from .plan import Plan

_MOST_REJECT_BYTES: Final = 1 << 30


def merge(folder: Path, plan: Plan, images: Listing) -> Manifest:
    """Writes the index, rejects.jsonl and, last, manifest.json. Then removes the notes.

    Raises:
        PackError: A shard is missing, a shard holds other lines than planned, or no line could be packed.
    """
    notes = [_sound_note(folder, plan, images, number) for number in range(len(plan.shards))]
    rejects = sorted([*images.rejects, *(item for note in notes for item in note.rejects)], key=lambda item: item.line)
    records = sum(note.info.records for note in notes)
    if not records:
        raise PackError(
            f"no line of {plan.lines} could be packed; the first: line {rejects[0].line}: {rejects[0].reason}. Mend "
            "the files and run the same command again with --retry-rejects"
        )
    manifest = Manifest(
        name=plan.name,
        format=plan.format,
        fields=tuple(
            FieldInfo.of(field)
            if plan.schema.plain
            else with_figures(field, [note.columns[f"{field.prefix}length"] for note in notes])
            for field in plan.schema.fields
        ),
        labels=plan.labels,
        classes=plan.classes,
        records=records,
        lines=plan.lines,
        rejects=len(rejects),
        duplicates=images.duplicates,
        plan_sha256=plan.sha256,
        written_by=plan.written_by if plan.encoder is None else f"{plan.written_by}, {plan.encoder}",
        rejects_file=write_rejects(folder, rejects),
        columns=_write_index(folder / INDEX, plan.schema, notes, images, records),
        shards=tuple(note.info for note in notes),
    )
    write_file(folder / MANIFEST, [manifest.dump()])
    remove_notes(folder)
    return manifest


def remove_notes(folder: Path) -> None:
    """Removes the notes; a finished dataset does not need them."""
    shutil.rmtree(folder / PARTS, ignore_errors=True)
    fsync_folder(folder)


def _sound_note(folder: Path, plan: Plan, images: Listing, number: int) -> ShardNote:
    note = load_note(folder, plan, number)
    name = plan.shards[number].name
    if note is None:
        raise PackError(f"shard {name} is missing from {folder}. Run the same pack command again")
    lines = np.concatenate([note.columns["line"], np.array([item.line for item in note.rejects], np.int64)])
    planned = images.line_numbers(plan.ordinals(number))
    if not np.array_equal(np.sort(lines), np.sort(planned)):
        raise PackError(
            f"shard {name} in {folder} holds other lines than planned. Remove it and run the same command again"
        )
    return note


def _write_index(
    folder: Path, schema: Schema, notes: Sequence[ShardNote], images: Listing, records: int
) -> tuple[ColumnInfo, ...]:
    if folder.exists():
        shutil.rmtree(folder)
    make_folder(folder)
    lines = np.concatenate([note.columns["line"] for note in notes])
    # Rows are in list order; place_of[row] is the place of the row's record.
    place_of = np.argsort(lines)
    writer = IndexWriter(folder, records)
    writer.add("line", lines[place_of])
    shards = np.repeat(np.arange(len(notes), dtype="<u4"), [note.info.records for note in notes])
    writer.add("shard", shards[place_of])

    def add(names: Iterable[str]) -> None:
        for name in names:
            writer.add(name, np.concatenate([note.columns[name] for note in notes])[place_of])

    add(schema.image.columns() if schema.image is not None else ())
    add(["label"] if schema.labels.kind != "none" else ())
    by_place = np.empty(records, "<i8")
    by_place[place_of] = np.arange(records)
    writer.add("by_place", by_place)
    writer.add_text("path", *text_column(images.paths(lines[place_of]), records))
    for field in schema.others:
        add(field.columns())
    return writer.finish()


def with_figures(field: Field, lengths: Sequence[npt.NDArray[np.int64]]) -> FieldInfo:
    """A field, and what its records amount to, whose `lengths` are int64 [any] each."""
    missing = sum(int((found == MISSING).sum()) for found in lengths)
    total = sum(int(found.sum()) for found in lengths) - missing * MISSING
    return FieldInfo.of(field, total, max(0, *(int(found.max(initial=0)) for found in lengths)), missing)


def write_rejects(folder: Path, rejects: Sequence[Reject]) -> FileInfo:
    """Writes rejects.jsonl. Returns what the manifest has to say about it."""
    lines = (json.dumps(asdict(item), ensure_ascii=False) + "\n" for item in rejects)
    data = "".join(lines).encode("utf-8", "backslashreplace")
    write_file(folder / REJECTS, [data])
    return FileInfo(REJECTS, len(data), crc32c(data))


def read_rejects(folder: Path, manifest: Manifest) -> list[Reject]:
    """Returns the refused lines of a finished dataset, in line order.

    Raises:
        CorruptFile: rejects.jsonl is missing or differs from what was written.
        UnreadableFile: It cannot be read.
    """
    path = folder / REJECTS
    with reading(path):
        data = read_regular(path, min(manifest.rejects_file.bytes, _MOST_REJECT_BYTES))
    if crc32c(data) != manifest.rejects_file.crc32c:
        raise CorruptFile(f"{path} is damaged: its checksum differs from the manifest's", file=REJECTS)
    rejects = []
    for number, line in enumerate(data.splitlines()):
        try:
            rejects.append(parse_json(Reject, line))
        except Mismatch as error:
            raise CorruptFile(f"{path} is damaged: line {number}: {error}", file=REJECTS) from error
    return rejects
