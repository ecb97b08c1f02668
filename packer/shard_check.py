"""Checks one shard: its records by the index, and its container by the library of its format.

Everything that parses the shard runs in a process of its own (`sandbox`). If that dies, the findings so far are kept,
and the check goes on behind the record that it died of.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

from packtrain._codec.pillow import pixel_limit, set_pixel_limit
from packtrain._core.errors import DatasetError, NotThere, RemoteError, UnreadableFile
from packtrain._core.files import MiB, checksum_file
from packtrain._core.manifest import Count, Manifest, ShardInfo
from packtrain._storage.location import shard_place
from packtrain._storage.remote.client import ObjectStore
from packtrain._storage.remote.download import download
from packtrain._storage.remote.urls import Url

from .problem import Problem, check_file
from .sandbox import Died, Limits, Send, run_sandboxed
from .shard_contents import REPORT_RECORDS, ShardContents

_MOST_DEATHS: Final = 5
_MEMORY: Final = 1024 * MiB
_MEMORY_TO_DECODE: Final = 3 * 1024 * MiB
"""Pillow refuses images of more than 179 million pixels; twice the four bytes per pixel, and libjpeg's coefficients."""
_SECONDS: Final = 60
_RECORDS: Final = "records"
_CONTAINER: Final = "container"


@dataclass(frozen=True)
class CheckProgress:
    """Progress of one shard.

    Attributes:
        number: Number of the shard.
        records: Number of its records checked so far.
    """

    number: int
    records: int


@dataclass(frozen=True)
class ShardCheck:
    """A task: check one shard.

    Attributes:
        folder: Folder of the dataset; of one in an object store, with all but its shards.
        number: Number of the shard.
        decode: True to decode its images.
        records: True to check each record; False to compare the files as wholes, where there is no sound index.
        url: Address of a dataset whose shards are objects.
        pixel_limit: Pillow's ``Image.MAX_IMAGE_PIXELS`` in the process that asks for the check.
    """

    folder: Path
    number: int
    decode: bool
    records: bool = True
    url: Url | None = None
    pixel_limit: int | None = field(default_factory=pixel_limit)

    def __str__(self) -> str:
        return f"verifying shard {self.number}"


@dataclass(frozen=True)
class ShardFindings:
    """The result of checking one shard.

    Attributes:
        number: Number of the shard.
        records: Number of its records.
        problems: What is wrong.
    """

    number: Count
    records: Count
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class _Message:
    """A message of the process that checks a shard.

    Attributes:
        step: What it is doing now: ``"records"`` or ``"container"``.
        done: Number of records it is done with.
        problem: What it has found, or None.
    """

    step: str
    done: Count
    problem: Problem | None


def check_shard(check: ShardCheck, report: Callable[[CheckProgress], None]) -> ShardFindings:
    """Check one shard. One that is an object is fetched first, and removed in the end."""
    set_pixel_limit(check.pixel_limit)
    # A rate is measured from here on.
    report(CheckProgress(check.number, 0))
    manifest = Manifest.load(check.folder)
    info = manifest.shards[check.number]
    if check.url is None:
        problems = _check_files(check, manifest, report)
    else:
        try:
            problems = list(_fetch(check, manifest, info)) or _check_files(check, manifest, report)
        finally:
            for file in (info, *info.sidecars):
                (check.folder / file.name).unlink(missing_ok=True)
    return ShardFindings(check.number, info.records, tuple(problems))


def _check_files(check: ShardCheck, manifest: Manifest, report: Callable[[CheckProgress], None]) -> list[Problem]:
    info, path = manifest.shards[check.number], manifest.shard_path(check.folder, check.number)
    problems = [problem for sidecar in info.sidecars for problem in check_file(check.folder, sidecar)]
    whole = list(check_file(check.folder, info, path=path))
    if info.link is not None and path != check.folder / info.name:
        whole = [replace(problem, message=f"{problem.message} ({path})") for problem in whole]
    if not os.path.isfile(path):
        lost = f"; its {info.records} records are lost"
        return problems + [replace(problem, message=problem.message + lost) for problem in whole]
    problems += whole or _check_time(manifest, check, path)
    if check.records:
        # Its structure is read only if the file is sound: there is no point in parsing damage.
        problems += _check_contents(check, manifest, report, whole=not whole)
    return problems


def _check_time(manifest: Manifest, check: ShardCheck, path: Path) -> list[Problem]:
    """Compares the time at which a linked shard was changed with that in the manifest, as readers do."""
    if manifest.modified_ns(check.folder, check.number) in (None, os.stat(path).st_mtime_ns):
        return []
    message = (
        "the shard has the bytes that were indexed, but another time of change, so readers refuse it; "
        f"`packtrain index --update {shlex.quote(os.fspath(check.folder))}` stores the new time ({path})"
    )
    return [Problem(manifest.shards[check.number].name, message, unreadable=True)]


def _check_contents(
    check: ShardCheck, manifest: Manifest, report: Callable[[CheckProgress], None], *, whole: bool
) -> Iterator[Problem]:
    """Compares every record with its checksum, and the container with the index if the file is `whole`."""
    contents = ShardContents(check.folder, manifest, check.number, decode=check.decode)
    name = manifest.shards[check.number].name
    decode, start, deaths = check.decode, 0, 0
    while True:
        last = _Message(_RECORDS, start, None)
        work = partial(_work, contents, name, start, decode, whole)
        try:
            for last in run_sandboxed(work, _Message, _limits(manifest, check.number, decode)):
                if last.problem is not None:
                    yield last.problem
                elif last.step == _RECORDS and last.done % REPORT_RECORDS == 0:
                    report(CheckProgress(check.number, last.done))
            return
        except Died as death:
            if last.step == _CONTAINER:
                yield Problem(name, f"the process that read it as {manifest.format} {death}")
                return
            if not decode or last.done >= len(contents):
                yield Problem(name, f"the process that read its records {death}; the rest is unchecked")
                return
            yield contents.problem_at(last.done, f"the process that decoded it {death}")
            start, deaths = last.done + 1, deaths + 1
        if deaths == _MOST_DEATHS:
            decode = False
            yield Problem(name, f"after {deaths} such records, the rest was not decoded")


def _limits(manifest: Manifest, number: int, decode: bool) -> Limits:
    info = manifest.shards[number]
    return Limits(
        memory=_MEMORY + (768 + 256 * len(manifest.fields)) * info.records + (_MEMORY_TO_DECODE if decode else 0),
        seconds=_SECONDS
        + info.bytes // MiB
        + (info.records if decode else info.records // 1000) * len(manifest.fields),
    )


def _work(contents: ShardContents, name: str, start: int, decode: bool, whole: bool, send: Send) -> None:
    """Runs in a process of its own: sends a `_Message` for each step and each problem."""

    def say(step: str, done: int, problem: Problem | None = None) -> None:
        send({"step": step, "done": done, "problem": problem and asdict(problem)})

    done = start
    try:
        for done, problem in contents.check_records(start, decode, partial(say, _RECORDS)):
            say(_RECORDS, done, problem)
        if whole:
            say(_CONTAINER, done)
            sound = True
            for problem in contents.check_container():
                sound = False
                say(_CONTAINER, done, problem)
            others = [contents.check_dali_indexes, *([contents.check_webdataset] if decode else [])] if sound else []
            for problem in chain.from_iterable(check() for check in others):
                say(_CONTAINER, done, problem)
    except DatasetError as error:
        say(_RECORDS, done, Problem(name, str(error), unreadable=isinstance(error, UnreadableFile)))


def _fetch(check: ShardCheck, manifest: Manifest, info: ShardInfo) -> Iterator[Problem]:
    """Fetch a shard and its sidecars into the folder; yields why one cannot be had."""
    assert check.url is not None, "the shard is an object"
    shard = shard_place(check.url, manifest, check.number)
    with closing(ObjectStore(patient=True)) as objects:
        for file in (info, *info.sidecars):
            source, path = (shard if file is info else check.url / file.name), check.folder / file.name
            try:
                download(objects, source, path)
                if path.stat().st_size == file.bytes and checksum_file(path) != file.crc32c:
                    # What went wrong on the way is no damage.
                    download(objects, source, path)
            except RemoteError as error:
                lost = f"; its {info.records} records are lost" if isinstance(error, NotThere) else ""
                yield Problem(file.name, f"{error}{lost}", unreadable=not lost)
                return
