"""The schema that the segments of a version share. ``docs/format-versions.md`` has the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from .errors import UsageError
from .manifest import FieldInfo, Manifest
from .options import LabelSpec
from .schema import LABEL, Field, Schema
from .versions import Layer, Segment, Version, layer_manifest, segment_manifest


@dataclass(frozen=True)
class MergedSchema:
    """The schema that several segments share.

    Attributes:
        fields: The fields; one that a segment lacks is optional.
        labels: Type of the labels.
        classes: Class names by label, or None.
    """

    fields: tuple[FieldInfo, ...]
    labels: LabelSpec
    classes: tuple[str, ...] | None

    @classmethod
    def of(cls, parts: Sequence[PartSchema]) -> Self:
        """The schema of these parts in this order.

        Raises:
            UsageError: They do not fit together; the message names the part that differs.
        """
        first = parts[0]
        for part in parts[1:]:
            if part.labels != first.labels:
                raise UsageError(f"{part.name} has labels of type {part.labels}, but {first.name} of {first.labels}")
        fields, homes = dict[str, FieldInfo](), dict[str, str]()
        for part in parts:
            for field in part.fields:
                home = homes.setdefault(field.name, part.name)
                if (known := fields.setdefault(field.name, field)) is not field:
                    fields[field.name] = _joined(known, field, home, part.name)
        lacking = {name: sum(part.rows for part in parts if name not in part.names) for name in fields}
        return cls(
            tuple(
                replace(field, optional=True, missing=field.missing + lacking[name]) if lacking[name] else field
                for name, field in fields.items()
            ),
            first.labels,
            _joined_classes(parts),
        )

    @property
    def schema(self) -> Schema:
        """The fields and labels of a sample."""
        return Schema(tuple(field.plain for field in self.fields), self.labels, self.classes)


@dataclass(frozen=True)
class PartSchema:
    """The schema of one segment.

    Attributes:
        name: What messages call it.
        fields: Its fields and those of its layers.
        labels: Type of the labels.
        classes: Class names by label, or None.
        rows: Number of its rows that count.
    """

    name: str
    fields: tuple[FieldInfo, ...]
    labels: LabelSpec
    classes: tuple[str, ...] | None
    rows: int

    @property
    def names(self) -> frozenset[str]:
        """Names of the fields."""
        return frozenset(field.name for field in self.fields)

    @classmethod
    def of(cls, name: str, manifest: Manifest, layers: Sequence[tuple[Layer, Manifest]], rows: int) -> Self:
        """That of a segment with this manifest, these layers, and as many rows that are not dropped."""
        fields = {field.name: field for field in manifest.fields}
        labels, classes = manifest.labels, manifest.classes
        for layer, added in layers:
            fields |= {field.name: field for field in added.fields if field.name in layer.fields}
            if LABEL in layer.fields:
                labels, classes = added.labels, added.classes
        return cls(name, tuple(fields.values()), labels, classes, rows)


def differing(one: Field, other: Field) -> str:
    """The property in which fields of two segments differ, so that they are not the same field of a version, or ""."""
    keys = ("kind", "dtype", "shape", "classes")
    return next((key for key in keys if getattr(one, key) != getattr(other, key)), "")


def _joined(one: FieldInfo, other: FieldInfo, home: str, part: str) -> FieldInfo:
    """One field of two parts, which are called so."""
    if key := differing(one, other):
        raise UsageError(
            f"field {one.name}: {key} is {getattr(other, key)!r} in {part}, but {getattr(one, key)!r} in {home}"
        )
    sized = one.bytes is not None and other.bytes is not None and one.maximum is not None and other.maximum is not None
    return replace(
        one,
        optional=one.optional or other.optional,
        missing=one.missing + other.missing,
        bytes=one.bytes + other.bytes if sized else None,  # type: ignore[operator]
        maximum=max(one.maximum, other.maximum) if sized else None,  # type: ignore[type-var]
    )


def _joined_classes(parts: Sequence[PartSchema]) -> tuple[str, ...] | None:
    """The longest list of class names, of which each part's is the beginning."""
    longest = max(parts, key=lambda part: len(part.classes or ()))
    for part in parts:
        if (part.classes is None) != (longest.classes is None):
            with_names, without = (longest, part) if part.classes is None else (part, longest)
            raise UsageError(f"{with_names.name} has class names, but {without.name} has none")
        for label, (ours, theirs) in enumerate(zip(part.classes or (), longest.classes or (), strict=False)):
            if ours != theirs:
                raise UsageError(f"label {label} is {ours!r} in {part.name}, but {theirs!r} in {longest.name}")
    return longest.classes


def part_schemas(folder: Path, version: Version) -> list[PartSchema]:
    """The schema of each segment of a version; raises what `load_part` raises."""
    return [part_schema(folder, segment) for segment in version.segments]


def part_schema(folder: Path, segment: Segment) -> PartSchema:
    """The schema of a segment; raises what `load_part` raises."""
    layers = [(layer, layer_manifest(folder, segment, layer)) for layer in segment.layers]
    return PartSchema.of(f"segment {segment.name}", segment_manifest(folder, segment), layers, segment.rows)
