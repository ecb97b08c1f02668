"""Converts a dataset: the same samples in another container, stored in another way."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packtrain._core.arguments import checks_names, choice, instance, path_of, whole
from packtrain._core.errors import UsageError
from packtrain._core.files import file_errors, locked, make_folder
from packtrain._core.manifest import CACHE, MANIFEST, PLAN
from packtrain._core.options import FORMATS, STORE_MODES, StoreOptions
from packtrain._core.sizes import parse_bytes
from packtrain._core.typed import MOST
from packtrain._readers.dataset.store import RecordStore

from .dataset_rows import DatasetRows
from .foreign.indexer import index_shards
from .foreign.sources import find_shards
from .foreign.unpacking import unpacked_shards
from .options import PackOptions, reject_limit
from .output import Output, require_usable
from .run import PackProgress, PackReport
from .runner import check_run, pack_listing

UNPACKED: Final = ".unpacked"
"""What the name of the folder ends with in which compressed shards are decompressed."""


@checks_names()
@dataclass(frozen=True)
class ConvertOptions:
    """Options of a conversion. All of them decide its plan.

    As with `PackOptions`, ``store="jpeg"`` and ``shard_bytes="64MiB"`` are taken too.

    Attributes:
        format: Container format: ``"tar"``, ``"hdf5"`` or ``"lmdb"``; None for that of the source.
        store: How images are stored; None: as they are.
        shard_bytes: Target size of a shard in bytes; None for a size that depends on the amount of data only.
        seed: Seed that shuffles the order of the records; None for the order of the rows.
    """

    format: str | None = None
    store: StoreOptions | None = None
    shard_bytes: int | None = None
    seed: int | None = 0

    def __post_init__(self) -> None:
        if self.format is not None:
            choice("format", self.format, FORMATS)
        if isinstance(self.store, str):
            object.__setattr__(self, "store", StoreOptions(self.store))
        if self.store is not None:
            instance("store", self.store, StoreOptions, *STORE_MODES)
        if isinstance(self.shard_bytes, str):
            object.__setattr__(self, "shard_bytes", parse_bytes("shard_bytes", self.shard_bytes))
        if self.shard_bytes is not None:
            object.__setattr__(self, "shard_bytes", whole("shard_bytes", self.shard_bytes, 1, MOST))
        if self.seed is not None:
            object.__setattr__(self, "seed", whole("seed", self.seed))


@checks_names(options=ConvertOptions)
def convert(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: ConvertOptions | None = None,
    *,
    fields: Sequence[str] = (),
    masks: Sequence[str] = (),
    label: str | None = None,
    workers: int = 1,
    max_rejects: str | int = "0.1%",
    on_progress: Callable[[PackProgress], None] | None = None,
) -> PackReport:
    """Converts a packed or indexed dataset, or WebDataset tars, into another dataset with the same rows.

    Records that are to be stored as they are, are copied; all else is decoded. Lines, paths, labels, classes and
    rejects stay those of the source. If a run stops for any reason, even a crash, the same call continues where it
    stopped and gives the same bytes.

    Compressed tars (gzip, bzip2, xz and, with the package zstandard, zstd) are decompressed first, into the folder
    ``OUT.unpacked``, which is removed in the end.

    Args:
        source: Folder of the dataset; or tars, as for `index_shards`: a file, a folder, a pattern, or ``@FILE``. It is
            not changed.
        out: Folder of the new dataset. It must be new, empty, or converted (completely or not) by the same plan.
        options: What to change; None to write the same once more.
        fields: Of tars: what their members are, as for `index_shards`.
        masks: Of tars: which fields are masks.
        label: Of tars: where the label is.
        workers: Number of worker processes, as for `pack`.
        max_rejects: How many rows may be refused because they cannot be stored as asked, beside the rejects of the
            source: a percentage (``"0.1%"``) or a count (``"20"`` or ``20``).
        on_progress: Called in the calling process when a shard is begun, about five times a second per worker, and
            after each shard.

    Returns:
        What was done, and what the new dataset holds.

    Raises:
        UsageError: An argument has the wrong type or is out of range, or the options do not fit the source.
        DatasetError: The source is no sound dataset; the message names record and shard.
        OutputConflict: `out` holds something else, or somebody else is writing there.
        TooManyRejects: More rows were refused than allowed. Finished shards are kept.
        ShardFailed: A shard failed twice for a reason other than the content of its images.
        NoSpace: The file system of `out` is full. Finished shards are kept.
    """
    options = ConvertOptions() if options is None else options
    instance("options", options, ConvertOptions)
    check_run(workers, on_progress)
    folder = path_of("out", out)
    with file_errors(folder):
        require_usable(folder)
    if _is_dataset(source):
        if fields or masks or label is not None:
            raise UsageError(f"{source} is a dataset, whose fields are known: leave out `fields`, `masks` and `label`")
        dataset = path_of("source", source)
        _require_apart(dataset, folder)
        return _convert(dataset, folder, options, workers, max_rejects, on_progress)
    mode = "RGB" if options.store is None else options.store.mode
    with _indexed(source, folder, workers) as (shards, dataset):
        index_shards(
            shards,
            dataset,
            fields=fields,
            masks=masks,
            label=label,
            mode=mode,
            workers=workers,
            max_rejects=max_rejects,
        )
        return _convert(dataset, folder, options, workers, max_rejects, on_progress)


def _convert(
    dataset: Path,
    folder: Path,
    options: ConvertOptions,
    workers: int,
    max_rejects: str | int,
    on_progress: Callable[[PackProgress], None] | None,
) -> PackReport:
    with RecordStore(dataset, io="pread") as store:
        rows = DatasetRows(store, options.store)
        packing = PackOptions(
            format=options.format or store.manifest.format,
            store=options.store or StoreOptions(),
            labels=rows.labels,
            shard_bytes=options.shard_bytes,
            seed=options.seed,
        )
        # What the source was refused, is not counted once more.
        limit = reject_limit(max_rejects, len(rows)) + len(rows.rejects)
        return pack_listing(rows, Output(folder), packing, workers, limit, on_progress=on_progress)


@contextmanager
def _indexed(source: str | os.PathLike[str], folder: Path, workers: int) -> Iterator[tuple[list[Path], Path]]:
    """Gives the shards, none of them compressed, and a folder for an index of them. It is removed if all goes well."""
    shards = find_shards([source])
    folder = Path(os.path.abspath(folder))
    work = folder.with_name(f"{folder.name}{UNPACKED}")
    with file_errors(work):
        make_folder(work)
        lock = work / "lock"
        lock.touch()
        with locked(lock):
            dataset = work / folder.name
            # The index of a run that was stopped is made again: the shards may have changed.
            shutil.rmtree(dataset, ignore_errors=True)
            yield unpacked_shards(shards, work / "shards", workers=workers), dataset
            shutil.rmtree(work)


def _is_dataset(source: str | os.PathLike[str]) -> bool:
    """True for a folder that holds a dataset, finished or not."""
    path = Path(source)
    return path.is_dir() and any((path / name).exists() for name in (MANIFEST, PLAN, CACHE))


def _require_apart(source: Path, out: Path) -> None:
    """Refuses to write into the source."""
    inside, around = Path(os.path.realpath(out)), Path(os.path.realpath(source))
    if inside == around or around in inside.parents:
        raise UsageError(f"{out} is the dataset that is to be converted, or inside it: choose another folder")
