"""Reads a dataset again and names everything that differs from what was written. Changes nothing."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from packtrain._core.arguments import flag, function, path_of, whole
from packtrain._core.document import MOST_BYTES
from packtrain._core.errors import CorruptFile, DatasetError, UnreadableFile
from packtrain._core.index import Index
from packtrain._core.manifest import INDEX, MANIFEST, PLAN, Manifest
from packtrain._core.opening import read_regular
from packtrain._core.problems import reason
from packtrain._staging.locks import lease_on

from .engine import run_tasks
from .problem import Problem, check_file
from .shard_check import ShardCheck, VerifyProgress, check_shard
from .verify_journal import Journal


@dataclass(frozen=True)
class VerifyReport:
    """Result of a run.

    Attributes:
        dataset: Folder of the dataset.
        records: Number of records checked, including those that the journal of an earlier run lists.
        shards: Number of shards checked.
        decoded: True if every image was decoded.
        problems: Everything that is wrong; empty if the dataset is sound.
    """

    dataset: Path
    records: int
    shards: int
    decoded: bool
    problems: tuple[Problem, ...]


def verify(
    path: str | os.PathLike[str],
    *,
    decode_images: bool = False,
    workers: int = 1,
    journal: str | os.PathLike[str] | None = None,
    on_progress: Callable[[VerifyProgress], None] | None = None,
) -> VerifyReport:
    """Checks everything in a dataset against what was written.

    That is the plan, rejects.jsonl, the index, every shard and every record. Each container is also read by the library
    of its own format and compared with the index. What parses a shard runs in a forked process with limits on memory
    and time, so that a file that was made to do harm is a problem in the report.

    Args:
        path: Folder of the dataset.
        decode_images: True to decode every image as well.
        workers: Number of worker processes. The default, 1, checks in the calling process and uses only one core; the
            command ``packtrain verify`` uses all available cores. Workers are spawned, so with more than one the
            calling script needs the usual ``if __name__ == "__main__"``.
        journal: File that records which shards have been checked, so that a run that was stopped can continue. It is
            used only for the same dataset and the same `decode_images`; otherwise it is written from the start.
        on_progress: Called in the calling process, after every 256 records and after each shard.

    Returns:
        What was found. Damage is reported, not raised.

    Raises:
        UsageError: An argument has the wrong type or is out of range, or `journal` is something else.
        NotADataset: There is no manifest.
        UnsupportedVersion: The dataset was written by a newer packtrain.
    """
    flag("decode_images", decode_images)
    whole("workers", workers, 1)
    function("on_progress", on_progress)
    folder = path_of("path", path)
    journal = None if journal is None else path_of("journal", journal)
    # The lease keeps a staged copy from being evicted in the meantime.
    with lease_on(folder) or nullcontext():
        return _verify(folder, decode_images, workers, journal, on_progress or (lambda _: None))


def _verify(
    folder: Path,
    decode_images: bool,
    workers: int,
    journal: Path | None,
    report: Callable[[VerifyProgress], None],
) -> VerifyReport:
    try:
        manifest = Manifest.load(folder)
    except (CorruptFile, UnreadableFile) as error:
        return VerifyReport(folder, 0, 0, False, (Problem(MANIFEST, str(error)),))
    problems = [
        *_check_plan(folder, manifest),
        *check_file(folder, manifest.rejects_file),
        *_check_index(folder, manifest),
    ]
    if any(problem.file.startswith(INDEX) for problem in problems):
        for shard in manifest.shards:
            problems += [problem for file in (shard, *shard.sidecars) for problem in check_file(folder, file)]
        problems.append(
            Problem(INDEX, "records were not checked one by one, because the index that locates them cannot be used")
        )
        return VerifyReport(folder, 0, len(manifest.shards), False, tuple(problems))
    done = Journal(journal, manifest, decode_images)
    checks = [ShardCheck(folder, n, decode_images) for n in range(len(manifest.shards)) if n not in done.findings]
    for findings in run_tasks(check_shard, checks, workers=min(workers, len(checks)), on_progress=report):
        done.add(findings)
        report(VerifyProgress(findings.number, findings.records))
    for number in sorted(done.findings):
        problems += done.findings[number].problems
    records = sum(findings.records for findings in done.findings.values())
    return VerifyReport(folder, records, len(manifest.shards), decode_images, tuple(problems))


def _check_plan(folder: Path, manifest: Manifest) -> Iterator[Problem]:
    try:
        data = read_regular(folder / PLAN, MOST_BYTES)
    except OSError as error:
        yield Problem(PLAN, f"cannot be read: {reason(error)}")
        return
    if hashlib.sha256(data).hexdigest() != manifest.plan_sha256:
        yield Problem(PLAN, "differs from the plan that the manifest names")


def _check_index(folder: Path, manifest: Manifest) -> list[Problem]:
    found = [
        problem for column in manifest.columns for problem in check_file(folder, column, f"{INDEX}/{column.name}.npy")
    ]
    if not found:
        try:
            Index.of(folder, manifest).check_content()
        except DatasetError as error:
            found.append(Problem(error.file or INDEX, str(error)))
    return found
