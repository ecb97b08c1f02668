"""Packs samples that come one by one: one reader, no plan before the end, and so nothing to divide or to resume.

The dataset is made in a folder beside the one that it is for, and takes its place as a whole. A run that is killed
leaves only that folder, which the next run removes.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from packtrain._core.errors import ListError, MissingDependency, OutputConflict, PackError, PacktrainError, UsageError
from packtrain._core.files import MiB, file_errors, fsync_folder, write_all
from packtrain._core.manifest import PLAN, Manifest, shard_stem
from packtrain._core.options import FORMATS, StoreOptions
from packtrain._core.schema import Schema

from .encoding import record_encoder
from .inputs import NAME, Function, class_names, made, name_of, root_of, with_labels
from .listing import Reject
from .merge import merge_notes
from .notes import ListFacts, NoteFacts, ShardNote, make_parts
from .options import PackOptions, reject_limit
from .output import Output, require_usable
from .pack_run import PackProgress, PackReport, pack_report
from .plan import Plan, PlannedShard
from .planning import planned_columns, require_records, written_by
from .publishing import building
from .rejects import RejectGuard
from .sample_schemas import common_schema
from .sample_values import copied
from .samples import SampleEncoder
from .shard import ShardFile, new_shard, not_the_files_fault
from .sources import Refused
from .user_code import with_line

NO_LIST: Final = hashlib.sha256().hexdigest()
"""The checksum in a plan without a list: SHA-256 of nothing."""
_SHARD_BYTES: Final = 128 * MiB
_FIRST_SAMPLES: Final = 64
_FIRST_BYTES: Final = 64 * MiB
"""So many samples or bytes show what samples hold."""
_SURE: Final = 100
"""So many refused samples are enough to tell what share of all is refused."""
_REPORT_SECONDS: Final = 0.2
_ALL_AGAIN: Final = (
    "Samples that come one by one are packed in one go, so nothing is kept: mend the source, leave such samples out, "
    "or allow more with --max-rejects"
)


class _Taken(NamedTuple):
    """A sample as it comes, or why there is none.

    Attributes:
        line: Its number, from 0.
        name: What the index calls its input.
        sample: The sample.
    """

    line: int
    name: str
    sample: Any


@dataclass
class Stream:
    """Samples that come one by one, and what has become of them.

    Attributes:
        source: The samples, or inputs of which `function` makes them.
        function: Makes a sample of an input; None if they are samples.
        options: What is asked for.
        max_rejects: How many samples may be refused, see `pack`.
        on_progress: See `pack`.
        done: Number of samples so far.
        rejects: Refused samples so far.
    """

    source: Iterable[Any]
    function: Function | None
    options: PackOptions
    max_rejects: str | int
    on_progress: Callable[[PackProgress], None] | None = None
    done: int = 0
    rejects: list[Reject] = field(default_factory=list)

    def pack(self, out: Path) -> PackReport:
        """Packs all samples into the folder `out`; raises as `packtrain.pack`."""
        # Not a link to a folder, whose place no folder can take.
        place = Path(os.path.realpath(out))
        reject_limit(self.max_rejects, 1)
        with file_errors(out):
            _require_free(place)
            with building(place, b"") as folder:
                manifest, remarks = self._pack(folder)
                _rename(folder, place)
        report = pack_report(Output(out), manifest, packed=len(manifest.shards))
        return replace(report, remarks=dict(remarks.most_common()))

    def _pack(self, folder: Path) -> tuple[Manifest, Counter[str]]:
        """Packs all samples into a new folder. Returns the manifest, and the remarks about the records."""
        options, taken = self.options, self._samples()
        root, first = root_of(options), _first(taken)
        schema = self._schema(first, root)
        encoder = SampleEncoder(schema, columns=options.columns, root=root)
        format, shard_bytes = options.format or next(iter(FORMATS)), options.shard_size or _SHARD_BYTES
        shards: list[PlannedShard] = []
        notes: list[ShardNote] = []
        remarks: Counter[str] = Counter()
        samples = chain(first, taken)
        following = next(samples, None)
        make_parts(folder)
        while following is not None:
            name, start = shard_stem(NAME, len(shards)) + FORMATS[format].suffix, following.line
            with new_shard(folder / name, format, schema) as shard, file_errors(folder):
                while following is not None and shard.bytes < shard_bytes:
                    self._add(shard, encoder, following)
                    following = next(samples, None)
                info = shard.finish()
                shard.publish()
            end = self.done if following is None else following.line
            shards.append(PlannedShard(name, start, end - start))
            listed = None if notes else ListFacts(0, ())
            notes.append(ShardNote(NoteFacts(NO_LIST, info, tuple(shard.rejects), listed), shard.columns))
            remarks.update(shard.remarks)
        self._check_rejects()
        plan = Plan(
            name=NAME,
            format=format,
            fields=schema.fields,
            labels=schema.labels,
            classes=schema.classes,
            columns=planned_columns(options.columns),
            list_sha256=NO_LIST,
            lines=self.done,
            entries=self.done,
            seed=None,
            shard_bytes=shard_bytes,
            encoder=record_encoder(schema, of_arrays=True),
            written_by=written_by(),
            shards=tuple(shards),
        )
        _write_plan(folder / PLAN, plan)
        for note in notes:
            replace(note, facts=replace(note.facts, plan=plan.sha256)).save(folder)
        return merge_notes(Output(folder), plan), remarks

    def _schema(self, first: Sequence[_Taken], root: str) -> Schema:
        """Returns what samples hold, by the first ones.

        Raises:
            ListError: There is no sample, or the first ones cannot be stored.
        """
        if not first:
            raise ListError("the source has no sample: give at least one")
        sound = [each.sample for each in first if not isinstance(each.sample, Refused)]
        try:
            if not sound:
                raise first[0].sample
            store = self.options.store or StoreOptions()
            schema = common_schema(sound, store, self.options.columns, class_names(self.options), root)
        except Refused as refusal:
            raise ListError(f"the first {len(first)} samples cannot be packed: {refusal}") from refusal
        require_records(schema.fields)
        return with_labels(schema, self.options)

    def _samples(self) -> Iterator[_Taken]:
        """Yields what the source yields; each is packed before the next is asked for."""
        source, reported = None, time.monotonic()
        while True:
            try:
                source = iter(self.source) if source is None else source
                item = next(source)
            except StopIteration:
                return
            except (PacktrainError, MemoryError):
                raise
            except (Exception, SystemExit) as error:
                raise PackError(
                    f"the source failed after {self.done} samples: {with_line(error, __file__)}. It cannot be asked "
                    "for the rest, so nothing is kept: mend it and pack again"
                ) from error
            line, name = self.done, "" if self.function is None else name_of(item)
            try:
                sample = made(self.function, item)
            except Refused as refusal:
                sample = refusal
            yield _Taken(line, name, sample)
            self.done += 1
            if self.on_progress is not None and time.monotonic() - reported > _REPORT_SECONDS:
                reported = time.monotonic()
                self.on_progress(PackProgress(self.done, 0, 0, len(self.rejects)))

    def _add(self, shard: ShardFile, encoder: SampleEncoder, taken: _Taken) -> None:
        """Adds a sample to a shard, or to the refused ones."""
        where = f"sample {taken.line}{taken.name and f' ({taken.name!r})'}"
        try:
            if isinstance(taken.sample, Refused):
                raise taken.sample
            records = encoder.records(taken.sample)
        except Refused as refusal:
            self.rejects.append(Reject(taken.line, taken.name, str(refusal)))
            shard.rejects.append(self.rejects[-1])
            if len(self.rejects) >= _SURE or "%" not in str(self.max_rejects):
                self._check_rejects()
        except MissingDependency as error:
            raise MissingDependency(f"{where}: {error}") from error
        except (OSError, MemoryError) as error:
            raise not_the_files_fault(error, where) from error
        else:
            shard.add(taken.line, taken.name, records)

    def _check_rejects(self) -> None:
        """Raises TooManyRejects; a percentage is one of the samples so far."""
        limit = reject_limit(self.max_rejects, self.done)
        RejectGuard(limit, self.done, advice=_ALL_AGAIN).count(0, self.rejects)


def _first(taken: Iterator[_Taken]) -> list[_Taken]:
    """Takes the first samples, and keeps them although the source may change them when it goes on."""
    first, size = [], 0
    for each in taken:
        try:
            sample, count = copied(each.sample)
            each = each._replace(sample=sample)
        except Refused:
            # As it is, for the reason.
            count = 0
        first.append(each)
        size += count
        if len(first) == _FIRST_SAMPLES or size >= _FIRST_BYTES:
            break
    return first


def _require_free(out: Path) -> None:
    """Refuses a place that a new dataset cannot take.

    Raises:
        OutputConflict: There is something.
        UsageError: It is a mount point.
    """
    require_usable(out)
    if out.is_dir() and any(out.iterdir()):
        raise _taken_place(out)
    if out.is_mount():
        raise UsageError(f"{out} is a mount point, whose place no folder can take: name a folder inside it")


def _taken_place(out: Path) -> OutputConflict:
    return OutputConflict(
        f"{out} holds a dataset, finished or not, or files. Samples that come one by one cannot be compared with it, "
        f"so nothing is continued: choose another folder, or remove it: `rm -r {shlex.quote(str(out))}`"
    )


def _rename(folder: Path, out: Path) -> None:
    """Puts a dataset in its place, which is free or an empty folder.

    Raises:
        OutputConflict: Meanwhile there is something.
    """
    try:
        os.rename(folder, out)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise _taken_place(out) from error
        raise
    fsync_folder(out.parent)


def _write_plan(path: Path, plan: Plan) -> None:
    """Writes the plan into the file that is there: as long as that is locked, nobody takes the folder for abandoned."""
    with open(path, "r+b", buffering=0) as file:
        write_all(file.fileno(), [plan.dump()])
        os.fsync(file.fileno())
