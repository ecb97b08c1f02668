"""Completion notes: each says what a finished shard holds. A shard that has a note is not packed again.

A note, ``parts/<shard>.npz``, is an `.npz` file of the shard's columns and paths, in place order, and of a JSON text,
followed by the crc32c of the `.npz` file in 4 bytes. Notes say all that the merge needs, so that no list has to be read
again; the merge turns them into the index and removes them.
"""

from __future__ import annotations

import io
import json
import os
import stat
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from packtrain._core.errors import CorruptFile, OutputConflict, UnreadableFile
from packtrain._core.files import write_file
from packtrain._core.manifest import MANIFEST, Count, Sha256, ShardInfo, check_shard_names
from packtrain._core.npy import parse_npy_header
from packtrain._core.opening import open_regular, read_regular
from packtrain._core.problems import error_kind, reason
from packtrain._core.typed import parse_json

from .columns import ShardColumns, text_columns
from .listing import Reject
from .plan import Plan

PARTS: Final = "parts"
_MOST_BYTES: Final = 1 << 30
"""Notes that are larger are not read: a shard of some twenty million records."""
_CHECKSUM_BYTES: Final = 4
_FACTS: Final = "facts"
Content = TypeVar("Content")


@dataclass(frozen=True)
class ListFacts:
    """Facts about the list as a whole, for the merge; in the note of shard 0.

    Attributes:
        duplicates: Number of lines that repeat an earlier line exactly.
        rejects: The lines that could not be parsed.
    """

    duplicates: Count
    rejects: tuple[Reject, ...]


@dataclass(frozen=True)
class NoteFacts:
    """The JSON text of a note.

    Attributes:
        plan: SHA-256 of the plan that the shard was packed by.
        info: The shard as the manifest will describe it.
        rejects: Lines of the shard that were refused.
        listed: What there is to know of the list; None except for shard 0.
    """

    plan: Sha256
    info: ShardInfo
    rejects: tuple[Reject, ...]
    listed: ListFacts | None = None


@dataclass(frozen=True)
class ShardNote:
    """The content of a finished shard.

    Attributes:
        facts: Everything but the columns.
        columns: The columns, in place order, with the paths as the list gives them.
    """

    facts: NoteFacts
    columns: ShardColumns

    @property
    def info(self) -> ShardInfo:
        """The shard as the manifest will describe it."""
        return self.facts.info

    @property
    def rejects(self) -> tuple[Reject, ...]:
        """Lines of the shard that were refused."""
        return self.facts.rejects

    def dump(self) -> bytes:
        """The content of the file."""
        content = io.BytesIO()
        text = np.frombuffer(json.dumps(asdict(self.facts)).encode(), np.uint8)
        members: dict[str, Any] = {}
        for name, (offsets, data) in self.columns.texts.items():
            members |= {f"{name}_offsets": offsets, f"{name}_bytes": data}
        members |= self.columns.arrays
        # Without `allow_pickle`, which numpy before 2.2 takes for one more array. All of these hold numbers.
        np.savez(content, facts=text, **members)
        return content.getvalue() + _checksum(content.getbuffer())

    def save(self, folder: Path) -> None:
        """Writes the note durably, into the ``parts`` folder of the dataset in `folder`."""
        write_file(note_path(folder, self.info.name), [self.dump()])


def make_parts(folder: Path) -> None:
    """Makes the ``parts`` folder of the dataset in `folder`.

    Raises:
        OutputConflict: There is something else of that name. A link would lead the notes out of the dataset.
    """
    path = folder / PARTS
    with suppress(FileExistsError):
        path.mkdir()
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise OutputConflict(f"{path} is not a folder: remove it and run the same command again")


def note_path(folder: Path, shard: str) -> Path:
    """Returns the path of the note of `shard`."""
    return folder / PARTS / f"{shard}.npz"


def read_note(folder: Path, plan: Plan, number: int, holds: Callable[[ShardInfo], bool]) -> ShardNote | str:
    """Returns the note of shard `number`; or, if the shard has to be packed, why, behind its name in a message.

    It has to be packed if there is no note, if the note is damaged or belongs to another plan, or if a file of the
    shard is missing or has another size than the note says, which `holds` finds out.

    Raises:
        UnreadableFile: Nobody knows, because the note cannot be read.
        OSError: Nobody knows, because the shard cannot be looked at.
    """

    def read(path: Path) -> ShardNote:
        data = memoryview(read_regular(path, _MOST_BYTES))
        if _checksum(data[:-_CHECKSUM_BYTES]) != data[-_CHECKSUM_BYTES:]:
            raise ValueError("another checksum")
        with _archive(io.BytesIO(data[:-_CHECKSUM_BYTES])) as archive:
            arrays = {name.removesuffix(".npy"): _member(archive, name) for name in archive.namelist()}
        facts = parse_json(NoteFacts, arrays.pop(_FACTS).tobytes())
        names = text_columns(plan.schema)
        texts = {name: (arrays.pop(f"{name}_offsets"), arrays.pop(f"{name}_bytes")) for name in names}
        columns = ShardColumns(arrays, texts)
        if not columns.fits(plan.schema, facts.info.records):
            raise ValueError("other columns")
        return ShardNote(facts, columns)

    note = _sound(read, note_path(folder, plan.shards[number].name))
    return note if isinstance(note, str) else _wrong(note.facts, plan, number, holds) or note


def read_facts(folder: Path, plan: Plan, number: int, holds: Callable[[ShardInfo], bool]) -> NoteFacts | str:
    """The facts of a note, or why there are none; like `read_note`, but reads hardly more than that of the file."""

    def read(path: Path) -> NoteFacts:
        with os.fdopen(open_regular(path), "rb") as file, _archive(file) as archive:
            return parse_json(NoteFacts, _member(archive, f"{_FACTS}.npy").tobytes())

    facts = _sound(read, note_path(folder, plan.shards[number].name))
    return facts if isinstance(facts, str) else _wrong(facts, plan, number, holds) or facts


def _sound(read: Callable[[Path], Content], path: Path) -> Content | str:
    """Read a note by `read`; returns its content, or why there is none.

    One that may be sound is not taken for damaged: its shard would be packed again.
    """
    try:
        return read(path)
    except (FileNotFoundError, NotADirectoryError):
        return "is not packed yet"
    except MemoryError:
        raise
    except Exception as error:
        # A note that was not written by packtrain can make numpy and zipfile raise anything; numpy an OSError without a
        # number.
        if isinstance(error, OSError) and error.errno is not None and error_kind(error) is not CorruptFile:
            what = f"the note {path} cannot be read: {reason(error)}"
            raise UnreadableFile(what, file=f"{PARTS}/{path.name}") from error
        return "has a damaged note"


def without_note(folder: Path, plan: Plan) -> list[int]:
    """Returns the numbers of the shards that have no note at all, by one look at the folder."""
    try:
        there = set(os.listdir(folder / PARTS))
    except FileNotFoundError:
        # Nothing has been packed yet, or everything merged.
        return [] if (folder / MANIFEST).exists() else list(range(len(plan.shards)))
    return [number for number, shard in enumerate(plan.shards) if f"{shard.name}.npz" not in there]


def _wrong(facts: NoteFacts, plan: Plan, number: int, holds: Callable[[ShardInfo], bool]) -> str:
    """Why a note that can be read does not count; empty if it does."""
    name = plan.shards[number].name
    try:
        check_shard_names(plan.name, number, facts.info)
    except ValueError:
        return f"has the note of another shard ({facts.info.name})"
    if facts.plan != plan.sha256:
        return "has the note of another plan"
    if facts.info.name != name or (facts.listed is None) != (number > 0):
        return "has a damaged note"
    return "" if holds(facts.info) else "is missing, or has another size than was written"


def _archive(file: BinaryIO) -> zipfile.ZipFile:
    archive = zipfile.ZipFile(file)
    # Members that are stored as they are cannot grow: nothing is larger than the note.
    if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
        raise ValueError("a compressed member")
    return archive


def _member(archive: zipfile.ZipFile, name: str) -> npt.NDArray[Any]:
    data = archive.read(name)
    header = parse_npy_header(data)
    return np.frombuffer(data, header.dtype, offset=header.bytes).reshape(header.shape)


def shard_is_present(folder: Path, info: ShardInfo) -> bool:
    """Returns True if the shard and its sidecars are regular files of the right sizes.

    Raises:
        OSError: Nobody knows, because they cannot be looked at.
    """
    try:
        found = [(os.stat(folder / file.name), file.bytes) for file in (info, *info.sidecars)]
    except (FileNotFoundError, NotADirectoryError):
        return False
    return all(stat.S_ISREG(there.st_mode) and there.st_size == size for there, size in found)


def _checksum(data: memoryview) -> bytes:
    return crc32c(data).to_bytes(_CHECKSUM_BYTES, "little")
