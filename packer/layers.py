"""Layers of segments, the columns beside these, and the versions that name them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy.typing as npt
from crc32c import crc32c

from packtrain._core.document import MOST_BYTES
from packtrain._core.errors import OutputConflict
from packtrain._core.files import make_folder, write_file
from packtrain._core.manifest import MANIFEST, FileInfo, Manifest
from packtrain._core.npy import npy_header
from packtrain._core.opening import read_regular
from packtrain._core.schema import LABEL
from packtrain._core.version_files import random_name
from packtrain._core.version_schema import version_schema
from packtrain._core.versions import Change, Layer, ManifestInfo, Segment, Version

from .workplace import Workplace


def layer_digest(segment: Segment, key: str = "path") -> str:
    """Names a segment and the column of the keys: what a layer is made of besides the list."""
    return segment.manifest.sha256 if key == "path" else f"{segment.manifest.sha256} {key}"


def part_in(folder: Path) -> tuple[ManifestInfo, Manifest]:
    """The manifest of a segment or a layer that has just been written, and how a version names it."""
    data = read_regular(folder / MANIFEST, MOST_BYTES)
    return ManifestInfo.of(data), Manifest.parse(data, folder / MANIFEST)


def layer_of(folder: Path) -> Layer:
    """The entry in a version of a layer that has just been written."""
    info, manifest = part_in(folder)
    labels = () if manifest.labels.kind == "none" else (LABEL,)
    return Layer(folder.name, info, (*manifest.schema.names, *labels))


def write_column(folder: Path, kind: str, values: npt.NDArray[Any]) -> FileInfo:
    """Writes a column beside the segments of the dataset in `folder`, under a name that no other one has."""
    make_folder(folder / kind)
    name, data = random_name(), values.tobytes()
    header = npy_header(values.dtype.str, values.shape)
    write_file(folder / kind / f"{name}.npy", [header, data], exclusive=True)
    return FileInfo(name, len(header) + len(data), crc32c(data, crc32c(header)))


def require_segments(place: Workplace, names: Collection[str], newest: Version) -> None:
    """Raises OutputConflict if a version is without some segments: they were replaced since they were looked at."""
    if missing := {*names} - {segment.name for segment in newest.segments}:
        raise OutputConflict(
            f"{place.address}: segment {min(missing)} has just been replaced by somebody else. Run the command again"
        )


def with_layers(place: Workplace, layers: Mapping[str, Sequence[Layer]], change: Change, newest: Version) -> Version:
    """The version that follows `newest`, with more layers for each of these segments."""
    require_segments(place, layers, newest)
    segments = [reduce(_with_layer, layers.get(each.name, ()), each) for each in newest.segments]
    return next_version(place, segments, change, newest)


def next_version(place: Workplace, segments: Sequence[Segment], change: Change, newest: Version) -> Version:
    """The version that follows `newest`, with the schema that these segments share."""
    version = newest.after(change, segments)
    # What another writer has appended meanwhile as well.
    place.bring_manifests(newest)
    return version_schema(place.folder, segments).of(version)


def _with_layer(segment: Segment, added: Layer) -> Segment:
    """A segment with one more layer, whose fields take the place of those of the same name."""
    kept = (
        replace(each, fields=tuple(name for name in each.fields if name not in added.fields)) for each in segment.layers
    )
    return replace(segment, layers=(*(each for each in kept if each.fields), added))
