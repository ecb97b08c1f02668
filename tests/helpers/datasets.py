"""Datasets of many fields, written without the packer: a shard by a format's writer, an index and a manifest."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c
from helpers.samples import EXTENSIONS, SUFFIXES, payload
from helpers.support import encoded, picture
from PIL import Image

from packtrain._core.index import IndexWriter
from packtrain._core.manifest import FieldInfo, FileInfo, Manifest, ShardInfo
from packtrain._core.options import FORMATS, LabelSpec, StoreOptions
from packtrain._core.schema import Field, Schema, image_field
from packtrain._formats.writing import NewRecord, NewSample, shard_writer

FIELDS = (
    image_field(StoreOptions("verbatim")),
    Field("seg", "mask", optional=True, encoding="png", dtype="|u1", classes=("sky", "road")),
    Field("depth", "mask", encoding="raw", dtype="<u2"),
    Field("caption", "text", optional=True),
    Field("meta", "json"),
    Field("boxes", "array", dtype="<f4", shape=(None, 4)),
    Field("pose", "array", dtype="<i8", shape=(3,)),
    Field("blob", "bytes"),
    Field("other", "image", store=StoreOptions("verbatim")),
)
SCHEMA = Schema(FIELDS, LabelSpec.parse("int"))
NO_IMAGE = Schema(FIELDS[1:-1], LabelSpec.parse("none"))
ROWS = 6
LEFT_OUT = 3
"""The row that is without the optional fields."""


def size_of(row: int) -> tuple[int, int]:
    """Width and height of the image of a row."""
    return 40 + 3 * row, 60 - 2 * row


def values_of(row: int, schema: Schema = SCHEMA) -> dict[str, Any]:
    """Returns what a row holds, without the optional fields in one of the rows."""
    width, height = size_of(row)
    random = np.random.default_rng(row)
    values = {
        "image": picture(row, width, height),
        "seg": random.integers(0, 256, (height, width)).astype(np.uint8),
        "depth": random.integers(0, 1 << 16, (height, width)).astype("<u2"),
        "caption": f"picture é {row}" if row else "",
        "meta": {"row": row, "tags": ["a"] * row},
        "boxes": random.random((row % 3, 4)).astype("<f4"),
        "pose": random.integers(-9, 9, 3).astype("<i8"),
        "blob": random.bytes(row),
        "other": picture(row + 100, width, height),
    }
    return {field.name: None if field.optional and row == LEFT_OUT else values[field.name] for field in schema.fields}


def make_dataset(folder: Path, format: str = "tar", schema: Schema = SCHEMA, rows: int = ROWS) -> Path:
    """Writes a dataset of `values_of` its rows; the label of each is 10 times its row. Returns `folder`."""
    return write_dataset(folder, format, schema, [values_of(row, schema) for row in range(rows)])


def write_dataset(folder: Path, format: str, schema: Schema, values: Sequence[Mapping[str, Any]]) -> Path:
    """Writes a dataset of one shard. Images and masks are arrays or PIL images, or the bytes of their files."""
    (folder / "index").mkdir(parents=True)
    labels = schema.labels.kind != "none"
    path = folder / f"t-000000{SUFFIXES[format]}"
    writer = shard_writer(format)(path, schema)
    samples = [
        NewSample(
            row,
            10 * row if labels else None,
            tuple(_record(field, held[field.name], bare=FORMATS[format].bare) for field in schema.fields),
        )
        for row, held in enumerate(values)
    ]
    for sample in samples:
        writer.add(sample)
    written = writer.finish()
    rows = len(samples)
    index = IndexWriter(folder / "index", rows)
    for name, column in (("line", np.arange(rows)), ("shard", np.zeros(rows)), ("by_place", np.arange(rows))):
        index.add(name, column.astype("<u4" if name == "shard" else "<i8"))
    if labels:
        index.add("label", 10 * np.arange(rows, dtype="<i8"))
    names = [f"row {row}".encode() for row in range(rows)]
    ends = np.cumsum([0, *map(len, names)]).astype("<i8")
    index.add_text("path", ends, np.frombuffer(b"".join(names), np.uint8))
    infos = []
    for number, field in enumerate(schema.fields):
        records = [sample.records[number] for sample in samples]
        found = {
            "offset": [offsets[number] for offsets in written.offsets],
            "length": [-1 if record is None else len(record.payload) for record in records],
            "crc32c": [0 if record is None else record.crc32c for record in records],
            "height": [record.shape[0] if record is not None and record.shape else 0 for record in records],
            "width": [record.shape[1] if record is not None and record.shape[1:] else 0 for record in records],
            "orientation": [1] * rows,
        }
        for name, dtype in field.columns().items():
            index.add(name, np.array(found[name.removeprefix(field.prefix)], dtype))
        lengths = [length for length in found["length"] if length >= 0]
        infos.append(FieldInfo.of(field, sum(lengths), max(lengths, default=0), rows - len(lengths)))
    data = path.read_bytes()
    manifest = Manifest(
        name="t",
        format=format,
        fields=tuple(infos),
        labels=schema.labels,
        classes=schema.classes,
        records=rows,
        lines=rows,
        rejects=0,
        duplicates=0,
        plan_sha256="0" * 64,
        written_by="a test",
        rejects_file=FileInfo("rejects.jsonl", 0, 0),
        columns=index.finish(),
        shards=(ShardInfo(path.name, len(data), crc32c(data), rows),),
    )
    (folder / "rejects.jsonl").touch()
    (folder / "manifest.json").write_bytes(manifest.dump())
    return folder


def _record(field: Field, value: Any, *, bare: bool) -> NewRecord | None:
    if value is None:
        return None
    shape: tuple[int, ...] = ()
    extension = EXTENSIONS.get(field.kind, "npy")
    if field.kind == "json":
        data = json.dumps(value).encode()
    elif field.kind == "image":
        data = value if isinstance(value, bytes) else encoded(value, "JPEG", quality=95)
        width, height = Image.open(io.BytesIO(data)).size
        shape = (height, width, 3)
    elif field.kind == "text":
        data = value.encode()
    elif field.encoding == "png":
        data, shape = encoded(Image.fromarray(value), "PNG"), value.shape
    elif isinstance(value, np.ndarray):
        data, shape, extension = payload(value, bare=bare), value.shape, "npy"
    else:
        data = value
    return NewRecord(data, extension, crc32c(data), shape)
