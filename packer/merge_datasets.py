"""Makes a new dataset of several: copies their segments, layers and dropped rows, and names all in a version."""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from packtrain._core.arguments import checks_names, flag, function, items, path_of
from packtrain._core.document import MOST_BYTES
from packtrain._core.errors import CorruptFile, OutputConflict, UsageError
from packtrain._core.files import copy_file, file_errors, is_temporary, make_folder, remove_temporaries, write_file
from packtrain._core.manifest import INDEX, MANIFEST, PLAN, VERSIONS, FileInfo, Manifest
from packtrain._core.opening import read_regular
from packtrain._core.problems import reading
from packtrain._core.version_schema import MergedSchema, part_schema
from packtrain._core.versions import (
    BASE,
    DROPPED,
    LAYERS,
    MOST_SEGMENTS,
    SEGMENTS,
    SIDES,
    Change,
    Root,
    Segment,
    Split,
    Version,
    has_versions,
    layer_manifest,
    load_version,
    newest_version,
    require_no_links,
    segment_manifest,
    segment_manifest_path,
    version_name,
)
from packtrain._readers.dataset.versioned import VersionLease
from packtrain._storage.staging.locks import lease_on

from .changing import ChangeReport
from .dataset_rows import require_outside
from .planning import written_by
from .workplace import NAME_DIGITS, writing

_PLACES: Final = (SEGMENTS, LAYERS, DROPPED, SIDES)


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
        sources: Folders of datasets, at least two, which have no segment in common.
        out: Folder of the new dataset.
        dry_run: True to write nothing, and report what would be written.
        on_progress: Called after each file.

    Raises:
        UsageError: The datasets do not fit together: other kinds of fields, labels, class names or splits; or two have
            the same segment, or one cannot be copied. The message names both.
        OutputConflict: `out` holds something else, or another process is writing there.
        DatasetError: A dataset cannot be read, or is damaged.
        PackError: `out` cannot be written to.
    """
    folders = [path_of("sources", each) for each in items("sources", sources, "folders of datasets")]
    target = path_of("out", out)
    function("on_progress", on_progress)
    if len(folders) < 2:
        raise UsageError("`sources` needs two datasets or more")
    for folder in folders:
        require_outside(folder, target)
    with ExitStack() as stack:
        datasets = list[tuple[Path, Version]]()
        for folder in folders:
            version = newest_version(folder)
            if (
                lease := VersionLease(folder, version.number) if has_versions(folder) else lease_on(folder)
            ) is not None:
                stack.callback(lease.close)
            datasets.append((folder, version))
        merged = _Merged.of(datasets)
        report = ChangeReport(target, 1, merged.version.records, dry_run=flag("dry_run", dry_run))
        if _is_there(target, merged):
            return report
        if dry_run:
            written = (*merged.names, version_name(1), MANIFEST)
            return replace(report, written=written, bytes=sum(each.bytes for each in merged.parts))
        with file_errors(target), writing(Path(os.path.realpath(target))):
            merged.copy(target, on_progress)
    return report


@dataclass(frozen=True)
class _Part:
    """A segment or a layer that is to be copied.

    Attributes:
        name: Its folder in the new dataset.
        folder: Its folder.
        manifest: Its manifest.
        data: The bytes of that.
    """

    name: str
    folder: Path
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
            yield f"{INDEX}/{column.name}.npy", column

    def is_copied(self, out: Path) -> bool:
        """True if all of it is there; its manifest comes last."""
        path = out / self.name / MANIFEST
        if path.exists() and read_regular(path, MOST_BYTES) != self.data:
            raise OutputConflict(
                f"{path.parent} is the copy of another dataset: choose another folder, or remove {out}"
            )
        return path.exists()

    def copy(self, out: Path) -> None:
        """Copies it."""
        folder = out / self.name
        make_folder(folder / INDEX)
        for place in (folder, folder / INDEX):
            remove_temporaries(place)
        with reading(self.folder / PLAN):
            plan = read_regular(self.folder / PLAN, MOST_BYTES)
        if hashlib.sha256(plan).hexdigest() != self.manifest.plan_sha256:
            raise CorruptFile(f"{self.folder / PLAN} is damaged: it is not the plan that the manifest names", file=PLAN)
        write_file(folder / PLAN, [plan])
        for name, file in self.files():
            copy_file(self.folder / name, folder / name, file.bytes, file.crc32c)
        write_file(folder / MANIFEST, [self.data])


@dataclass(frozen=True)
class _Merged:
    """A dataset that is to be made of others.

    Attributes:
        version: Its only version.
        parts: Its segments and layers.
        columns: The files beside them, by name in the new dataset: what has them, and what it says of them.
    """

    version: Version
    parts: tuple[_Part, ...]
    columns: dict[str, tuple[Path, FileInfo]]

    @classmethod
    def of(cls, datasets: Sequence[tuple[Path, Version]]) -> _Merged:
        """That of these versions of datasets."""
        segments, parts, splits = list[Segment](), list[_Part](), list[tuple[Path, Split]]()
        columns = dict[str, tuple[Path, FileInfo]]()
        schemas, homes, taken = [], dict[str, tuple[int, Path]](), set[str]()
        for number, (folder, version) in enumerate(datasets):
            names = dict[str, str]()
            for segment in version.segments:
                _require_new(segment, number, folder, homes)
                schemas.append(replace(part_schema(folder, segment), name=str(folder)))
                found = _parts_of(folder, segment, number, taken)
                parts += found
                new, *layers = (part.name.rpartition("/")[2] for part in found)
                names[segment.name] = new
                renamed = [replace(layer, name=name) for layer, name in zip(segment.layers, layers, strict=True)]
                segments.append(replace(segment, name=new, layers=tuple(renamed)))
            columns |= {name: (folder / name, file) for name, file in version.columns.items()}
            if (split := version.split) is not None:
                rows = tuple(replace(each, segment=names[each.segment]) for each in split.rows)
                splits.append((folder, replace(split, rows=rows)))
        if len(segments) > MOST_SEGMENTS:
            raise UsageError(
                f"these datasets have {len(segments):,} segments, and a dataset can have {MOST_SEGMENTS:,}: join some "
                "with `packtrain compact`, then run the same command again"
            )
        schema = MergedSchema.of(schemas)
        version = Version(
            dataset=secrets.token_hex(16),
            number=1,
            parent=None,
            writer=secrets.token_hex(16),
            written_by=written_by(),
            created=int(time.time()),
            change=Change("merge", f"merged {', '.join(folder.name for folder, _ in datasets)}"),
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

    def copy(self, out: Path, on_progress: Callable[[MergeProgress], None] | None) -> None:
        """Makes it."""
        total, done = sum(part.bytes for part in self.parts), 0
        missing = [part for part in self.parts if not part.is_copied(out)]
        resumed = done = total - sum(part.bytes for part in missing)
        for place in (out, *(out / name for name in (*_PLACES, VERSIONS))):
            remove_temporaries(place)
        for part in missing:
            part.copy(out)
            done += part.bytes
            if on_progress is not None:
                on_progress(MergeProgress(done, total, resumed))
        for name, (source, file) in self.columns.items():
            make_folder((out / name).parent)
            copy_file(source, out / name, file.bytes, file.crc32c)
        make_folder(out / VERSIONS)
        write_file(out / version_name(1), [self.version.dump()])
        # Only now there is a dataset.
        write_file(out / MANIFEST, [Root(self.version.dataset, None).dump()])


def _require_new(segment: Segment, number: int, folder: Path, homes: dict[str, tuple[int, Path]]) -> None:
    """Refuses a segment that another dataset has as well: its rows would be there twice, under the same paths."""
    other, home = homes.setdefault(segment.manifest.sha256, (number, folder))
    if other != number:
        raise UsageError(
            f"{home} and {folder} have the same {segment.records:,} rows (segment {segment.name} of the latter), which "
            "would be there twice: drop them from one (`packtrain drop-rows`), or pack it anew (`packtrain pack`)"
        )


def _parts_of(folder: Path, segment: Segment, number: int, taken: set[str]) -> list[_Part]:
    """A segment and its layers, to be copied under names that are not taken."""

    def free(name: str) -> str:
        name = hashlib.sha256(f"{number} {name}".encode()).hexdigest()[:NAME_DIGITS] if name in taken else name
        taken.add(name)
        return name

    manifest = segment_manifest(folder, segment)
    if manifest.base is not None:
        raise UsageError(f"{folder} holds an index of shards that lie elsewhere, and cannot be copied")
    # As `append` would call it, which so finds that it is there.
    name = manifest.plan_sha256[:NAME_DIGITS] if segment.name == BASE else segment.name
    path = segment_manifest_path(folder, segment)
    parts = [_Part(f"{SEGMENTS}/{free(name)}", path.parent, manifest, read_regular(path, MOST_BYTES))]
    for layer in segment.layers:
        path = folder / LAYERS / layer.name / MANIFEST
        manifest = layer_manifest(folder, segment, layer)
        parts.append(_Part(f"{LAYERS}/{free(layer.name)}", path.parent, manifest, read_regular(path, MOST_BYTES)))
    return parts


def _joined(splits: Sequence[tuple[Path, Split]]) -> Split | None:
    """The split of a dataset of which these parts are split."""
    if not splits:
        return None
    first, split = splits[0]
    for folder, other in splits[1:]:
        if replace(other, rows=()) != replace(split, rows=()):
            raise UsageError(
                f"{first} and {folder} are split in different ways: split one as the other is (`packtrain split "
                "--replace`), then run the same command again"
            )
    return replace(split, rows=tuple(row for _, each in splits for row in each.rows))


def _is_there(out: Path, merged: _Merged) -> bool:
    """True if the dataset is made already.

    Raises:
        OutputConflict: There is something else.
    """
    require_no_links(out)
    if (out / MANIFEST).exists():
        if has_versions(out):
            there = load_version(out, 1, also_dropped=True)
            if (there.segments, there.split) == (merged.version.segments, merged.version.split):
                return True
        raise OutputConflict(f"{out} holds another dataset: choose another folder")
    if not out.exists():
        return False
    with file_errors(out, verb="look into"):
        entries = os.listdir(out)
        inner = [f"{place}/{name}" for place in _PLACES if place in entries for name in os.listdir(out / place)]
        inner += [f"{VERSIONS}/{name}" for name in os.listdir(out / VERSIONS)] if VERSIONS in entries else []
    known = {*_PLACES, VERSIONS, version_name(1), *merged.names}
    if others := [name for name in (*entries, *inner) if name not in known and not is_temporary(Path(name))]:
        raise OutputConflict(
            f"{out} has {min(others)}, which is not of this merge: choose another folder, or remove it"
        )
    return False
