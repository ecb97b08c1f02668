"""Layers of segments, and the versions that name them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path

from packtrain._core.document import MOST_BYTES
from packtrain._core.errors import OutputConflict
from packtrain._core.manifest import MANIFEST, Manifest
from packtrain._core.opening import read_regular
from packtrain._core.schema import LABEL
from packtrain._core.version_schema import MergedSchema, part_schema
from packtrain._core.versions import Change, Layer, ManifestInfo, Segment, Version

from .workplace import Workplace


def layer_digest(segment: Segment, key: str = "path") -> str:
    """Names a segment and the column of the keys: what a layer is made of besides the list."""
    return segment.manifest.sha256 if key == "path" else f"{segment.manifest.sha256} {key}"


def layer_of(folder: Path) -> Layer:
    """The entry in a version of a layer that has just been written."""
    data = read_regular(folder / MANIFEST, MOST_BYTES)
    schema = Manifest.parse(data, folder / MANIFEST).schema
    labels = () if schema.labels.kind == "none" else (LABEL,)
    return Layer(folder.name, ManifestInfo.of(data), (*schema.names, *labels))


def with_layers(place: Workplace, layers: Mapping[str, Sequence[Layer]], change: Change, newest: Version) -> Version:
    """The version that follows `newest`, with more layers for each of these segments."""
    if missing := layers.keys() - {segment.name for segment in newest.segments}:
        raise OutputConflict(
            f"{place.address}: segment {min(missing)} has just been replaced by somebody else. Run the command again"
        )
    segments = [reduce(_with_layer, layers.get(each.name, ()), each) for each in newest.segments]
    place.bring_manifests(newest)
    merged = MergedSchema.of([part_schema(place.folder, segment) for segment in segments])
    return replace(newest.after(change, segments), fields=merged.fields, labels=merged.labels, classes=merged.classes)


def _with_layer(segment: Segment, added: Layer) -> Segment:
    """A segment with one more layer, whose fields take the place of those of the same name."""
    kept = (
        replace(each, fields=tuple(name for name in each.fields if name not in added.fields)) for each in segment.layers
    )
    return replace(segment, layers=(*(each for each in kept if each.fields), added))
