"""Finds the members of a tar archive: ustar, GNU, PAX and the tar of the seventh edition of Unix.

Whoever wrote the archive may have written anything. Each number is checked before it is used: nothing outside the file
is read, no header makes the walk hold more than `_MOST_NAME` or `_MOST_PAX` bytes, and whatever different programs
would read in different ways is refused. So the members found here are those that GNU tar and Python's tarfile find.

Formats: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Interchange Format"; GNU tar manual, "Basic Tar Format".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

BLOCK: Final = 512
_MOST_NAME: Final = 64 * 1024
_MOST_PAX: Final = 1024 * 1024
_NOTHING: Final = bytes(BLOCK)
_OCTAL: Final = re.compile(rb" *([0-7]+)[ \0]*")
_NUMBERS: Final = (*(slice(at, at + 8) for at in (100, 108, 116, 329, 337)), slice(136, 148))
"""Mode, owner, group, device and time: without meaning here, but programs stop at one that is no number."""
_USUAL: Final = re.compile(rb"(?s)(?:[0-7]{7}[\0 ]){3}(?:[0-7]{11}[\0 ]){2}.{181}(?:(?:[0-7]{7}|\0{7})[\0 ]){2}")
"""All of these numbers, and the size, as almost everybody writes them: from byte 100 on."""
_DECIMAL: Final = re.compile(rb"[0-9]{1,19}")
_REGULAR: Final = frozenset(b"\x00\x30\x37")
_PLAIN: Final = "write the archive again with plain files only (`tar --dereference --hard-dereference`)"
_CUT_OFF: Final = "not a tar archive, or cut off: its end mark, two blocks of zeros, is missing"
_COMPRESSED: Final = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x04\x22\x4d\x18": "lz4",
    b"\x1f\x9d": "compress",
    b"PK\x03\x04": "zip",
}


class Archive(Protocol):
    """A file that is read from front to back, such as `shard_files.SlidingWindow`."""

    @property
    def size(self) -> int:
        """Size of the file in bytes."""

    def view(self, offset: int, length: int) -> memoryview:
        """Returns `length` bytes from `offset`, fewer at the end of the file."""


class Member(NamedTuple):
    """A regular file in an archive.

    Attributes:
        name: Its name, as bytes: archives do not say what characters they stand for.
        header: Offset of its first header, for messages.
        offset: Offset of its content.
        size: Size of its content in bytes.
    """

    name: bytes
    header: int
    offset: int
    size: int


class BadArchive(Exception):
    """An archive that is not sound, or not one whose members are certain.

    Attributes:
        why: What is wrong with it.
        offset: Where in the file.
    """

    def __init__(self, why: str, offset: int) -> None:
        super().__init__(why, offset)
        self.why = why
        self.offset = offset


@dataclass
class _Extended:
    """Extended headers: those before the header of a member that describe the member."""

    header: int | None = None
    kinds: set[str] = field(default_factory=set)
    name: bytes | None = None
    size: int | None = None

    def begin(self, kind: str, offset: int) -> None:
        """Takes note of a header of this kind, of which a member may have one. Global ones do not count."""
        if kind in self.kinds:
            raise BadArchive(f"two headers of type {kind!r} for one member", offset)
        self.kinds |= {kind} - {"g"}
        self.header = offset if self.header is None else self.header


def compression(start: bytes) -> str | None:
    """Return the compression of a file that begins with `start`; None for a plain file."""
    return next((name for magic, name in _COMPRESSED.items() if start.startswith(magic)), None)


def members(source: Archive) -> Iterator[Member]:
    """Yields the regular files of an archive, in order. Folders are passed over.

    Whoever takes a member may read its content from `source` before taking the next.

    Raises:
        BadArchive: The archive is damaged, cut off or ambiguous, or has a member that is neither file nor folder.
    """
    place, extended = 0, _Extended()
    while True:
        # The last content may lack its padding.
        block = bytes(source.view(min(place, source.size), BLOCK))
        if len(block) < BLOCK:
            raise BadArchive(_CUT_OFF, place)
        if block == _NOTHING:
            if extended.header is not None:
                raise BadArchive("the archive ends after a header that tells of another member", place)
            _check_end(source, place)
            return
        check_sum(block, place)
        header, place = place, place + BLOCK
        kind, size = chr(block[156]), _number(block[124:136], header)
        if size < 0:
            raise BadArchive(f"a header whose size is {size}", header)
        if kind in "LKxgX":
            content = _content(source, place, size, _MOST_NAME if kind in "LK" else _MOST_PAX, header)
            _extend(extended, kind, content, size, header)
        else:
            name = _name(block, header) if extended.name is None else extended.name
            size = size if extended.size is None else extended.size
            if block[156] in _REGULAR and not (kind == "\0" and _short_name(block).endswith(b"/")):
                _check_file(source, name, place, size, header)
                yield Member(name, header if extended.header is None else extended.header, place, size)
            else:
                _check_other(kind, name, size, header)
            if extended.header is not None:
                extended = _Extended()
        place += -(-size // BLOCK) * BLOCK


def check_sum(block: bytes, place: int) -> None:
    """Checks that a block is the header of a member.

    Raises:
        BadArchive: It is something else, or damaged.
    """
    found = _OCTAL.fullmatch(block[148:156])
    if found is None:
        raise BadArchive(f"no tar header: its checksum is {block[148:156]!r}", place)
    expected = int(found[1], 8)
    # The checksum counts its own eight bytes as spaces.
    unsigned = sum(block) - sum(block[148:156]) + 8 * 32
    # Some old programs add signed bytes.
    if expected != unsigned and expected != unsigned - 256 * sum(byte > 127 for byte in block[:148] + block[156:]):
        raise BadArchive(f"a damaged header: its checksum is {unsigned:o}, and it says {expected:o}", place)
    if not _USUAL.match(block, 100):
        for part in _NUMBERS:
            _number(block[part], place)


def _number(digits: bytes, place: int) -> int:
    found = _OCTAL.fullmatch(digits)
    if found is not None:
        return int(found[1], 8)
    if digits[0] in (0x80, 0xFF):
        return int.from_bytes(digits[1:], "big") - (1 << 8 * (len(digits) - 1) if digits[0] == 0xFF else 0)
    if digits.strip(b"\0 "):
        raise BadArchive(f"a header with {digits!r} where a number should be", place)
    return 0


def _short_name(block: bytes) -> bytes:
    return block[:100].partition(b"\0")[0]


def _name(block: bytes, place: int) -> bytes:
    name, magic, rest = _short_name(block), block[257:263], block[345:500]
    if magic == b"ustar\0":
        prefix = rest.partition(b"\0")[0]
        return prefix + b"/" + name if prefix else name
    if magic not in (b"ustar ", bytes(6)):
        raise BadArchive(f"a header of an unknown format: {magic!r} is where tar writes 'ustar'", place)
    if rest.strip(b"\0"):
        raise BadArchive("a header of an incremental archive: write it again without --listed-incremental", place)
    return name


def _content(source: Archive, place: int, size: int, most: int, header: int) -> bytes:
    """The content of a header that tells of the next member, with its padding."""
    if size > most:
        raise BadArchive(f"a header of {size} bytes that tells of the next member: at most {most} are read", header)
    padded = -(-size // BLOCK) * BLOCK
    content = bytes(source.view(place, padded))
    if len(content) < padded:
        raise BadArchive(_CUT_OFF, header)
    return content


def _extend(extended: _Extended, kind: str, content: bytes, size: int, header: int) -> None:
    """Takes what a header says of the next member."""
    extended.begin("x" if kind == "X" else kind, header)
    if kind == "L":
        name = content.partition(b"\0")[0]
        if len(name) > size:
            raise BadArchive(f"a long name that does not end where its header says, after {size} bytes", header)
        _rename(extended, name, header)
    elif kind in "xXg":
        records = _pax(content[:size], header)
        if any(key.startswith(b"GNU.sparse.") or key == b"SCHILY.realsize" for key in records):
            raise BadArchive(f"a sparse file: {_PLAIN}", header)
        path, digits = records.get(b"path"), records.get(b"size")
        if kind == "g" and (path is not None or digits is not None):
            raise BadArchive("a global header that gives all members the same name or size", header)
        if path is not None:
            _rename(extended, path, header)
        if digits is not None:
            if not _DECIMAL.fullmatch(digits):
                raise BadArchive(f"a header whose size is {digits[:40]!r}", header)
            extended.size = int(digits)


def _rename(extended: _Extended, name: bytes, header: int) -> None:
    if extended.name is not None:
        raise BadArchive("two long names for one member", header)
    if not name or b"\0" in name:
        raise BadArchive(f"a long name that is none: {name[:40]!r}", header)
    extended.name = name


def _pax(content: bytes, header: int) -> dict[bytes, bytes]:
    """Reads records of the form ``LENGTH KEY=VALUE`` and a line feed, where LENGTH counts all of that."""
    records: dict[bytes, bytes] = {}
    place = 0
    while place < len(content):
        digits, space, _ = content[place : place + 8].partition(b" ")
        length = int(digits) if space and _DECIMAL.fullmatch(digits) else 0
        record = content[place + len(digits) + 1 : place + length]
        key, equals, value = record[:-1].partition(b"=")
        if not (record.endswith(b"\n") and key and equals) or place + length > len(content):
            raise BadArchive(f"a PAX header that cannot be read at its byte {place}", header)
        records[key] = value
        place += length
    return records


def _check_file(source: Archive, name: bytes, place: int, size: int, header: int) -> None:
    if not name or name.endswith(b"/"):
        raise BadArchive(f"a file with the name {shown(name)}", header)
    if place + size > source.size:
        raise BadArchive(
            f"{shown(name)} is cut off: it has {size} bytes, and the shard ends {source.size - place} bytes after its "
            "header",
            header,
        )


def _check_other(kind: str, name: bytes, size: int, header: int) -> None:
    """Checks a member that is no regular file. Only folders and labels of volumes hold nothing that could be missed."""
    if kind in "5V\0":
        if size:
            raise BadArchive(
                f"the folder {shown(name)} has a size of {size}: programs do not agree on what that is", header
            )
    else:
        raise BadArchive(
            f"{shown(name)} is no plain file, but a link, a device, a sparse file or such (type {kind!r}): {_PLAIN}",
            header,
        )


def _check_end(source: Archive, place: int) -> None:
    """Checks that nothing but zeros follows: behind the end, no program would look for the samples that are there."""
    first = place
    while piece := source.view(place, 64 * BLOCK):
        if rest := bytes(piece).lstrip(b"\0"):
            raise BadArchive(
                f"something follows the end of the archive, which is at byte {first}: if archives were joined with "
                "`cat`, join them with `tar --concatenate`",
                place + len(piece) - len(rest),
            )
        place += len(piece)
    if place - first < 2 * BLOCK:
        raise BadArchive(_CUT_OFF, first)


def shown(name: bytes) -> str:
    """A name for messages, in at most 120 characters."""
    text = repr(name.decode("utf-8", "backslashreplace"))
    return text if len(text) <= 120 else f"{text[:117]}..."
