"""Reads tar shards through other people's code, for `verify`, and says where records lie."""

from __future__ import annotations

import importlib
import itertools
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

from packtrain._core.errors import CorruptFile
from packtrain._core.options import LabelSpec
from packtrain._core.schema import IMAGE, LABEL, Schema

from .. import MOST_LABEL_BYTES, StoredLabel, StoredSample, read_label

KEY_DIGITS: Final = 9
BLOCK: Final = 512
_DALI_HEAD: Final = re.compile(rb"v1\.([12]) ([0-9]{1,18})\s*")
_NUMBER: Final = re.compile(rb"[0-9]{1,18}")


def label_extension(labels: LabelSpec) -> str:
    """Returns the extension of the member that holds a label, without the dot."""
    return "cls" if labels == LabelSpec("int") else "json"


def walk(path: Path, schema: Schema) -> Iterator[StoredSample]:
    """Yields every sample of the archive, found by Python's `tarfile`."""
    try:
        with tarfile.open(path, "r:") as archive:
            for key, members in itertools.groupby(_members(archive), lambda member: member.name.partition(".")[0]):
                yield _sample(archive, schema, key, members)
    except (tarfile.TarError, ValueError, OSError, RecursionError) as error:
        raise CorruptFile(f"{path} is not a sound tar shard: {error}", file=path.name) from error


def webdataset_reader() -> ModuleType:
    """Import webdataset's reader, which imports torch: half a second of work or more, and 150 MB of memory."""
    return importlib.import_module("webdataset.tariterators")


def webdataset_samples(path: Path) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """Yield key of each sample, and extension and content of its members, as webdataset reads and groups them.

    webdataset raises any kind of error for an archive that it cannot read.
    """
    reader = webdataset_reader()
    with path.open("rb") as file:
        members = ({**member, "__url__": str(path)} for member in reader.tar_file_iterator(file))
        for sample in reader.group_by_keys(members):
            yield sample["__key__"], [(name, data) for name, data in sample.items() if not name.startswith("__")]


def dali_index(path: Path) -> bytes:
    """The content of the index for DALI that belongs beside an archive.

    Raises:
        CorruptFile: tarfile cannot read the archive.
    """
    lines = []
    try:
        with tarfile.open(path, "r:") as archive:
            for key, members in itertools.groupby(_members(archive), lambda member: member.name.partition(".")[0]):
                entries = ((each.name[len(key) + 1 :], each.offset_data, each.size, each.name) for each in members)
                lines.append(" ".join(" ".join(map(str, entry)) for entry in entries))
    except (tarfile.TarError, ValueError, OSError, RecursionError) as error:
        raise CorruptFile(f"{path} is not a sound tar shard: {error}", file=path.name) from error
    return "\n".join([f"v1.2 {len(lines)}", *lines, ""]).encode("utf-8", "surrogateescape")


def check_dali_index(index: bytes, size: int) -> None:
    """Checks that an index for DALI, also one of version v1.1, names only places inside a shard of `size` bytes.

    DALI believes every size: one below zero or beyond the shard ends the process.

    Raises:
        ValueError: It names others, or DALI cannot read it.
    """
    head, *lines = index.rstrip(b"\n").split(b"\n")
    words = _DALI_HEAD.fullmatch(head)
    if words is None or int(words[2]) != len(lines):
        raise ValueError(f"line 1 is {_shown(head)}, and {len(lines)} lines follow")
    step = 3 if words[1] == b"1" else 4
    for number, line in enumerate(lines, 2):
        entries = line.split()
        if not entries or len(entries) % step:
            raise ValueError(f"line {number} is {_shown(line)}, not EXT OFFSET SIZE NAME of each member")
        for offset, length in zip(entries[1::step], entries[2::step], strict=True):
            if not (_NUMBER.fullmatch(offset) and _NUMBER.fullmatch(length) and int(offset) + int(length) <= size):
                raise ValueError(
                    f"line {number} has a member with size {_shown(length)} at {_shown(offset)}, which is not inside "
                    f"the shard of {size} bytes"
                )


def _shown(text: bytes) -> str:
    return repr(text[:80].decode("utf-8", "backslashreplace"))


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for member in archive:
        yield member
        archive.members.clear()  # type: ignore[attr-defined]  # otherwise tarfile would keep them all


def _sample(archive: tarfile.TarFile, schema: Schema, key: str, members: Iterator[tarfile.TarInfo]) -> StoredSample:
    """Reads the members of a sample, each of which has to be one that may come next.

    Raises:
        ValueError: There is another one, or one is missing.
    """
    places: dict[str, tuple[int, int]] = {}
    label: StoredLabel = None
    expected = _parts(schema)
    for member in members:
        if not member.isreg() or member.issparse():
            raise ValueError(f"member {member.name!r} is not a plain file")
        name = field_of(schema, member.name[len(key) + 1 :])
        for part, optional in expected:
            if part == name:
                break
            if not optional:
                raise ValueError(f"member {member.name!r} is where {part} of {key!r} should be")
        else:
            raise ValueError(f"member {member.name!r} has no place in sample {key!r}")
        if name == LABEL:
            label = read_label(_content(archive, member))
        else:
            places[name] = member.offset_data, member.size
    lacking = next((part for part, optional in expected if not optional), None)
    if lacking is not None:
        raise ValueError(f"sample {key!r} has no {lacking}")
    return StoredSample(int(key), places, label)


def _parts(schema: Schema) -> Iterator[tuple[str, bool]]:
    """Yields what a sample consists of, in order, each with whether it may be missing."""
    if schema.image is not None:
        yield IMAGE, schema.image.optional
    if schema.labels.kind != "none":
        yield LABEL, False
    for field in schema.others:
        yield field.name, field.optional


def field_of(schema: Schema, suffix: str) -> str:
    """Return the field that a member holds, or `LABEL`, by what follows its key."""
    if schema.labels.kind != "none" and suffix == label_extension(schema.labels):
        return LABEL
    name, dot, _ = suffix.partition(".")
    return name if dot else IMAGE


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    content = archive.extractfile(member)
    return content.read(MOST_LABEL_BYTES + 1) if content else b""
