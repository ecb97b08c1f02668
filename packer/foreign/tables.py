"""Brings what the scans of shards found into rows: which samples are taken, and the columns of every field."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from packtrain._core.errors import CorruptFile, PackError
from packtrain._core.index import ROW_COLUMNS, Index, text_column
from packtrain._core.manifest import INDEX, Manifest, ShardInfo
from packtrain._core.options import LabelSpec, StoreOptions
from packtrain._core.schema import IMAGE, LABEL, Field, Schema
from packtrain._storage.location import Location

from ..columns import PATH, ShardColumns, missing_columns
from ..facts import join_fields
from ..listing import Reject
from ..lists.labels import is_exact, rounded_label
from ..rejects import read_rejects
from .headers import shown
from .links import AGAIN, shard_places
from .plan import FieldRule, Rules
from .records import Label
from .scan import Extension, Scan, joined

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class TarSamples:
    """Samples in the order of the shards.

    Attributes:
        columns: Their columns, with ``shard`` and without ``label``; the path of each is ``SHARD/KEY``.
        labels: The label of each; None without labels.
        rejects: The samples that were refused.
    """

    columns: ShardColumns
    labels: list[Label] | None
    rejects: list[Reject]

    def arrays(self, schema: Schema) -> Arrays:
        """All columns but the paths, labels as the schema has them."""
        if self.labels is None:
            return self.columns.arrays
        numbers: dict[Label, Label] = {name: number for number, name in enumerate(schema.classes or ())}
        labels = [numbers.get(label, label) for label in self.labels]
        return {**self.columns.arrays, "label": np.array(labels, schema.labels.dtype)}


@dataclass(frozen=True)
class Before:
    """A dataset before new shards are taken into it.

    Attributes:
        folder: Its folder.
        manifest: Its manifest.
        rows: Its rows.
    """

    folder: Path
    manifest: Manifest
    rows: TarSamples

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads a dataset.

        Raises:
            DatasetError: It is not sound.
        """
        manifest = Manifest.load(folder)
        index = Index.of(folder, manifest)
        columns = ShardColumns.from_index(index, manifest.schema)
        columns.arrays["shard"] = index["shard"]
        labels: list[Label] | None = None
        if manifest.labels.kind != "none":
            labels = numbers = columns.arrays.pop("label").tolist()
            if (names := manifest.classes) is not None:
                if min(numbers) < 0 or max(numbers) >= len(names):
                    why = f"{folder} has labels without a class: there are {len(names)} classes"
                    raise CorruptFile(why, file=INDEX)
                labels = [names[number] for number in numbers]
        return cls(folder, manifest, TarSamples(columns, labels, read_rejects(folder, manifest)))

    def shards(self) -> list[tuple[Location, ShardInfo]]:
        """Its shards, and where they lie."""
        return list(zip(shard_places(self.folder, self.manifest), self.manifest.shards, strict=True))

    def rows_with(self, fields: Sequence[Field]) -> TarSamples:
        """Its rows, with the columns of all these fields."""
        columns = self.rows.columns
        arrays: Arrays = {}
        for field in fields:
            arrays |= missing_columns(field, len(columns))
        return replace(self.rows, columns=replace(columns, arrays=arrays | columns.arrays))

    def fields_with(self, new: Sequence[Field]) -> tuple[Field, ...]:
        """Its fields together with those of new shards.

        Raises:
            PackError: They do not fit together.
        """
        fields = {field.name: field for field in self.manifest.schema.fields}
        if IMAGE not in fields and any(field.name == IMAGE for field in new):
            raise PackError(f"the new shards have images, and the dataset has none. {AGAIN}")
        for field in new:
            together = join_fields(fields.get(field.name, field), field)
            if together is None:
                raise PackError(f"the field {field.name!r} of the new shards does not fit that of the dataset. {AGAIN}")
            fields[field.name] = together
        return tuple(fields.values())


def settle(rules: Rules, scans: Iterable[Scan]) -> tuple[Rules, tuple[Field, ...]]:
    """Decides the field of every extension.

    Returns:
        Rules that name every extension, and the fields, the image first, none of them optional.

    Raises:
        UsageError: Two fields would have the same name.
    """
    found: dict[str, list[Extension]] = {}
    for scan in scans:
        for extension, members in scan.found.items():
            found.setdefault(extension, []).append(members.extension)
    fields: dict[str, Field] = {}
    settled = {rule.extension: rule for rule in rules.fields}
    names = rules.names(found)
    for name in dict.fromkeys(names.values()):
        own = [extension for extension in found if names.get(extension) == name]
        fields[name] = _field(name, [members for extension in own for members in found[extension]], rules.mode)
        settled |= {extension: FieldRule(name, extension, fields[name].kind) for extension in own}
    ordered = tuple(sorted(fields.values(), key=lambda field: field.name != IMAGE))
    return replace(rules, fields=tuple(settled.values()), masks=(), labels=rules.has_labels(found)), ordered


def _field(name: str, found: Sequence[Extension], mode: str) -> Field:
    kind = found[0].kind
    if kind == "image":
        return Field(name, kind, store=StoreOptions("verbatim", mode=mode))
    fields = [extension.field for extension in found if extension.field is not None]
    return replace(reduce(joined, fields), name=name) if fields else Field(name, kind)


def rows(
    scan: Scan,
    number: int,
    shard: str,
    first_line: int,
    names: Mapping[str, str],
    fields: Sequence[Field],
    labels: bool,
) -> TarSamples:
    """The rows of one shard.

    Args:
        scan: What was found in it.
        number: Its number in the dataset.
        shard: Its name in the dataset.
        first_line: Number of its first sample.
        names: Name of the field of each extension.
        fields: The fields of the dataset.
        labels: Whether it has labels.

    Raises:
        PackError: A sample has two members that would both be the same field.
    """
    count = len(scan.keys)
    arrays: Arrays = {}
    for field in fields:
        arrays |= _columns(scan, shard, count, names, field)
    refused = dict(scan.unfit)
    if any(field.name == IMAGE for field in fields):
        _refuse(refused, np.flatnonzero(arrays["length"] < 0), lambda sample: f"no image{_there(scan, sample)}")
        for field in fields:
            if field.kind == "mask":
                _refuse_other_sizes(refused, arrays, field)
    if labels:
        lacking = np.setdiff1d(np.arange(count), np.fromiter(scan.labels, np.int64, len(scan.labels)))
        _refuse(refused, lacking, lambda sample: f"no label{_there(scan, sample)}")
    paths = [shard.encode() + b"/" + key for key in scan.keys]
    taken = np.setdiff1d(np.arange(count), np.fromiter(refused, np.int64, len(refused)))
    arrays |= {"line": first_line + np.arange(count), "shard": np.full(count, number, ROW_COLUMNS["shard"])}
    return TarSamples(
        columns=ShardColumns(arrays, {PATH: text_column(paths, count)}).rows(taken),
        labels=[scan.labels[sample] for sample in taken.tolist()] if labels else None,
        rejects=[
            Reject(first_line + sample, paths[sample].decode("utf-8", "surrogateescape"), refused[sample])
            for sample in sorted(refused)
        ],
    )


def refuse_rounded_labels(scans: Sequence[Scan]) -> None:
    """Refuses samples whose label is a whole number that would be rounded, because other labels are not whole."""
    if not any(isinstance(label, float) for scan in scans for label in scan.labels.values()):
        return
    for scan in scans:
        for sample, label in scan.labels.items():
            if isinstance(label, int) and not is_exact(label, "<f4"):
                scan.unfit.setdefault(sample, rounded_label(label))


def _columns(scan: Scan, shard: str, count: int, names: Mapping[str, str], field: Field) -> Arrays:
    columns, prefix = missing_columns(field, count), field.prefix
    for extension, found in scan.found.items():
        if names.get(extension) != field.name or found.extension.kind == LABEL:
            continue
        samples = found.columns["sample"]
        if (twice := samples[columns[f"{prefix}length"][samples] >= 0]).size:
            sample = int(twice[0])
            first, place = columns[f"{prefix}offset"][sample], found.columns["offset"][samples == sample][0]
            raise PackError(
                f"{shard}: the sample {shown(scan.keys[sample])} has two members for the field {field.name!r}, at "
                f"bytes {first} and {place}: name one of them with --field NAME={extension}"
            )
        for name, values in columns.items():
            values[samples] = found.columns[name.removeprefix(prefix)]
    return columns


def _refuse(refused: dict[int, str], samples: npt.NDArray[Any], why: Callable[[int], str]) -> None:
    for sample in samples.tolist():
        if sample not in refused:
            refused[sample] = why(sample)


def _refuse_other_sizes(refused: dict[int, str], arrays: Arrays, field: Field) -> None:
    image, mask = ([arrays[prefix + name] for name in ("length", "width", "height")] for prefix in ("", field.prefix))
    both = (image[0] >= 0) & (mask[0] >= 0)
    other = (image[1] != mask[1]) | (image[2] != mask[2])
    _refuse(
        refused,
        np.flatnonzero(both & other),
        lambda sample: (
            f"its mask {field.name} has {mask[1][sample]} x {mask[2][sample]} pixels, and the image "
            f"{image[1][sample]} x {image[2][sample]}"
        ),
    )


def _there(scan: Scan, sample: int) -> str:
    samples = {extension: found.columns["sample"] for extension, found in scan.found.items()}
    there = [extension for extension, found in samples.items() if np.diff(np.searchsorted(found, [sample, sample + 1]))]
    return f": it has only {', '.join(there)}" if there else ""


def settle_labels(parts: Sequence[TarSamples], before: Manifest | None) -> tuple[LabelSpec, tuple[str, ...] | None]:
    """Decides the type of the labels: whole numbers, floating-point numbers, or the names of classes.

    Classes are numbered in the order of their names; those that come with new shards follow those of before.

    Returns:
        The type, and the names of the classes or None.

    Raises:
        PackError: There are numbers and names, or the type differs from that of the dataset `before`.
    """
    if parts[0].labels is None:
        return LabelSpec("none"), None
    labels = [label for part in parts for label in part.labels or ()]
    kinds = {type(label) for label in labels}
    if str in kinds and len(kinds) > 1:
        raise PackError("some labels are numbers and others are texts: --label takes one or the other")
    classes: tuple[str, ...] | None = None
    if str in kinds:
        known = () if before is None else before.classes or ()
        classes = (*known, *sorted({str(label) for label in labels} - set(known)))
    spec = LabelSpec("float" if float in kinds else "int")
    if before is not None and (spec, classes is None) != (before.labels, before.classes is None):
        raise PackError(f"the labels of the new shards are of another type than those of the dataset. {AGAIN}")
    return spec, classes
