"""Packs a list step by step: read the list, agree on a plan, pack the missing shards, merge."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from packtrain._core.arguments import checks_names, flag, instance, whole
from packtrain._core.arguments import function as require_function
from packtrain._core.errors import TooManyRejects, UsageError
from packtrain._core.files import file_errors, fsync_folder, locked, remove_abandoned
from packtrain._core.manifest import MANIFEST, PLAN, Manifest, is_dataset
from packtrain._storage.location import absolute
from packtrain._storage.remote.urls import Url, place_of

from .engine import Engine
from .fetching import fetched_list
from .finished import reopen, require_as_merged
from .hub import HubAddress
from .listing import Items, Listing, is_items
from .lists.folder import doubt_classes
from .lists.reader import read_list
from .merge import finish, merge_notes, remove_leftovers
from .notes import PARTS, note_path, read_facts, without_note
from .object_output import output_at
from .options import PackOptions, reject_limit
from .output import Output, require_usable
from .pack_run import PackProgress, PackReport, PackRun, pack_report
from .parts import Part
from .plan import Plan
from .planning import outline_plan, plan_shards
from .rejects import RejectGuard
from .user_code import require_sendable

_PARQUET: Final = (".parquet", ".pq")


@checks_names(options=PackOptions)
def pack(
    source: str | os.PathLike[str] | Items | Iterable[Any],
    out: str | os.PathLike[str],
    options: PackOptions | None = None,
    *,
    function: Callable[[Any], Any] | None = None,
    num_workers: int | None = None,
    max_rejects: str | int = "0.1%",
    retry_rejects: bool = False,
    spool: str | os.PathLike[str] | None = None,
    engine: Engine | None = None,
    part: Part | str | None = None,
    on_progress: Callable[[PackProgress], None] | None = None,
    on_warning: Callable[[str], None] | None = None,
) -> PackReport:
    """Packs a list of images, an image folder, another dataset, or samples that Python code makes, into a dataset.

    The rows of a dataset keep their lines, paths, labels and classes; its container and how it stores pixels stay as
    well, unless the options say otherwise. What is to be stored as it is, is copied; all else is decoded.

    If a run stops for any reason, even a crash, the same call continues where it stopped and gives the same bytes; but
    samples that come one by one, from an iterator, are packed in one go or not at all.

    Several machines that share `out` can each pack a part at the same time. Each shard belongs to one part of N, so N
    may be another one when the same call is repeated; the same part may even run twice. `packtrain.pack_status` says
    how far all of them are, and `packtrain.merge` makes the dataset when all shards are there.

    Args:
        source: The list (``path label`` on each line, or columns as in CSV files), a folder with one folder of images
            per class, or a folder with a dataset, packed or indexed. A list may be an address in an object store, such
            as ``"s3://bucket/train.txt"``, and may name images there. Or Parquet files with images inside: a file, a
            folder, a pattern, a list of paths, or an address on the Hugging Face Hub, such as
            ``"hf://datasets/ylecun/mnist/mnist/train-*.parquet"``. Or inputs, such as a list, an array or a
            map-style dataset, whatever has a length and items by number: each row is a sample that `function` makes of
            an input, or the input itself. Or any other iterable of samples, such as a generator. A sample is a dict of
            a field's name and its value, or a pair of image and label.
        out: Folder of the dataset. It must be new, empty, or packed (completely or not) by the same plan. Inside an
            image folder, it is left out of what is packed. It may be an address in an object store, to which each shard
            goes as soon as it is finished, and the manifest last.
        options: What to store, and how; None for the defaults.
        function: Makes a sample of an input, and the same one whenever it is called; None if the inputs are samples. An
            input for which it raises is refused.
        num_workers: Number of worker processes. The default, 1, packs in the calling process and uses only one core;
            the command ``packtrain pack`` uses all available cores. Workers are spawned, so with more than one the
            calling script needs the usual ``if __name__ == "__main__"``. With an engine, how many shards are packed at
            the same time at most; by default as many as the engine can.
        max_rejects: How many lines may be refused: a percentage (``"0.1%"``) or a count (``"20"`` or ``20``). A
            percentage above zero allows at least one. The rejects of a dataset that is packed do not count.
        retry_rejects: True to pack shards that have refused lines again, which a part cannot do. Where there are no
            locks, as in an object store, nobody may merge meanwhile.
        spool: Folder of this machine for shards that are on their way to an object store, one per worker; None for the
            folder of temporary files.
        engine: What packs the shards: None for this machine, or ``RayEngine()`` for a Ray cluster, whose machines must
            all see the images and `out` under the same paths.
        part: Which part to pack: ``Part(3, 16)`` or ``"3/16"``; or ``"auto"``, to read it from the variables of a Slurm
            array, see `Part.parse`. None packs everything, with nobody else at work in `out`, and merges.
        on_progress: Called in the calling process when a shard is begun, about five times a second per worker, and
            after each shard.
        on_warning: Called before packing begins, with each warning for the user: a sentence, and what to do.

    Returns:
        What was done, and what the dataset holds.

    Raises:
        ListError: The list is unusable.
        UsageError: An argument has the wrong type or is out of range, or the options do not fit the list.
        DatasetError: The dataset that is to be packed is not sound; the message names record and shard.
        RemoteError: An object store cannot be reached, or does not answer as it should.
        OutputConflict: `out` holds something else, or another packer is working there; or a part is asked for of a
            finished dataset that has lost shards.
        CorruptFile: `out` holds a dataset or plan that is damaged.
        UnreadableFile: What `out` holds of earlier runs cannot be read.
        TooManyRejects: More lines were refused than allowed; by a part, in its own shards. Finished shards are kept.
        ShardFailed: A shard failed twice for a reason other than the content of its images.
        NoSpace: The file system of `out` is full. Finished shards are kept.
    """
    options = PackOptions() if options is None else options
    instance("options", options, PackOptions)
    if num_workers is None:
        num_workers = 1 if engine is None else sys.maxsize
    part = Part.of(part)
    if part is not None and engine is not None:
        raise UsageError("a cluster packs all parts: leave out `part`, or `engine`")
    whole("num_workers", num_workers, 1)
    require_function("on_progress", on_progress)
    require_function("on_warning", on_warning)
    require_function("function", function)
    flag("retry_rejects", retry_rejects)
    if retry_rejects and part is not None:
        # A merge reads notes of finished shards, and so may others; whoever replaces these must be alone.
        raise UsageError(
            "`retry_rejects` replaces finished shards, which a part cannot do beside others: leave out `part`"
        )
    target, given = place_of("out", out), _given(source, function)
    if not isinstance(given, Path | Url | HubAddress) and not is_items(given):
        only = {"part": part, "engine": engine, "num_workers": num_workers > 1}
        _require_stream(target, only | {"retry_rejects": retry_rejects, "spool": spool})
        from .stream import Stream  # slow: not on the way to the first record of a list

        return Stream(given, function, options, max_rejects, on_progress).pack(Path(target))
    if engine is not None:
        target, given, options = _seen_from_elsewhere(target, given, options)
    with output_at(target, spool) as output:
        with file_errors(output.folder):
            require_usable(output.folder)
        with open_listing(given, output.folder, options, on_warning, function) as (
            images,
            options,
            before,
        ):
            if num_workers > 1:
                require_sendable(images.source, elsewhere=engine is not None)
            return pack_listing(
                images,
                output,
                options,
                num_workers=num_workers,
                max_rejects=max_rejects,
                before=before,
                retry_rejects=retry_rejects,
                engine=engine,
                part=part,
                on_progress=on_progress,
            )


def _from_hugging_face(
    source: Any, options: PackOptions, on_warning: Callable[[str], None] | None
) -> tuple[Items, PackOptions] | None:
    """The samples of Parquet files with images inside, or of the library ``datasets``; None for anything else."""
    if isinstance(source, Url):
        return None
    if isinstance(source, Path) and (is_dataset(source) or not (source.is_dir() or source.suffix in _PARQUET)):
        return None
    from .hugging_face import hugging_face_samples  # slow: not on the way to the first record of a list

    return hugging_face_samples(source, options, on_warning)


def _given(source: Any, function: Callable[[Any], Any] | None) -> Any:
    """Returns where a list or a dataset lies, or inputs and samples as they are.

    Raises:
        UsageError: It is none of these, or there is a function for what takes none.
    """
    if isinstance(source, str | os.PathLike) or not (isinstance(source, Iterable) or hasattr(source, "__getitem__")):
        place = HubAddress.of(source) or place_of("source", source)
        if function is not None:
            raise UsageError(
                f"`function` makes samples of inputs, and {place} is a list or a folder: give the inputs themselves, "
                "such as the lines of the list"
            )
        return place
    if isinstance(source, bytes | bytearray | memoryview | Mapping):
        raise UsageError(
            f"source is an object of type {type(source).__name__}: expected a path, or samples, such as a list of dicts"
        )
    return source


def _require_stream(out: Path | Url, only: Mapping[str, object]) -> None:
    """Refuses what cannot be done with samples that come one by one.

    Args:
        out: Where the dataset is to lie.
        only: The arguments that are for lists and inputs, by name.

    Raises:
        UsageError: One of them is given.
    """
    if isinstance(out, Url):
        raise UsageError(
            f"{out}: samples that come one by one are packed into a folder of this machine. Pack into one, and then "
            f"pack that folder to the address: pack(folder, {str(out)!r})"
        )
    for name in (name for name, value in only.items() if value):
        raise UsageError(
            f"`{name}`: samples that come one by one, as from a generator, have one reader and are packed in one go. "
            "Leave it out; or give inputs, such as a list, and a `function` that makes a sample of each"
        )


def pack_listing(
    images: Listing,
    output: Output,
    options: PackOptions,
    *,
    num_workers: int = 1,
    max_rejects: str | int = "0.1%",
    before: int = 0,
    order: npt.NDArray[np.int64] | None = None,
    retry_rejects: bool = False,
    engine: Engine | None = None,
    part: Part | None = None,
    on_progress: Callable[[PackProgress], None] | None = None,
) -> PackReport:
    """Packs what `open_listing` gave; `pack` says what the arguments mean, and what is raised.

    With `order`, int64 [entries], that is the entry at each place, and the seed means nothing.
    """
    guard = RejectGuard(before + reject_limit(max_rejects, images.lines - before), images.lines, images)
    with file_errors(output.folder):
        plan = _prepare(images, output, options, guard).in_order(order)
        numbers = range(len(plan.shards)) if part is None else part.shards(len(plan.shards))
        role = "" if part is None else f"part {part}"
        run = PackRun(output, plan, images, numbers, guard, num_workers, engine, role, retry_rejects, on_progress)
        with locked(output.folder / PLAN, shared=part is not None):
            return _pack_all(run) if part is None else _pack_part(run, str(part))


@contextmanager
def open_listing(
    source: Path | Url | HubAddress | Items,
    out: Path,
    options: PackOptions,
    on_warning: Callable[[str], None] | None = None,
    function: Callable[[Any], Any] | None = None,
) -> Iterator[tuple[Listing, PackOptions, int]]:
    """Gives what is to be packed, whatever it is, the options for it, and how many rejects have been allowed before.

    Args:
        source: The list, the image folder or the dataset; or inputs.
        out: Folder that is left out of an image folder.
        options: What is asked for.
        on_warning: See `pack`.
        function: Makes a sample of an input, see `pack`.
    """
    if function is None and (found := _from_hugging_face(source, options, on_warning)) is not None:
        source, options = found
    assert not isinstance(source, HubAddress), "its files are samples now"
    if not isinstance(source, Path | Url):
        from .inputs import Inputs  # slow: not on the way to the first record of a list

        yield Inputs(source, function, options), options, 0
        return
    if isinstance(source, Path) and is_dataset(source):
        from .dataset_rows import dataset_rows  # slow: not on the way to the first record of a list

        with dataset_rows(source, out, options) as (rows, options):
            yield rows, options, len(rows.rejects)
        return
    if options.where is not None:
        raise UsageError(
            f"where={options.where!r}: {source} is no dataset, and only the rows of one can be chosen. Pack it without "
            "`where`, then pack the dataset with it"
        )
    with fetched_list(source) as (path, start):
        images = read_list(
            path,
            options.labels,
            columns=options.columns,
            root=start if options.root is None else options.root,
            classes=options.classes,
            by_name=options.label_names,
            leave_out=out,
            allow_empty=options.allow_empty,
        )
        folders = images.classes if options.classes is None and path.is_dir() else None
        if on_warning is not None and folders and (doubt := doubt_classes(path, folders)):
            on_warning(doubt)
        yield images, options, 0


def _seen_from_elsewhere(out: Path | Url, source: Any, options: PackOptions) -> tuple[Path | Url, Any, PackOptions]:
    """The same places for processes that have another working folder."""
    if isinstance(options.root, Path):
        options = replace(options, root=options.root.absolute())
    return absolute(out), absolute(source) if isinstance(source, Path | Url) else source, options


def _prepare(images: Listing, output: Output, options: PackOptions, guard: RejectGuard) -> Plan:
    """Brings the output up to date. Returns its plan, which must be the one asked for; makes one if there is none."""
    output.prepare()
    if (output.folder / MANIFEST).exists():
        guard.accept(Manifest.load(output.folder).rejects)
    try:
        guard.count(-1, images.rejects)
    except TooManyRejects as error:
        raise (TooManyRejects(f"{error}. {images.advice}") if images.advice else error) from None
    folder = output.folder
    # What is asked for is found out once: a file of names may be a pipe.
    if (folder / PLAN).exists():
        there = Plan.load(folder)
        asked = outline_plan(images, options, there)
    else:
        asked = plan_shards(outline_plan(images, options), images)
        output.offer_plan(asked.dump())
        there = Plan.load(folder)
    there.require_same(asked, output.address)
    return there


def _pack_all(run: PackRun) -> PackReport:
    """Packs the missing shards of a dataset, and merges them, while nobody else works there."""
    output, plan, folder = run.output, run.plan, run.output.folder
    if (folder / MANIFEST).exists() and not reopen(output, plan, run.images, run.retry_rejects):
        return finish(output, plan, complete_before=True)
    remove_leftovers(folder)
    missing = run.missing()
    for number in missing:
        note_path(folder, plan.shards[number].name).unlink(missing_ok=True)
    fsync_folder(folder / PARTS)
    remarks = run.pack(missing)
    manifest = merge_notes(output, plan, run.images)
    output.finish()
    report = pack_report(output, manifest, packed=len(missing))
    return replace(report, remarks=dict(remarks.most_common()))


def _pack_part(run: PackRun, part: str) -> PackReport:
    """Packs the missing shards of a part, while others may pack theirs, or the same.

    Parts do not reopen a finished dataset: they could not agree on when to.
    """
    output, plan, folder = run.output, run.plan, run.output.folder
    if (folder / MANIFEST).exists():
        return replace(finish(output, plan, complete_before=True), part=part)
    remove_abandoned(folder)
    missing = run.missing()
    remarks = run.pack(missing)
    # What others have done meanwhile lies in an object store, perhaps.
    output.prepare()
    if (folder / MANIFEST).exists():
        # All was merged meanwhile, perhaps before the notes of the last shards were written.
        for number in missing:
            if not isinstance(facts := read_facts(folder, plan, number, output.holds), str):
                require_as_merged(output, facts.info)
        return replace(finish(output, plan, complete_before=True), part=part)
    # What is nowhere is being packed again by others.
    notes = [read_facts(folder, plan, number, output.holds) for number in run.numbers]
    there = [facts for facts in notes if not isinstance(facts, str)]
    return PackReport(
        dataset=output.address,
        complete_before=False,
        packed=len(missing),
        resumed=len(run.numbers) - len(missing),
        records=sum(facts.info.records for facts in there),
        bytes=sum(facts.info.bytes for facts in there),
        rejects=sum(len(facts.rejects) for facts in there),
        duplicates=run.images.duplicates,
        remarks=dict(remarks.most_common()),
        part=part,
        missing=len(without_note(folder, plan)),
    )
