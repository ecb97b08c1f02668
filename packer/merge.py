"""Makes a dataset of packed shards: their notes say all that is needed, so it can do without the list."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from packtrain._core.arguments import checks_names
from packtrain._core.errors import OutputConflict, PackError, PacktrainError
from packtrain._core.files import file_errors, fsync_folder, locked, remove_temporaries
from packtrain._core.index import ROW_COLUMNS
from packtrain._core.manifest import CACHE, INDEX, MANIFEST, PLAN, Manifest, ShardInfo, holds
from packtrain._storage.remote.urls import Url, place_of

from .columns import Ints
from .finished import finished
from .listing import Listing, Reject
from .markers import FAILED, PACKED, PACKING
from .notes import PARTS, ListFacts, ShardNote, read_note
from .object_output import output_at
from .options import reject_limit
from .output import Output
from .pack_run import PackReport, pack_report
from .plan import Plan
from .publishing import collecting, write_dataset
from .rejects import RejectGuard
from .reordering import Reordering

if TYPE_CHECKING:
    from .foreign.indexer import IndexReport

_KNOWN: Final = (".npz", PACKING, FAILED, PACKED)
_NAMED: Final = 5
"""The most shards that a message names."""
_READERS: Final = 8
"""Notes that are read at the same time, which is mostly waiting on a network file system."""


@checks_names()
def merge(out: str | os.PathLike[str], *, max_rejects: str | int = "0.1%") -> PackReport | IndexReport:
    """Makes a dataset of the shards in `out`, when all of its parts are packed, or indexed.

    Anybody who can write there may do so, at any time and any number of times, also at the same time: the bytes are
    those of a dataset that was packed without parts.

    Args:
        out: Folder of the dataset, or its address in an object store.
        max_rejects: How many lines of the whole list may be refused, see `pack`. Each part counts those of its own
            shards; here they are added up.

    Returns:
        What the dataset holds, an `IndexReport` if it was indexed; `complete_before` is True if there was nothing left
        to do.

    Raises:
        UsageError: An argument has the wrong type.
        OutputConflict: Nothing was packed or indexed in `out`, a run without parts is at work there, or there are notes
            of shards that its plan does not have.
        PackError: Shards are missing, also of a finished dataset, or hold other lines than planned; the message names
            them.
        TooManyRejects: More lines were refused than allowed.
        CorruptFile: The plan, or the manifest of a finished dataset, is damaged.
        UnreadableFile: The note of a shard cannot be read.
    """
    from .foreign.indexer import merge_scans  # slow: packing merges as well, and knows what

    place = place_of("out", out)
    if (indexed := merge_scans(place, max_rejects)) is not None:
        return indexed
    with output_at(place) as output, file_errors(output.folder):
        folder = output.folder
        output.prepare()
        plan = plan_in(output)
        limit = reject_limit(max_rejects, plan.lines)
        with locked(folder / PLAN, shared=True):
            if (folder / MANIFEST).exists():
                return finish(output, plan, complete_before=True)
            try:
                _refuse_foreign_notes(output, plan)
                merge_notes(output, plan, guard=RejectGuard(limit, plan.lines))
            except (PacktrainError, OSError):
                # Another merge was faster, and has removed notes or files of this one.
                if not (folder / MANIFEST).exists():
                    raise
            return finish(output, plan, complete_before=False)


def plan_in(output: Output) -> Plan:
    """Reads the plan of an output in which something was packed.

    Raises:
        OutputConflict: There is none.
    """
    try:
        return Plan.load(output.folder)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise OutputConflict(_why_no_plan(output)) from error


def _why_no_plan(output: Output) -> str:
    place = shlex.quote(str(output.address))
    if holds(output.folder, CACHE):
        return f"{output.folder} is a growing cache, which is not merged: see `packtrain status {place}`"
    return (
        f"{output.address} has no {PLAN}, so nothing was packed or indexed there: is the path right? "
        f"`packtrain pack LIST {place}` or `packtrain index SHARD... {place}` begins a dataset"
    )


def _refuse_foreign_notes(output: Output, plan: Plan) -> None:
    planned = {shard.name for shard in plan.shards}
    for path in sorted((output.folder / PARTS).glob("[!.]*")):
        if path.suffix not in _KNOWN or path.stem not in planned:
            raise OutputConflict(
                f"{output.address / PARTS / path.name} belongs to no shard in {PLAN}, so it came from elsewhere: "
                "remove it and merge again"
            )


def finish(output: Output, plan: Plan, *, complete_before: bool) -> PackReport:
    """Remove what is no longer needed from a finished dataset, and report on it.

    Raises:
        OutputConflict: It has lost shards since.
        CorruptFile: The manifest is damaged, or belongs to another plan.
    """
    folder = output.folder
    manifest, lost = finished(output, plan)
    if lost:
        more = f" and {len(lost) - 1} others" if lost[1:] else ""
        raise OutputConflict(
            f"the dataset in {output.address} is finished, but has lost {plan.shards[lost[0]].name}{more} since. Run "
            "the command that packed it once more, without --part: it packs what is missing"
        )
    if (folder / PARTS).exists():
        remove_notes(folder)
    remove_leftovers(folder)
    output.finish()
    return pack_report(output, manifest, complete_before=complete_before)


@dataclass(frozen=True)
class _Merged:
    """The content of all notes, apart from the rows.

    Attributes:
        shards: What the manifest will say about each shard.
        rejects: Refused lines of each shard.
        listed: What there is to know of the list; None if there is no shard.
        gaps: Ordinals of the refused lines, ascending, int64 [any].
        gap_lines: Their numbers in the list.
    """

    shards: list[ShardInfo]
    rejects: list[tuple[Reject, ...]]
    listed: ListFacts | None
    gaps: Ints
    gap_lines: Ints


def merge_notes(
    output: Output,
    plan: Plan,
    images: Listing | None = None,
    guard: RejectGuard | None = None,
    *,
    at_once: int | None = None,
) -> Manifest:
    """Writes the index, rejects.jsonl and, last, manifest.json. Then removes the notes.

    Several may do so at the same time: they write the same files, each of which appears as a whole.

    Args:
        output: Where the shards and their notes are.
        plan: The plan.
        images: The list, to compare the lines in the notes with it; None to do without.
        guard: Counts the refused lines; None if they are counted already.
        at_once: Number of records that are in memory at a time, see `Reordering`.

    Raises:
        TooManyRejects: There are more refused lines than `guard` allows.
        PackError: A shard is missing, a shard holds other lines than planned, or no line could be packed.
    """
    folder = output.folder
    with collecting(folder, plan.schema, plan.entries, at_once) as rows:
        merged = _read_notes(output, plan, images, rows)
        if images is None:
            _check_lines(output.address, plan, rows, merged)
        listed = merged.listed
        if listed is None:
            listed = ListFacts(0, ()) if images is None else ListFacts(images.duplicates, tuple(images.rejects))
        by_shard = [listed.rejects, *merged.rejects]
        if guard is not None:
            for number, refused in enumerate(by_shard, -1):
                guard.count(number, refused)
        rejects = sorted((item for refused in by_shard for item in refused), key=lambda item: item.line)
        if not rows.records:
            first = f"; the first: line {rejects[0].line}: {rejects[0].reason}" if rejects else ""
            raise PackError(
                f"no line of {plan.lines} could be packed{first}. Mend the files and pack again with --retry-rejects"
            )
        described = partial(
            Manifest,
            name=plan.name,
            format=plan.format,
            lines=plan.lines,
            duplicates=listed.duplicates,
            plan_sha256=plan.sha256,
            written_by=plan.written_by if plan.encoder is None else f"{plan.written_by}, {plan.encoder}",
            shards=tuple(merged.shards),
        )
        manifest = write_dataset(folder, plan.schema, rows, merged.gaps, rejects, described)
    remove_notes(folder)
    return manifest


def remove_notes(folder: Path) -> None:
    """Removes the notes; a finished dataset does not need them."""
    shutil.rmtree(folder / PARTS, ignore_errors=True)
    fsync_folder(folder)


def remove_leftovers(folder: Path) -> None:
    """Removes the temporary files of everybody, also of those who are still at work and whose work is not needed."""
    remove_temporaries(folder)
    for inside in (folder / PARTS, folder / INDEX):
        # A link leads out of the dataset.
        if not inside.is_symlink():
            remove_temporaries(inside)


def _read_notes(output: Output, plan: Plan, images: Listing | None, rows: Reordering) -> _Merged:
    """Adds what the notes say to `rows`; compares the lines with the list if there is one.

    Raises:
        PackError: A shard is missing or has no note of its own; the message names the first ones. Or a shard holds
            other lines than planned, as far as it can be seen by itself.
    """
    wrong: list[str] = []
    others: list[str] = []
    shards: list[ShardInfo] = []
    rejects: list[tuple[Reject, ...]] = []
    listed = None
    gaps, gap_lines = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for number, (shard, note) in enumerate(zip(plan.shards, _notes(output, plan), strict=True)):
        if isinstance(note, str):
            wrong.append(f"{shard.name} {note}")
        # Nothing comes of it if one is wrong; but all of these are named.
        if isinstance(note, str) or wrong:
            continue
        lines = np.concatenate([note.columns.arrays["line"], np.array([item.line for item in note.rejects], np.int64)])
        planned, order = np.sort(plan.ordinals(number)), np.argsort(lines, kind="stable")
        if len(lines) != len(planned) or (
            images is not None and not np.array_equal(images.line_numbers(planned), lines[order])
        ):
            others.append(shard.name)
        if others:
            continue
        # Lines ascend as ordinals do.
        ordinals = np.empty_like(planned)
        ordinals[order] = planned
        count = note.info.records
        shard_column = np.full(count, number, ROW_COLUMNS["shard"])
        rows.add(ordinals[:count], {**note.columns.arrays, "shard": shard_column}, note.columns.texts)
        # Not views, which would keep all of it.
        gaps.append(ordinals[count:].copy())
        gap_lines.append(lines[count:].copy())
        shards.append(note.info)
        rejects.append(note.rejects)
        listed = listed or note.facts.listed
    if wrong:
        more = f", and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
        raise PackError(
            f"{len(wrong)} of {len(plan.shards)} shards are missing from {output.address}: "
            f"{'; '.join(wrong[:_NAMED])}{more}. Run the same pack command again, which packs what is missing; "
            f"if it is packed in parts (--part), `packtrain status {shlex.quote(str(output.address))}` says "
            "which are left"
        )
    if others:
        raise _other_lines(output.address, others[0])
    found, numbers = np.concatenate(gaps), np.concatenate(gap_lines)
    ascending = np.argsort(found)
    return _Merged(shards, rejects, listed, found[ascending], numbers[ascending])


def _notes(output: Output, plan: Plan) -> Iterator[ShardNote | str]:
    """Yields the note of each shard, or what is wrong with it; a few are in memory at a time."""

    def read(number: int) -> ShardNote | str:
        return read_note(output.folder, plan, number, output.holds)

    count = len(plan.shards)
    with ThreadPoolExecutor(_READERS) as pool:
        for start in range(0, count, _READERS):
            yield from pool.map(read, range(start, min(count, start + _READERS)))


def _check_lines(address: Path | Url, plan: Plan, rows: Reordering, merged: _Merged) -> None:
    """Makes sure, without the list, that the lines of all shards are as planned: they ascend as the entries do.

    All notes together say which lines there are. So a line that a note has in place of one of its own is found only if
    another note has it as well, or if the order of the lines gives it away.
    """
    last = np.iinfo(np.int64).min
    for first, lines in _all_lines(rows, merged):
        if lines[0] < last or (first and lines[0] == last) or (lines[1:] <= lines[:-1]).any():
            raise _disorder(address, plan, np.concatenate([each for _, each in _all_lines(rows, merged)]))
        last = lines[-1]


def _all_lines(rows: Reordering, merged: _Merged) -> Iterator[tuple[int, Ints]]:
    """Yields the lines of some entries at a time, packed or refused, and the ordinal of the first."""
    for first, lines in rows.filled("line"):
        start, stop = np.searchsorted(merged.gaps, (first, first + len(lines)))
        lines[merged.gaps[start:stop] - first] = merged.gap_lines[start:stop]
        yield first, lines


def _disorder(address: Path | Url, plan: Plan, lines: Ints) -> PackError:
    """The error for `lines`, by ordinal, that do not ascend; it names the shards."""
    entries = np.sort(lines)
    twice = entries[1:][entries[1:] == entries[:-1]]
    wrong = np.flatnonzero(lines == twice[0] if len(twice) else lines != entries)
    names = [shard.name for number, shard in enumerate(plan.shards) if np.isin(wrong, plan.ordinals(number)).any()]
    if not len(twice):
        return _other_lines(address, names[0])
    return PackError(
        f"shards {' and '.join(names)} in {address} hold the same line, {twice[0]}. Remove them and run the same pack "
        "command again"
    )


def _other_lines(address: Path | Url, name: str) -> PackError:
    return PackError(
        f"shard {name} in {address} holds other lines than planned. Remove it and run the same command again"
    )
