"""Reads a dataset again and names everything that differs from what was written. Changes nothing."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Self, TypeVar

from packtrain._core.arguments import checks_names, flag, function, path_of, whole
from packtrain._core.document import MOST_BYTES
from packtrain._core.errors import CorruptFile, DatasetError, NotADataset, UnreadableFile, UsageError
from packtrain._core.files import file_errors
from packtrain._core.index import Index
from packtrain._core.manifest import INDEX, MANIFEST, PLAN, REJECTS, Manifest, Sha256
from packtrain._core.opening import read_regular
from packtrain._core.problems import reason
from packtrain._core.typed import Mismatch, parse_json
from packtrain._core.version_files import BASE, has_versions
from packtrain._readers.dataset.indexed import check_values
from packtrain._storage.location import remote_base
from packtrain._storage.remote.client import ObjectStore
from packtrain._storage.remote.urls import Url, place_of
from packtrain._storage.staging.locks import lease_on
from packtrain._storage.staging.without_shards import fetch_without_shards

from .engine import run_tasks
from .problem import Problem, check_file
from .shard_check import CheckProgress, ShardCheck, ShardFindings, check_shard
from .version_check import check_layer, check_versions, inside, live_versions, orphans, orphans_at, parts_of, seen_alone

Parsed = TypeVar("Parsed")
_MOST_BYTES: Final = 1 << 30
_WITHOUT_INDEX: Final = "records were not checked one by one, because the index that locates them cannot be used"


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
        orphans: Of a dataset of versions, what none of them names: left by writers that were stopped, or being written.
            Empty at an address that cannot be listed.
        changed: True if it is a dataset of versions.
    """

    dataset: Path | Url
    records: int
    shards: int
    decoded: bool
    problems: tuple[Problem, ...]
    linked: bool = False
    orphans: tuple[str, ...] = ()
    changed: bool = False


@checks_names()
def verify(
    path: str | os.PathLike[str],
    *,
    decode_images: bool = False,
    num_workers: int = 1,
    journal: str | os.PathLike[str] | None = None,
    on_progress: Callable[[VerifyProgress], None] | None = None,
) -> VerifyReport:
    """Checks everything in a dataset against what was written.

    That is the plan, rejects.jsonl, the index, every shard and every record. Each container is also read by the library
    of its own format and compared with the index; if images are decoded, tar shards are read by webdataset as well.
    What parses a shard runs in a forked process with limits on memory and time, so that a file that was made to do harm
    is a problem in the report.

    Args:
        path: Folder of the dataset, or its address in an object store. From there, each worker fetches one shard after
            the other into the folder for temporary files, and removes it when it has been checked.
        decode_images: True to decode every image as well.
        num_workers: Number of worker processes. The default, 1, checks in the calling process and uses only one core;
            the command ``packtrain verify`` uses all available cores. Workers are spawned, so with more than one the
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
    whole("num_workers", num_workers, 1)
    function("on_progress", on_progress)
    dataset = place_of("path", path)
    run = _Verifier(decode_images, num_workers, None if journal is None else path_of("journal", journal), on_progress)
    if isinstance(dataset, Url):
        with tempfile.TemporaryDirectory(prefix="packtrain-verify-") as name, closing(ObjectStore()) as objects:
            try:
                fetch_without_shards(dataset, objects, Path(name), every_version=True)
            except CorruptFile as error:
                return VerifyReport(dataset, 0, 0, False, (Problem(MANIFEST, str(error)),))
            found = run.fetching(dataset, dataset, Path(name))
            return replace(found, orphans=tuple(orphans_at(dataset, objects, Path(name)))) if found.changed else found
    if has_versions(dataset):
        return run.check_versions(dataset)
    # The lease keeps a staged copy from being evicted in the meantime.
    with lease_on(dataset) or nullcontext():
        return run.check(dataset)


@dataclass(frozen=True)
class _Verifier:
    """The arguments of `verify`."""

    decode_images: bool
    workers: int
    journal: Path | None
    on_progress: Callable[[VerifyProgress], None] | None

    def fetching(self, dataset: Path | Url, url: Url, folder: Path) -> VerifyReport:
        """Check a dataset whose shards are objects, found from `url`; `folder` has the rest, and room for shards."""
        found = self.check_versions(folder, url) if has_versions(folder) else self.check(folder, url)
        # Nobody knows the folder, which is gone.
        problems = [replace(each, message=each.message.replace(str(folder), str(dataset))) for each in found.problems]
        return replace(found, dataset=dataset, problems=tuple(problems))

    def check(self, folder: Path, url: Url | None = None) -> VerifyReport:
        """Check the dataset in a folder, with the shards there, where the manifest says, or at `url`."""
        try:
            manifest = Manifest.load(folder)
        except (CorruptFile, UnreadableFile) as error:
            return VerifyReport(folder, 0, 0, False, (Problem(MANIFEST, str(error)),))
        if url is None and (base := remote_base(folder, manifest)) is not None:
            with tempfile.TemporaryDirectory(prefix="packtrain-verify-") as name:
                for file in (MANIFEST, PLAN, REJECTS, INDEX):
                    # Shards are fetched beside them.
                    Path(name, file).symlink_to(folder.absolute() / file)
                return self.fetching(folder, base, Path(name))
        problems = [*_check_plan(folder, manifest), *check_file(folder, manifest.rejects_file)]
        wrong_index = _check_index(folder, manifest)
        count, linked = len(manifest.shards), manifest.base is not None
        task = partial(ShardCheck, folder, decode=self.decode_images, records=not wrong_index, url=url)
        # Without an index, nothing is kept in the journal: it is about records.
        journal = Journal(None) if wrong_index else Journal.of(self.journal, manifest, self.decode_images)
        tasks = [task(number) for number in range(count) if number not in journal.findings]
        problems += [*wrong_index, *self._check_shards(tasks, manifest, journal)]
        if wrong_index:
            return VerifyReport(folder, 0, count, False, (*problems, Problem(INDEX, _WITHOUT_INDEX)), linked)
        records = sum(findings.records for findings in journal.findings.values())
        return VerifyReport(folder, records, count, self.decode_images, tuple(problems), linked)

    def check_versions(self, folder: Path, url: Url | None = None) -> VerifyReport:
        """Check every version of a dataset that was changed, and each segment and layer once; as `check`."""
        versions, problems = live_versions(folder)
        problems += check_versions(folder, versions)
        records, shards, parts = 0, 0, parts_of(versions)
        for part in parts:
            with seen_alone(folder, part, with_shards=url is None) as alone:
                name = part.name.rpartition("/")[2]
                journal = None if self.journal is None else self.journal.with_name(f"{self.journal.name}.{name}")
                place = url if url is None or part.name == BASE else url / part.name
                try:
                    found = replace(self, journal=journal).check(alone, place)
                except NotADataset as error:
                    found = VerifyReport(alone, 0, 0, False, (Problem(MANIFEST, str(error)),))
                problems += [
                    inside(part, replace(each, message=each.message.replace(str(alone), str(folder))))
                    for each in found.problems
                ]
            if part.layer is not None:
                problems += check_layer(folder, part)
            records, shards = records + found.records, shards + found.shards
        left = tuple(orphans(folder, versions)) if url is None else ()
        return VerifyReport(folder, records, shards, self.decode_images, tuple(problems), orphans=left, changed=True)

    def _check_shards(self, tasks: Sequence[ShardCheck], manifest: Manifest, journal: Journal) -> list[Problem]:
        """Check shards. Returns the problems of all shards in the journal, in the order of the shards."""
        counts = Counter({number: findings.records for number, findings in journal.findings.items()})
        resumed = counts.total()

        def advance(progress: CheckProgress) -> None:
            counts[progress.number] = progress.records
            if self.on_progress is not None:
                self.on_progress(VerifyProgress(counts.total(), manifest.records, resumed))

        for findings in run_tasks(check_shard, tasks, workers=min(self.workers, len(tasks)), on_progress=advance):
            journal.add(findings)
            advance(CheckProgress(findings.number, findings.records))
        return [problem for _, findings in sorted(journal.findings.items()) for problem in findings.problems]


def _check_plan(folder: Path, manifest: Manifest) -> Iterator[Problem]:
    try:
        data = read_regular(folder / PLAN, MOST_BYTES)
    except OSError as error:
        yield Problem(PLAN, f"cannot be read: {reason(error)}")
        return
    if hashlib.sha256(data).hexdigest() != manifest.plan_sha256:
        yield Problem(PLAN, "differs from the plan that the manifest names")


def _check_index(folder: Path, manifest: Manifest) -> list[Problem]:
    found = [problem for column in manifest.columns for problem in check_file(folder, column, column.file)]
    if not found:
        try:
            index = Index.of(folder, manifest)
            index.check_content()
            for field in manifest.schema.fields:
                if field.indexed:
                    check_values(field, index.field(field.name))
        except DatasetError as error:
            found.append(Problem(error.file or INDEX, str(error)))
        except ValueError as error:
            found.append(Problem(INDEX, str(error)))
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
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.findings: dict[int, ShardFindings] = {}

    @classmethod
    def of(cls, path: Path | None, manifest: Manifest, decode_images: bool) -> Self:
        """Open the journal in a file, if one is given.

        Raises:
            UsageError: The file cannot be used, or is something else.
        """
        journal = cls(path)
        if path is None:
            return journal
        head = _Head(hashlib.sha256(manifest.dump()).hexdigest(), decode_images)
        lines = _lines(path)
        begun = _parsed(_Head, lines[0]) if lines else None
        if lines and begun is None:
            raise UsageError(f"{path} is not a journal of packtrain verify: name another file, or a new one")
        found: dict[int, ShardFindings] = {}
        if begun == head:
            # A run that was killed while it wrote a line leaves a part of it.
            shards = [_parsed(ShardFindings, line) for line in lines[1:]]
            found = {each.number: each for each in shards if each is not None and each.number < len(manifest.shards)}
        if found and len(found) < len(manifest.shards):
            journal.findings = found
        else:
            with file_errors(path, UsageError, verb="use the journal"):
                path.write_text(json.dumps(asdict(head)) + "\n", encoding="utf-8")
        return journal

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
