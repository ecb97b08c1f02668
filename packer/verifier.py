"""Reads a dataset again and names everything that differs from what was written. Changes nothing."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from packtrain._core.arguments import checks_names, flag, function, path_of, whole
from packtrain._core.document import MOST_BYTES
from packtrain._core.errors import CorruptFile, DatasetError, UnreadableFile, UsageError
from packtrain._core.files import file_errors
from packtrain._core.index import Index
from packtrain._core.manifest import INDEX, MANIFEST, PLAN, REJECTS, FileInfo, Manifest, Sha256, ShardInfo
from packtrain._core.opening import read_regular
from packtrain._core.problems import reason
from packtrain._core.typed import Mismatch, parse_json
from packtrain._storage.location import shard_place
from packtrain._storage.remote.client import ObjectStore
from packtrain._storage.remote.objects import Objects
from packtrain._storage.remote.urls import Url, place_of
from packtrain._storage.staging.locks import lease_on
from packtrain._storage.staging.source import fetch_without_shards

from .engine import run_tasks
from .problem import Problem, check_file
from .shard_check import (
    CheckProgress,
    RemoteShardCheck,
    ShardCheck,
    ShardFindings,
    check_object,
    check_remote_shard,
    check_shard,
)

Parsed = TypeVar("Parsed")
_MOST_BYTES: Final = 1 << 30


@dataclass(frozen=True)
class VerifyProgress:
    """Progress of a run.

    Attributes:
        done: Number of records checked so far, including those of earlier runs.
        total: Number of records in the dataset.
        resumed: Number of records that earlier runs have checked, as the journal says.
    """

    done: int
    total: int
    resumed: int


@dataclass(frozen=True)
class VerifyReport:
    """Result of a run.

    Attributes:
        dataset: Where the dataset lies.
        records: Number of records checked, including those that the journal of an earlier run lists.
        shards: Number of shards checked.
        decoded: True if every image was decoded.
        problems: Everything that is wrong; empty if the dataset is sound.
        linked: True if the shards were written by others, and only indexed.
    """

    dataset: Path | Url
    records: int
    shards: int
    decoded: bool
    problems: tuple[Problem, ...]
    linked: bool = False


@checks_names()
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
        path: Folder of the dataset, or its address in an object store. From there, each worker fetches one shard after
            the other into the folder for temporary files, and removes it when it has been checked.
        decode_images: True to decode every image as well.
        workers: Number of worker processes. The default, 1, checks in the calling process and uses only one core; the
            command ``packtrain verify`` uses all available cores. Workers are spawned, so with more than one the
            calling script needs the usual ``if __name__ == "__main__"``.
        journal: File that records which shards have been checked, so that a run that was stopped can continue. It is
            used only for the same dataset and the same `decode_images`; otherwise it is written from the start.
        on_progress: Called in the calling process when a shard is begun, after every 256 records, and after each shard.

    Returns:
        What was found. Damage is reported, not raised.

    Raises:
        UsageError: An argument has the wrong type or is out of range, or `journal` is something else.
        NotADataset: There is no manifest.
        UnsupportedVersion: The dataset was written by a newer packtrain.
        RemoteError: The object store does not answer as it should. Of a single shard, that is reported.
        NoSpace: There is no room for a shard of an object store.
    """
    flag("decode_images", decode_images)
    whole("workers", workers, 1)
    function("on_progress", on_progress)
    place = place_of("path", path)
    journal = None if journal is None else path_of("journal", journal)
    report = on_progress or (lambda _: None)
    if isinstance(place, Url):
        return _verify_remote(place, decode_images, workers, journal, report)
    # The lease keeps a staged copy from being evicted in the meantime.
    with lease_on(place) or nullcontext():
        if base := _base(place):
            return _verify_linked(place, base, decode_images, workers, journal, report)
        return _verify(
            _Checks(place, ShardCheck, check_shard, partial(_check_file, place)),
            decode_images,
            workers,
            journal,
            report,
        )


@dataclass(frozen=True)
class _Checks:
    """How the shards of a dataset are checked.

    Attributes:
        folder: Folder of this machine with all but the shards, and perhaps with these.
        task: Makes the task for a shard of folder, number, and whether images are decoded.
        check_shard: Does such a task.
        check_file: Compares a whole file of a shard with what the manifest says.
    """

    folder: Path
    task: Callable[[Path, int, bool], ShardCheck]
    check_shard: Callable[[Any, Callable[[CheckProgress], None]], ShardFindings]
    check_file: Callable[[Manifest, int, FileInfo], Iterator[Problem]]


def _base(folder: Path) -> Url | None:
    """Where the shards of a dataset in a folder lie, if they are objects."""
    try:
        manifest = Manifest.load(folder)
    except (CorruptFile, UnreadableFile):
        return None
    # A staged copy has the shards themselves.
    there = (os.path.lexists(folder / shard.name) for shard in manifest.shards)
    return Url.parse(str(manifest.base)) if manifest.in_store and not all(there) else None


def _verify_linked(
    folder: Path,
    base: Url,
    decode_images: bool,
    workers: int,
    journal: Path | None,
    report: Callable[[VerifyProgress], None],
) -> VerifyReport:
    with tempfile.TemporaryDirectory(prefix="packtrain-verify-") as name:
        for file in (MANIFEST, PLAN, REJECTS, INDEX):
            # Shards are fetched beside them.
            Path(name, file).symlink_to(folder.absolute() / file)
        return _verify_fetched(folder, base, Path(name), decode_images, workers, journal, report)


def _verify_remote(
    url: Url, decode_images: bool, workers: int, journal: Path | None, report: Callable[[VerifyProgress], None]
) -> VerifyReport:
    with tempfile.TemporaryDirectory(prefix="packtrain-verify-") as name, closing(ObjectStore()) as objects:
        folder = Path(name)
        try:
            fetch_without_shards(url, objects, folder)
        except CorruptFile as error:
            return VerifyReport(url, 0, 0, False, (Problem(MANIFEST, str(error)),))
        return _verify_fetched(url, url, folder, decode_images, workers, journal, report)


def _verify_fetched(
    place: Path | Url,
    url: Url,
    folder: Path,
    decode_images: bool,
    workers: int,
    journal: Path | None,
    report: Callable[[VerifyProgress], None],
) -> VerifyReport:
    """Checks a dataset whose shards are objects, found from `url`; `folder` has all the rest, and room for shards."""
    with closing(ObjectStore()) as objects:
        checks = _Checks(
            folder, partial(RemoteShardCheck, url=url), check_remote_shard, partial(_check_object, objects, url)
        )
        found = _verify(checks, decode_images, workers, journal, report)
    # Nobody knows the folder, which is gone.
    problems = [replace(each, message=each.message.replace(str(folder), str(place))) for each in found.problems]
    return replace(found, dataset=place, problems=tuple(problems))


def _verify(
    checks: _Checks,
    decode_images: bool,
    workers: int,
    journal: Path | None,
    report: Callable[[VerifyProgress], None],
) -> VerifyReport:
    folder = checks.folder
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
        for number, shard in enumerate(manifest.shards):
            for file in (shard, *shard.sidecars):
                problems += checks.check_file(manifest, number, file)
        problems.append(
            Problem(INDEX, "records were not checked one by one, because the index that locates them cannot be used")
        )
        return VerifyReport(folder, 0, len(manifest.shards), False, tuple(problems), manifest.base is not None)
    done = Journal(journal, manifest, decode_images)
    tasks = [checks.task(folder, n, decode_images) for n in range(len(manifest.shards)) if n not in done.findings]
    counts = Counter({number: findings.records for number, findings in done.findings.items()})
    resumed = counts.total()

    def advance(progress: CheckProgress) -> None:
        counts[progress.number] = progress.records
        report(VerifyProgress(counts.total(), manifest.records, resumed))

    for findings in run_tasks(checks.check_shard, tasks, workers=min(workers, len(tasks)), on_progress=advance):
        done.add(findings)
        advance(CheckProgress(findings.number, findings.records))
    for number in sorted(done.findings):
        problems += done.findings[number].problems
    records = sum(findings.records for findings in done.findings.values())
    return VerifyReport(
        folder, records, len(manifest.shards), decode_images, tuple(problems), manifest.base is not None
    )


def _check_file(folder: Path, manifest: Manifest, number: int, file: FileInfo) -> Iterator[Problem]:
    """Checks a shard as a whole, or a file that belongs to it."""
    yield from check_file(folder, file, path=manifest.shard_path(folder, number) if _is_shard(file) else None)


def _check_object(objects: Objects, url: Url, manifest: Manifest, number: int, file: FileInfo) -> Iterator[Problem]:
    """Checks the same in a store."""
    yield from check_object(objects, shard_place(url, manifest, number) if _is_shard(file) else url / file.name, file)


def _is_shard(file: FileInfo) -> bool:
    return isinstance(file, ShardInfo)


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


@dataclass(frozen=True)
class _Head:
    """The first line of a journal."""

    manifest_sha256: Sha256
    decode: bool


class Journal:
    """The findings so far, by shard; also kept in a file if one is given.

    The first line of the file names the dataset and the kind of check. Then comes one line per shard. A journal that is
    complete, or about another dataset or kind of check, is begun anew.

    Args:
        path: The file, or None.
        manifest: Manifest of the dataset.
        decode_images: Whether images are decoded.

    Raises:
        UsageError: The file cannot be used, or is something else.
    """

    def __init__(self, path: Path | None, manifest: Manifest, decode_images: bool) -> None:
        self._path = path
        self.findings: dict[int, ShardFindings] = {}
        if path is None:
            return
        head = _Head(hashlib.sha256(manifest.dump()).hexdigest(), decode_images)
        lines = _lines(path)
        begun = _parsed(_Head, lines[0]) if lines else None
        if lines and begun is None:
            raise UsageError(f"{path} is not a journal of packtrain verify: name another file, or a new one")
        if begun == head:
            # A run that was killed while it wrote a line leaves a part of it.
            found = [_parsed(ShardFindings, line) for line in lines[1:]]
            self.findings = {
                shard.number: shard for shard in found if shard is not None and shard.number < len(manifest.shards)
            }
        if len(self.findings) == len(manifest.shards) or not self.findings:
            self.findings = {}
            with file_errors(path, UsageError, verb="use the journal"):
                path.write_text(json.dumps(asdict(head)) + "\n", encoding="utf-8")

    def add(self, findings: ShardFindings) -> None:
        """Adds the findings of a shard."""
        self.findings[findings.number] = findings
        if self._path is not None:
            with file_errors(self._path, UsageError), self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(findings)) + "\n")


def _lines(path: Path) -> list[str]:
    try:
        return read_regular(path, _MOST_BYTES).decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"cannot use the journal {path}: {reason(error)}") from error


def _parsed(kind: type[Parsed], line: str) -> Parsed | None:
    try:
        return parse_json(kind, line)
    except Mismatch:
        return None
