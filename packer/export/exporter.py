"""Exports a dataset part by part, and continues where a run was stopped."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from packtrain._core.arguments import checks_names, choice, function, whole
from packtrain._core.errors import UsageError
from packtrain._core.files import file_errors, locked
from packtrain._core.sizes import byte_count
from packtrain._storage.remote.urls import Url, place_of

from ..dataset_rows import require_outside
from ..engine import run_tasks
from ..listing import dataset_name
from ..output import require_no_linked_folder, require_usable
from .folder import FolderTarget
from .names import distinct_names
from .parquet import ParquetTarget
from .plan import FORMS, PLAN, ExportPlan
from .rows import SourceRows, source_rows
from .target import ExportTask, PartProgress, Target, export_part
from .tars import TarTarget

if TYPE_CHECKING:
    from packtrain._readers.dataset.image_dataset import ImageDataset
    from packtrain._storage.staging.options import StageOptions

_TARGETS: Final[Mapping[str, type[Target]]] = dict(zip(FORMS, (FolderTarget, TarTarget, ParquetTarget), strict=True))


@dataclass(frozen=True)
class ExportProgress:
    """Progress of a run.

    Attributes:
        done: Number of rows that are done, including those of earlier runs.
        total: Number of rows to export.
        resumed: Number of rows that earlier runs have done.
    """

    done: int
    total: int
    resumed: int


@dataclass(frozen=True)
class ExportReport:
    """Result of a run.

    Attributes:
        out: The folder.
        to: ``"folder"``, ``"webdataset"`` or ``"parquet"``.
        rows: Number of rows.
        parts: Number of parts: shards or Parquet files.
        resumed: Number of parts that earlier runs have written.
        complete_before: True if nothing was left to do.
        again: What to type to make a dataset of the result, or to read it.
    """

    out: Path
    to: str
    rows: int
    parts: int
    resumed: int
    complete_before: bool
    again: str


@checks_names()
def export(
    dataset: str | os.PathLike[str] | ImageDataset,
    out: str | os.PathLike[str],
    *,
    to: str,
    rows: Iterable[int] | None = None,
    shard_size: str | int | None = None,
    num_workers: int = 1,
    stage: str | os.PathLike[str] | StageOptions | None = None,
    budget: str | int | None = None,
    on_progress: Callable[[ExportProgress], None] | None = None,
) -> ExportReport:
    """Writes a dataset to files that other programs read, with all of its fields.

    Images that are stored as files come out byte for byte. Of store mode crop-ready that is the crop-ready JPEG, which
    has the pixels of the source; coefficients become such a JPEG, and raw pixels a PNG. If a run stops for any reason,
    even a crash, the same call continues where it stopped and gives the same bytes.

    Args:
        dataset: The dataset: its folder, its address in an object store, or what `open_dataset`, `subset` or `concat`
            returned. Transforms play no part.
        out: A folder that is new, empty, or holds an unfinished export of the same rows.
        to: ``"folder"``: a file for each field of each sample, in a folder for each class, and a list of them;
            ``"webdataset"``: tar shards; ``"parquet"``: Parquet files with the types of Hugging Face's `datasets`.
        rows: Row numbers, negative ones counted from the end, in the order in which they are wanted; or booleans
            [rows], True for those to take. None for all.
        shard_size: Bytes of records in a tar or Parquet file, as a number or a text such as ``"256MiB"``; None for a
            size that depends on the amount of data only.
        num_workers: Number of worker processes. With more than one, the calling script needs the usual
            ``if __name__ == "__main__"``.
        stage: Folder for the copy or cache of a dataset in an object store, see `open_dataset`.
        budget: The most bytes that this may take.
        on_progress: Called in the calling process as rows are done.

    Returns:
        What was done, and what to type next.

    Raises:
        UsageError: An argument has the wrong type or is out of range, or `out` lies in the dataset.
        IndexError: There is no such row.
        OutputConflict: `out` holds something else or a link to a folder, or another process exports there.
        DatasetError: The dataset is not sound; the message names row and file. Finished parts are kept.
        MissingDependency: `to` or the dataset takes a package that is not installed.
        NoSpace: The file system of `out` is full. Finished parts are kept.
    """
    choice("to", to, FORMS)
    whole("num_workers", num_workers, 1)
    function("on_progress", on_progress)
    part_bytes = None if shard_size is None else byte_count("shard_size", shard_size)
    folder = _folder(out)
    with source_rows(dataset, rows, stage, budget) as source:
        if not len(source):
            raise UsageError("there is no row to export: choose other `rows`")
        for store in source.stores:
            require_outside(store.path, folder)
        sizes = source.sizes()
        plan = ExportPlan.of(to, source, sizes, part_bytes)
        bounds = plan.bounds(sizes)
        name = dataset_name(source.stores[0].manifest.name)
        target = _TARGETS[to](folder, source.schema, name, len(bounds) - 1)
        with file_errors(folder):
            require_usable(folder, PLAN)
            require_no_linked_folder(folder)
            plan.settle(folder)
            with locked(folder / PLAN):
                return _run(target, plan, source, bounds, num_workers, on_progress)


def _folder(out: str | os.PathLike[str]) -> Path:
    folder = place_of("out", out)
    if isinstance(folder, Url):
        raise UsageError(
            f"{folder} is an address, and an export is written to a folder of this machine: name one, and copy it then "
            "with the store's own programs, such as `aws s3 cp --recursive`"
        )
    return folder


def _run(
    target: Target,
    plan: ExportPlan,
    source: SourceRows,
    bounds: Sequence[int],
    workers: int,
    on_progress: Callable[[ExportProgress], None] | None,
) -> ExportReport:
    """Writes the parts that are missing, while nobody else works there."""
    complete = target.is_complete
    missing = [] if complete else target.missing()
    rows = {number: source.some(slice(bounds[number], bounds[number + 1])) for number in missing}
    done, resumed = dict.fromkeys(missing, 0), len(source) - sum(map(len, rows.values()))

    def advance(progress: PartProgress) -> None:
        done[progress.number] = progress.rows
        if on_progress is not None:
            on_progress(ExportProgress(resumed + sum(done.values()), len(source), resumed))

    def tasks() -> Iterator[ExportTask]:
        names = distinct_names(target.names(), source) if target.by_name and missing else target.names()
        for number, some in rows.items():
            yield ExportTask(target, number, some, names.some(bounds[number], bounds[number + 1]))

    if not complete:
        target.clean()
        target.prepare()
        try:
            results = run_tasks(export_part, tasks(), workers=min(workers, len(missing)), on_progress=advance)
            with closing(results):
                for result in results:
                    advance(result)
            target.finish()
        except BaseException:
            target.clean()
            raise
    before = target.parts - len(missing)
    return ExportReport(target.out, plan.to, plan.rows, target.parts, before, complete, target.again())
