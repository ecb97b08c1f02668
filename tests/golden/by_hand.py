"""Writes the golden datasets with numbers and strings, by docs/format-versions.md alone: no line of packtrain runs.

Never made anew: every later packtrain has to read them as they are.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from pathlib import Path
from typing import Any, Final

from crc32c import crc32c

HERE: Final = Path(__file__).parent
INDEXED: Final = HERE / "v3" / "tar-indexed"
"""The golden ``tar-verbatim``, to which a layer with `ROWS` was added as version 2."""
PACKED: Final = HERE / "v3" / "tar-numbers"
"""The golden ``tar-verbatim``, as if `LIST` had been packed, in which the samples have `ROWS`."""
LIST: Final = HERE / "v3" / "train.jsonl"
SAMPLES: Final = {0: ("a b.jpg", 0), 2: ("missing.jpg", 1), 3: ("grey.jpg", 1), 4: ("c.png", 0)}
"""Paths and labels of the list, by line; that of line 2 is missing, so `ROWS` belong to the others."""
ROWS: Final[list[dict[str, Any]]] = [
    {"score": 5, "rating": None, "sharp": True, "source": "laion"},
    {"score": -(1 << 63), "rating": float("nan"), "sharp": False, "source": ""},
    {"score": 7, "rating": 4.5, "sharp": True, "source": None},
]
FIELDS: Final = {"score": "<i8", "rating": "<f8", "sharp": "|b1", "source": None}
_PACK: Final = {"<i8": "q", "<u4": "I", "<f8": "d", "|b1": "?", "|u1": "B"}


def document(body: dict[str, Any]) -> bytes:
    """The bytes of a document."""
    text = (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode()
    return text[: -len(b"\n}\n")] + b',\n "checksum": "crc32c:%08x"\n}\n' % crc32c(text)


def column(folder: Path, name: str, dtype: str, values: list[Any]) -> dict[str, Any]:
    """Writes a column, and returns what the manifest says about it."""
    described = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': ({len(values)},), }}".encode()
    data = b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + described.ljust(117) + b"\n" + raw(dtype, values)
    (folder / f"{name}.npy").write_bytes(data)
    return {"name": name, "bytes": len(data), "crc32c": crc32c(data), "dtype": dtype, "shape": [len(values)]}


def raw(dtype: str, values: list[Any]) -> bytes:
    """The bytes of values."""
    return struct.pack(f"<{len(values)}{_PACK[dtype]}", *values)


def text(values: list[str]) -> tuple[list[int], list[int]]:
    """Offsets and bytes of a text column."""
    ends = [len("".join(values[:count]).encode()) for count in range(len(values) + 1)]
    return ends, list("".join(values).encode())


def described_fields() -> list[dict[str, Any]]:
    """What a plan says of the fields."""
    return [
        {"name": name, "kind": "string" if dtype is None else "number", "optional": True, "store": None}
        | {"encoding": None, "dtype": dtype, "shape": None, "classes": None}
        for name, dtype in FIELDS.items()
    ]


def counted(fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a manifest says of the fields."""
    missing = {name: sum(row[name] is None for row in ROWS) for name in FIELDS}
    return [{**each, "bytes": None, "maximum": None, "missing": missing[each["name"]]} for each in fields]


Parts = dict[str, dict[str, tuple[str, list[Any]]]]


def value_columns() -> Parts:
    """The columns of the fields, by prefix and name: type and values."""
    parts: Parts = {}
    for name, dtype in FIELDS.items():
        values = [row[name] for row in ROWS]
        columns: dict[str, tuple[str, list[Any]]] = {"valid": ("|u1", [value is not None for value in values])}
        if dtype is None:
            ends, found = text([value or "" for value in values])
            columns |= {"value_offsets": ("<i8", ends), "value_bytes": ("|u1", found)}
        else:
            columns["value"] = dtype, [value or 0 for value in values]
        parts[f"field.{name}."] = columns
    return parts


def columns_of(folder: Path, parts: Parts) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Writes columns and their blocks, and returns what the manifest says about each of both."""
    described = [
        column(folder, prefix + name, *content)
        for prefix, columns in parts.items()
        for name, content in columns.items()
    ]
    # Fewer than 1,024 rows are one block.
    blocks = {
        prefix: crc32c(b"".join(raw(*content) for content in columns.values())) for prefix, columns in parts.items()
    }
    return described, [column(folder, f"{prefix}blocks", "<u4", [block]) for prefix, block in blocks.items()]


def layer(folder: Path, by_place: list[int]) -> bytes:
    """Writes the layer, and returns its manifest."""
    (folder / "index").mkdir(parents=True)
    (folder / "rejects.jsonl").write_bytes(b"")
    count = len(ROWS)
    fields = described_fields()
    about = {"version": 3, "name": "by-hand", "format": "tar"}
    plan = document(
        about
        | {"fields": fields, "labels": "none", "classes": None, "columns": None, "list_sha256": "0" * 64}
        | {"lines": count, "entries": count, "seed": None, "shard_bytes": 0, "encoder": None}
        | {"written_by": "by hand", "shards": []}
    )
    (folder / "plan.json").write_bytes(plan)
    offsets, paths = text([""] * count)
    parts: Parts = {
        "": {
            "line": ("<i8", list(range(count))),
            "shard": ("<u4", [0] * count),
            "by_place": ("<i8", by_place),
            "path_offsets": ("<i8", offsets),
            "path_bytes": ("|u1", paths),
        }
    }
    described, blocks = columns_of(folder / "index", parts | value_columns())
    described += blocks
    manifest = document(
        about
        | {"fields": counted(fields)}
        | {"labels": "none", "classes": None, "records": count, "lines": count, "rejects": 0, "duplicates": 0}
        | {"plan_sha256": hashlib.sha256(plan).hexdigest(), "written_by": "by hand"}
        | {"rejects_file": {"name": "rejects.jsonl", "bytes": 0, "crc32c": 0}}
        | {"columns": described, "shards": [], "base": None}
    )
    (folder / "manifest.json").write_bytes(manifest)
    return manifest


def digest(data: bytes) -> dict[str, Any]:
    """What a document says of another one."""
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def make(folder: Path) -> None:
    """Makes the dataset in `folder`."""
    shutil.copytree(HERE / "v1" / "tar-verbatim", folder)
    base = (folder / "manifest.json").read_bytes()
    (folder / "manifest.json").rename(folder / "base.json")
    packed, identity, name = json.loads(base), digest(base)["sha256"][:32], "0123456789abcdef"
    order = struct.unpack(f"<{len(ROWS)}q", (folder / "index" / "by_place.npy").read_bytes()[128:])
    added = layer(folder / "layers" / name, list(order))
    (folder / "manifest.json").write_bytes(document({"version": 3, "dataset": identity, "base": digest(base)}))
    image = {"name": "image", "kind": "image", "optional": False, "store": packed["store"], "encoding": None}
    image |= {"dtype": None, "shape": None, "classes": None, "bytes": None, "maximum": None, "missing": 0}
    segment = {"name": "base", "manifest": digest(base), "records": len(ROWS), "dropped": None}
    inside = {"name": name, "manifest": digest(added), "fields": list(FIELDS)}
    versions = [("pack", "packed 3 samples", [image], []), ("add-field", "by hand", [image], [inside])]
    versions[1][2].extend(json.loads(added)["fields"])
    (folder / "versions").mkdir()
    parent = None
    for number, (kind, about, fields, layers) in enumerate(versions, 1):
        data = document(
            {"version": 3, "dataset": identity, "number": number, "parent": parent, "writer": identity}
            | {"written_by": packed["written_by"], "created": 0, "change": {"kind": kind, "text": about}}
            | {"fields": fields, "labels": packed["labels"], "classes": packed["classes"], "records": len(ROWS)}
            | {"segments": [{**segment, "layers": layers}]}
        )
        (folder / "versions" / f"{number:08d}.json").write_bytes(data)
        parent = digest(data)["sha256"]


def make_packed(folder: Path) -> None:
    """Makes the dataset that was packed with numbers and strings, and its list."""
    values = [*ROWS[:1], ROWS[0], *ROWS[1:]]
    lines = {line: {"path": path, "label": label} for line, (path, label) in SAMPLES.items()}
    said = {line: json.dumps(lines[line] | row) for line, row in zip(lines, values, strict=True)}
    LIST.write_text("".join(said.get(line, "") + "\n" for line in range(5)))
    shutil.copytree(HERE / "v1" / "tar-verbatim", folder)
    old = json.loads((folder / "manifest.json").read_bytes())
    plan = json.loads((folder / "plan.json").read_bytes())
    image = {"name": "image", "kind": "image", "optional": False, "store": old["store"], "encoding": None}
    image |= {"dtype": None, "shape": None, "classes": None}
    sizes = struct.unpack(f"<{len(ROWS)}q", (folder / "index" / "length.npy").read_bytes()[128:])
    by_path = {"image": ("path", True), "label": ("label", False)} | {name: (name, False) for name in FIELDS}
    columns = [{"field": name, "column": column, "by_path": path} for name, (column, path) in by_path.items()]
    for each in (old, plan):
        del each["store"], each["checksum"]
        each["version"] = 3
    plan = document(
        {"version": 3, "name": "train", "format": "tar", "fields": [image, *described_fields()], "labels": "int"}
        | {"classes": plan["classes"], "columns": columns}
        | {"list_sha256": hashlib.sha256(LIST.read_bytes()).hexdigest()}
        | {name: plan[name] for name in ("lines", "entries", "seed", "shard_bytes", "encoder", "written_by", "shards")}
    )
    (folder / "plan.json").write_bytes(plan)
    described, blocks = columns_of(folder / "index", value_columns())
    *before, rows = old["columns"]
    figures = {"bytes": sum(sizes), "maximum": max(sizes), "missing": 0}
    manifest = document(
        {"version": 3, "name": "train", "format": "tar", "fields": [image | figures, *counted(described_fields())]}
        | {name: old[name] for name in ("labels", "classes", "records", "lines", "rejects", "duplicates")}
        | {"plan_sha256": hashlib.sha256(plan).hexdigest(), "written_by": old["written_by"]}
        | {"rejects_file": old["rejects_file"], "columns": [*before, *described, rows, *blocks]}
        | {"shards": [{**shard, "link": None} for shard in old["shards"]], "base": None}
    )
    (folder / "manifest.json").write_bytes(manifest)


if __name__ == "__main__":
    for place, made in ((INDEXED, make), (PACKED, make_packed)):
        if place.exists():
            print(f"{place} exists. What is on disk is for ever: a new version gets a new folder")
        else:
            made(place)
