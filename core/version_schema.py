"""The schema that the segments of a version share. ``docs/format-versions.md`` has the rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .errors import UsageError
from .manifest import FieldInfo
from .options import LabelSpec
from .schema import LABEL, Field, Schema
from .versions import Segment, Version, layer_manifest, segment_manifest


@dataclass(frozen=True)
class PartSchema:
    """The schema of one segment, or that of several.

    Attributes:
        name: What messages call it.
        fields: Its fields and those of its layers; one that some of several segments lack is optional.
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
    def schema(self) -> Schema:
        """The fields and labels of a sample."""
        return Schema(tuple(field.plain for field in self.fields), self.labels, self.classes)

    def of(self, version: Version) -> Version:
        """A version with this schema."""
        return replace(version, fields=self.fields, labels=self.labels, classes=self.classes)


def merged(parts: Sequence[PartSchema]) -> PartSchema:
    """The schema of these parts in this order.

    Raises:
        UsageError: They do not fit together; the message names the part that differs.
    """
    first = parts[0]
    for part in parts[1:]:
        if part.labels != first.labels:
            raise UsageError(f"{part.name} has labels of type {part.labels}, but {first.name} of {first.labels}")
    fields, homes, rows = dict[str, FieldInfo](), dict[str, str](), Counter[str]()
    for part in parts:
        for field in part.fields:
            home = homes.setdefault(field.name, part.name)
            if (known := fields.setdefault(field.name, field)) is not field:
                fields[field.name] = _joined(known, field, home, part.name)
            rows[field.name] += part.rows
    total = sum(part.rows for part in parts)
    whole = (
        replace(field, optional=True, missing=field.missing + total - rows[name]) if rows[name] < total else field
        for name, field in fields.items()
    )
    return replace(first, fields=tuple(whole), classes=_joined_classes(parts), rows=total)


def differing(one: Field, other: Field) -> str:
    """The property in which fields of two datasets or segments differ, so that they are not one field, or ""."""
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


def part_schema(folder: Path, segment: Segment) -> PartSchema:
    """The schema of a segment; raises what `load_part` raises."""
    manifest = segment_manifest(folder, segment)
    fields = {field.name: field for field in manifest.fields}
    labels, classes = manifest.labels, manifest.classes
    for layer in segment.layers:
        added = layer_manifest(folder, segment, layer)
        fields |= {field.name: field for field in added.fields if field.name in layer.fields}
        if LABEL in layer.fields:
            labels, classes = added.labels, added.classes
    return PartSchema(f"segment {segment.name}", tuple(fields.values()), labels, classes, segment.rows)


def version_schema(folder: Path, segments: Sequence[Segment]) -> PartSchema:
    """The schema that segments share; raises what `part_schema` and `merged` raise."""
    return merged([part_schema(folder, segment) for segment in segments])
