"""Reads a dataset again and names everything that differs from what was written. Changes nothing."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from crc32c import crc32c

from packtrain._codec.cut import has_table, has_true_table
from packtrain._codec.decode import EncodedImage, RecordDecoder
from packtrain._codec.decoders import decoder
from packtrain._codec.pillow import misfit, open_image, pixel_limit, set_pixel_limit, whole_images_only
from packtrain._core.arguments import function, path_of, whole
from packtrain._core.errors import CorruptFile, DatasetError, MissingDependency, UsageError
from packtrain._core.files import checksum_file, file_errors
from packtrain._core.index import Index
from packtrain._core.manifest import INDEX, MANIFEST, PLAN, FileInfo, Manifest
from packtrain._readers.formats import container
from packtrain._staging.locks import lease_on

from .engine import run_tasks

_REPORT_RECORDS: Final = 256


@dataclass(frozen=True)
class Problem:
    """Something that differs from what was written.

    Attributes:
        file: Name of the file, relative to the dataset.
        message: What is wrong.
        row: Row of the damaged record; None if it is not about one record.
        line: 0-based line of that record in the list; None if it is not about one record.
    """

    file: str
    message: str
    row: int | None = None
    line: int | None = None


@dataclass(frozen=True)
class VerifyProgress:
    """Progress of one shard.

    Attributes:
        number: Number of the shard.
        records: Number of its records checked so far.
    """

    number: int
    records: int


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


@dataclass(frozen=True)
class _ShardCheck:
    """A task: check one shard."""

    folder: Path
    number: int
    decode: bool
    pixel_limit: int | None = field(default_factory=pixel_limit)

    def __str__(self) -> str:
        return f"verifying shard {self.number}"


@dataclass(frozen=True)
class _ShardFindings:
    """What checking one shard has found."""

    number: int
    records: int
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
    of its own format and compared with the index.

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
        UsageError: An argument has the wrong type or is out of range.
        NotADataset: There is no manifest.
        UnsupportedVersion: The dataset was written by a newer packtrain.
    """
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
    except CorruptFile as error:
        return VerifyReport(folder, 0, 0, False, (Problem(MANIFEST, str(error)),))
    problems = [
        *_check_plan(folder, manifest),
        *_check_file(folder, manifest.rejects_file),
        *_check_index(folder, manifest),
    ]
    if any(problem.file.startswith(INDEX) for problem in problems):
        for shard in manifest.shards:
            problems += [problem for file in (shard, *shard.sidecars) for problem in _check_file(folder, file)]
        problems.append(
            Problem(INDEX, "records were not checked one by one, because the index that locates them is damaged")
        )
        return VerifyReport(folder, 0, len(manifest.shards), False, tuple(problems))
    done = _Journal(journal, manifest, decode_images)
    checks = [_ShardCheck(folder, n, decode_images) for n in range(len(manifest.shards)) if n not in done.findings]
    for findings in run_tasks(_check_shard, checks, workers=min(workers, len(checks)), on_progress=report):
        done.add(findings)
        report(VerifyProgress(findings.number, findings.records))
    for number in sorted(done.findings):
        problems += done.findings[number].problems
    records = sum(findings.records for findings in done.findings.values())
    return VerifyReport(folder, records, len(manifest.shards), decode_images, tuple(problems))


def _check_plan(folder: Path, manifest: Manifest) -> Iterator[Problem]:
    try:
        data = (folder / PLAN).read_bytes()
    except OSError as error:
        yield Problem(PLAN, f"cannot be read: {error.strerror}")
        return
    if hashlib.sha256(data).hexdigest() != manifest.plan_sha256:
        yield Problem(PLAN, "differs from the plan that the manifest names")


def _check_file(folder: Path, info: FileInfo, name: str | None = None) -> Iterator[Problem]:
    name = name or info.name
    try:
        size = (folder / name).stat().st_size
        if size != info.bytes:
            yield Problem(name, f"has {size} bytes, {info.bytes} were written")
        elif (checksum := checksum_file(folder / name)) != info.crc32c:
            yield Problem(name, _other_bytes(checksum, info.crc32c))
    except OSError as error:
        yield Problem(name, f"cannot be read: {error.strerror}")


def _other_bytes(found: int, written: int) -> str:
    return f"its bytes are not those that were written (crc32c {found:08x} instead of {written:08x})"


def _check_index(folder: Path, manifest: Manifest) -> list[Problem]:
    found = [
        problem for column in manifest.columns for problem in _check_file(folder, column, f"{INDEX}/{column.name}.npy")
    ]
    if not found:
        try:
            Index(folder / INDEX, manifest.columns, manifest.records).check_all()
        except DatasetError as error:
            found.append(Problem(error.file or INDEX, str(error)))
    return found


def _check_shard(check: _ShardCheck, report: Callable[[VerifyProgress], None]) -> _ShardFindings:
    set_pixel_limit(check.pixel_limit)
    manifest = Manifest.load(check.folder)
    info = manifest.shards[check.number]
    problems = [problem for sidecar in info.sidecars for problem in _check_file(check.folder, sidecar)]
    whole = list(_check_file(check.folder, info))
    shard = _ShardRows(check.folder, manifest, check.number)
    if (check.folder / info.name).is_file():
        problems += whole
        problems += shard.check_records(check.decode, report)
    else:
        problems += [
            replace(problem, message=f"{problem.message}; its {info.records} records are lost") for problem in whole
        ]
    if not whole:
        # Only for a sound file: liblmdb may crash on a damaged one.
        problems += shard.check_container()
    return _ShardFindings(check.number, info.records, tuple(problems))


class _ShardRows:
    """The rows of one shard, according to the index."""

    def __init__(self, folder: Path, manifest: Manifest, number: int) -> None:
        self._path = folder / manifest.shards[number].name
        self._manifest = manifest
        self._number = number
        self._decoder = RecordDecoder(manifest.store, decoder("pillow"))
        self._index = Index(folder / INDEX, manifest.columns, manifest.records)
        first = sum(shard.records for shard in manifest.shards[:number])
        self._rows = self._index["by_place"][first : first + manifest.shards[number].records]

    def check_records(self, decode_images: bool, report: Callable[[VerifyProgress], None]) -> Iterator[Problem]:
        """Compares every record with its checksum."""
        columns = [self._index[name][self._rows].tolist() for name in ("offset", "length", "crc32c", "width", "height")]
        with self._path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")
        for done, (row, offset, length, checksum, width, height) in enumerate(
            zip(self._rows.tolist(), *columns, strict=True), 1
        ):
            record = data[offset : offset + length]
            if len(record) < length:
                yield self._problem(row, f"{length - len(record)} of its {length} bytes are cut off")
            elif crc32c(record) != checksum:
                yield self._problem(row, _other_bytes(crc32c(record), checksum))
            elif decode_images and (reason := self._undecodable(record, width, height)):
                yield self._problem(row, reason)
            if done % _REPORT_RECORDS == 0:
                report(VerifyProgress(self._number, done))

    def check_container(self) -> Iterator[Problem]:
        """Compares what the container's own library finds with the index."""
        manifest = self._manifest
        try:
            found = {item.line: item for item in container(manifest.format).walk(self._path, manifest.labels)}
        except DatasetError as error:
            yield Problem(self._path.name, str(error))
            return
        lines, offsets, lengths = (self._index[name][self._rows].tolist() for name in ("line", "offset", "length"))
        labels: list[Any] = [None] * len(lines)
        if manifest.labels.kind != "none":
            labels = self._index["label"][self._rows].tolist()
        dtype = manifest.labels.dtype
        for row, line, offset, length, label in zip(self._rows.tolist(), lines, offsets, lengths, labels, strict=True):
            item = found.pop(line, None)
            if item is None:
                yield self._problem(row, f"the {manifest.format} container has no such key")
            elif (item.offset, item.length) != (offset, length):
                yield self._problem(
                    row, f"the container has it at {item.offset} + {item.length}, the index at {offset} + {length}"
                )
            elif label is not None and not np.array_equal(np.array(item.label, dtype), np.array(label, dtype)):
                yield self._problem(row, f"its label is {item.label} in the container, {label} in the index")
        for line in found:
            yield Problem(self._path.name, f"the container holds line {line}, which the index does not know", line=line)

    def _undecodable(self, record: memoryview, width: int, height: int) -> str | None:
        try:
            with whole_images_only():
                self._decoder.image(EncodedImage(record, width, height))
            if self._manifest.store.store != "raw" and (reason := misfit(open_image(record))):
                return reason
        except (MissingDependency, MemoryError):
            raise
        except Exception as error:
            # As in packing: Pillow's plugins raise any kind of error.
            return f"it cannot be decoded ({type(error).__name__}: {error})"
        if self._manifest.store.store != "verbatim" and has_table(record) and not has_true_table(record):
            return "its table of restart intervals does not fit it"
        return None

    def _problem(self, row: int, message: str) -> Problem:
        line, path = int(self._index["line"][row]), self._index.text("path", row)
        return Problem(self._path.name, f"row {row} (line {line}, {path!r}): {message}", row, line)


class _Journal:
    """The findings so far, by shard; also kept in a file if one is given.

    The first line of the file names the dataset and the kind of check. Then comes one line per shard. A journal that is
    complete, or about another dataset or kind of check, is begun anew.
    """

    def __init__(self, path: Path | None, manifest: Manifest, decode_images: bool) -> None:
        self._path = path
        self.findings: dict[int, _ShardFindings] = {}
        if path is None:
            return
        head = {"manifest_sha256": hashlib.sha256(manifest.dump()).hexdigest(), "decode": decode_images}
        with file_errors(path, UsageError, verb="use the journal"):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
            begun = _journal_head(lines[0]) if lines else {}
            if lines and begun.keys() != head.keys():
                raise UsageError(f"{path} is not a journal of packtrain verify: name another file, or a new one")
            if begun == head:
                self.findings = {found.number: found for found in map(_parse_findings, lines[1:]) if found is not None}
            if len(self.findings) == len(manifest.shards) or not self.findings:
                self.findings = {}
                path.write_text(json.dumps(head) + "\n", encoding="utf-8")

    def add(self, findings: _ShardFindings) -> None:
        """Adds the findings of a shard."""
        self.findings[findings.number] = findings
        if self._path is not None:
            with file_errors(self._path, UsageError), self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(findings)) + "\n")


def _journal_head(line: str) -> dict[str, object]:
    """The object in the first line of a journal; empty if the line holds something else."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _parse_findings(line: str) -> _ShardFindings | None:
    try:
        facts = json.loads(line)
        problems = tuple(Problem(**problem) for problem in facts["problems"])
        return _ShardFindings(facts["number"], facts["records"], problems)
    except (ValueError, KeyError, TypeError):
        # The run was killed while it wrote this line.
        return None
