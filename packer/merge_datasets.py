"""Makes a new dataset of several: copies their segments, layers and dropped rows, and names all in a version."""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from packtrain._core.arguments import checks_names, flag, function, items
from packtrain._core.document import MOST_BYTES, read_document
from packtrain._core.errors import CorruptFile, OutputConflict, UsageError
from packtrain._core.manifest import MANIFEST, PLAN, FileInfo, Manifest
from packtrain._core.opening import read_regular
from packtrain._core.problems import reading
from packtrain._core.version_files import BASE, LAYERS, SEGMENTS, has_versions, is_root, version_name
from packtrain._core.version_schema import merged, part_schema
from packtrain._core.versions import (
    MOST_SEGMENTS,
    VERSION,
    Change,
    RootDocument,
    Segment,
    Split,
    Version,
    layer_manifest,
    parse_version,
    segment_manifest,
    segment_manifest_path,
)
from packtrain._storage.location import Location
from packtrain._storage.remote.urls import place_of
from packtrain._storage.staging.locks import VersionLease, lease_on

from .changing import ChangeReport, require_own_shards
from .dataset_rows import require_outside
from .merge_output import MergeOutput, merge_output
from .object_workplace import workplace_at
from .planning import written_by
from .workplace import NAME_DIGITS, Workplace


@dataclass(frozen=True)
class MergeProgress:
    """Progress of a merge of datasets.

    Attributes:
        done: Bytes that are copied.
        total: Bytes to be copied.
        resumed: Bytes that were copied before this run.
    """

    done: int
    total: int
    resumed: int


@checks_names()
def merge_datasets(
    sources: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    dry_run: bool = False,
    on_progress: Callable[[MergeProgress], None] | None = None,
) -> ChangeReport:
    """Makes a new dataset that has the rows of several, in their order. Nothing in it needs these datasets any more.

    It has the newest version of each, as version 1: segments, added fields and dropped rows are copied byte for byte,
    and compared with their checksums. It is a dataset once all of that is there; if a run stops for any reason, the
    same call continues where it stopped.

    Args:
        sources: Folders or addresses of datasets, at least two, which have no segment in common.
        out: Folder or address of the new dataset.
        dry_run: True to write nothing, and report what would be written.
        on_progress: Called after each file.

    Raises:
        UsageError: The datasets do not fit together: other kinds of fields, labels, class names or splits; or two have
            the same segment, or one cannot be copied. The message names both.
        OutputConflict: `out` holds something else, or another process is writing there.
        DatasetError: A dataset cannot be read, or is damaged.
        PackError: `out` cannot be written to.
    """
    locations = [place_of("sources", each) for each in items("sources", sources, "places of datasets")]
    target = place_of("out", out)
    function("on_progress", on_progress)
    if len(locations) < 2:
        raise UsageError("merging takes two datasets or more: name them, and the folder or address of the new one")
    for location in locations:
        require_outside(location, target)
    with ExitStack() as stack:
        output = stack.enter_context(merge_output(target))
        datasets = list[tuple[Workplace, Version]]()
        for location in locations:
            place = stack.enter_context(workplace_at(location, changing=False))
            version = place.newest()
            place.bring_manifests(version)
            folder = place.folder
            if (
                lease := VersionLease(folder, version.number) if has_versions(folder) else lease_on(folder)
            ) is not None:
                stack.callback(lease.close)
            datasets.append((place, version))
        made = _Merged.of(datasets)
        report = ChangeReport(target, 1, made.version.records, dry_run=flag("dry_run", dry_run))
        if made.is_in(output, target):
            return report
        if dry_run:
            written = (*made.names, version_name(1), MANIFEST)
            return replace(report, written=written, bytes=sum(each.bytes for each in made.parts))
        with output.writing():
            made.copy(output, target, on_progress)
    return report


@dataclass(frozen=True)
class _CopiedPart:
    """A segment or a layer that is to be copied.

    Attributes:
        name: Its folder in the new dataset.
        place: The dataset that has it.
        folder: Its folder there.
        manifest: Its manifest.
        data: The bytes of that.
    """

    name: str
    place: Workplace
    folder: str
    manifest: Manifest
    data: bytes

    @property
    def bytes(self) -> int:
        """Size of its files but for the plan."""
        return len(self.data) + sum(file.bytes for _, file in self.files())

    def files(self) -> Iterator[tuple[str, FileInfo]]:
        """Its files but for plan and manifest, by name in its folder."""
        for file in self.manifest.files():
            yield file.name, file
        for column in self.manifest.columns:
            yield column.file, column

    def is_in(self, output: MergeOutput) -> bool:
        """True if all of it is there; its manifest comes last."""
        return output.read(f"{self.name}/{MANIFEST}") is not None

    def copy(self, output: MergeOutput) -> None:
        """Copies it."""
        with self.place.file(f"{self.folder}{PLAN}") as path:
            with reading(path):
                plan = read_regular(path, MOST_BYTES)
            if hashlib.sha256(plan).hexdigest() != self.manifest.plan_sha256:
                raise CorruptFile(f"{path} is damaged: it is not the plan that the manifest names", file=PLAN)
        output.write(f"{self.name}/{PLAN}", plan)
        for name, file in self.files():
            if not output.has(f"{self.name}/{name}", file):
                with self.place.file(f"{self.folder}{name}") as path:
                    output.copy(path, f"{self.name}/{name}", file)
        output.write(f"{self.name}/{MANIFEST}", self.data)


@dataclass(frozen=True)
class _Merged:
    """A dataset that is to be made of others.

    Attributes:
        version: Its only version.
        parts: Its segments and layers.
        columns: The files beside them, by name in the new dataset: what has them, and what it says of them.
    """

    version: Version
    parts: tuple[_CopiedPart, ...]
    columns: dict[str, tuple[Workplace, FileInfo]]

    @classmethod
    def of(cls, datasets: Sequence[tuple[Workplace, Version]]) -> _Merged:
        """Returns that of these versions of datasets."""
        segments, parts, splits = list[Segment](), list[_CopiedPart](), list[tuple[Location, Split]]()
        columns = dict[str, tuple[Workplace, FileInfo]]()
        schemas, homes, taken = [], dict[str, tuple[int, Location]](), set[str]()
        for number, (place, version) in enumerate(datasets):
            names = dict[str, str]()
            for segment in version.segments:
                _require_new(segment, number, place.address, homes)
                schemas.append(replace(part_schema(place.folder, segment), name=str(place.address)))
                found = _parts_of(place, segment, number, taken)
                parts += found
                new, *layers = (part.name.rpartition("/")[2] for part in found)
                names[segment.name] = new
                renamed = [replace(layer, name=name) for layer, name in zip(segment.layers, layers, strict=True)]
                segments.append(replace(segment, name=new, layers=tuple(renamed)))
            if both := sorted(columns.keys() & version.columns.keys()):
                raise UsageError(f"{columns[both[0]][0].address} and {place.address} both have a file {both[0]}")
            columns |= {name: (place, file) for name, file in version.columns.items()}
            if (split := version.split) is not None:
                rows = tuple(replace(each, segment=names[each.segment]) for each in split.rows)
                splits.append((place.address, replace(split, rows=rows)))
        if len(segments) > MOST_SEGMENTS:
            raise UsageError(
                f"these datasets have {len(segments):,} segments, and a dataset can have {MOST_SEGMENTS:,}: join some "
                "with `packtrain compact`, then run the same command again"
            )
        schema = merged(schemas)
        version = Version(
            dataset=secrets.token_hex(16),
            number=1,
            parent=None,
            writer=secrets.token_hex(16),
            written_by=written_by(),
            created=int(time.time()),
            change=Change("merge", f"merged {', '.join(place.address.name for place, _ in datasets)}"),
            fields=schema.fields,
            labels=schema.labels,
            classes=schema.classes,
            records=sum(segment.rows for segment in segments),
            segments=tuple(segments),
            split=_joined(splits),
        )
        return cls(version, tuple(parts), columns)

    @property
    def names(self) -> tuple[str, ...]:
        """All that it consists of, by name in its folder."""
        return (*(part.name for part in self.parts), *self.columns)

    def is_in(self, output: MergeOutput, target: Location) -> bool:
        """True if the dataset is made already.

        Raises:
            OutputConflict: There is something else.
        """
        first = output.first()
        if first is None:
            return False
        known = output.read(version_name(1))
        if (root := output.read(MANIFEST)) is not None and (known is None or not is_root(root)):
            raise OutputConflict(f"{target} holds another dataset: choose another folder")
        if known is None:
            raise OutputConflict(
                f"{target} has {first}, which is not of this merge: choose another folder, or remove it"
            )
        self._agreed(known, target, "another dataset" if root else "the beginning of another merge, which was stopped")
        return root is not None

    def _agreed(self, data: bytes, target: Location, what: str = "another dataset") -> Version:
        """The version 1 that is there, which is to be like this one, but for its number and time.

        Raises:
            OutputConflict: It is not.
        """
        path = target / version_name(1)
        dataset = str(read_document(data, path, newest=VERSION).get("dataset"))
        there = parse_version(data, path, RootDocument(dataset, None), 1)
        if (there.segments, there.split) != (self.version.segments, self.version.split):
            raise OutputConflict(f"{target} holds {what}: choose another folder, or remove it")
        return there

    def copy(self, output: MergeOutput, target: Location, on_progress: Callable[[MergeProgress], None] | None) -> None:
        """Makes it."""
        # First, because it says what is to be there: whoever merges other datasets here is refused.
        output.write(version_name(1), self.version.dump())
        there = self._agreed(output.read(version_name(1)) or b"", target)
        output.require_exclusive(version_name(1))
        missing = [part for part in self.parts if not part.is_in(output)]
        total = sum(part.bytes for part in self.parts)
        resumed = done = total - sum(part.bytes for part in missing)
        for part in missing:
            part.copy(output)
            done += part.bytes
            if on_progress is not None:
                on_progress(MergeProgress(done, total, resumed))
        for name, (place, file) in self.columns.items():
            with place.file(name) as path:
                output.copy(path, name, file)
        # Only now there is a dataset.
        output.write(MANIFEST, RootDocument(there.dataset, None).dump())


def _require_new(segment: Segment, number: int, place: Location, homes: dict[str, tuple[int, Location]]) -> None:
    """Refuses a segment that another dataset has as well: its rows would be there twice, under the same paths."""
    other, home = homes.setdefault(segment.manifest.sha256, (number, place))
    if other != number:
        raise UsageError(
            f"{home} and {place} have the same {segment.records:,} rows (segment {segment.name} of the latter), which "
            "would be there twice: drop them from one (`packtrain drop-rows`), or pack it anew (`packtrain pack`)"
        )


def _parts_of(place: Workplace, segment: Segment, number: int, taken: set[str]) -> list[_CopiedPart]:
    """A segment and its layers, to be copied under names that are not taken."""

    def free(name: str) -> str:
        name = hashlib.sha256(f"{number} {name}".encode()).hexdigest()[:NAME_DIGITS] if name in taken else name
        taken.add(name)
        return name

    folder = place.folder
    manifest = segment_manifest(folder, segment)
    require_own_shards(place, [segment])
    path = segment_manifest_path(folder, segment)
    own = "" if path.parent == folder else f"{path.parent.relative_to(folder)}/"
    # As `append` would call it, which so finds that it is there.
    name = manifest.plan_sha256[:NAME_DIGITS] if segment.name == BASE else segment.name
    parts = [_CopiedPart(f"{SEGMENTS}/{free(name)}", place, own, manifest, read_regular(path, MOST_BYTES))]
    for layer in segment.layers:
        own = f"{LAYERS}/{layer.name}/"
        manifest, path = layer_manifest(folder, segment, layer), folder / own / MANIFEST
        parts.append(_CopiedPart(f"{LAYERS}/{free(layer.name)}", place, own, manifest, read_regular(path, MOST_BYTES)))
    return parts


def _joined(splits: Sequence[tuple[Location, Split]]) -> Split | None:
    """The split of a dataset of which these parts are split."""
    if not splits:
        return None
    first, split = splits[0]
    for place, other in splits[1:]:
        if replace(other, rows=()) != replace(split, rows=()):
            raise UsageError(
                f"{first} and {place} are split in different ways: split one as the other is (`packtrain split "
                "--replace`), then run the same command again"
            )
    return replace(split, rows=tuple(row for _, each in splits for row in each.rows))
