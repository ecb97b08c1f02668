"""Which members of a shard form a sample: those with the same key, as webdataset has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from .headers import BadArchive, shown

MOST_EXTENSIONS: Final = 64


class Name(NamedTuple):
    """What the name of a member says.

    Attributes:
        key: All up to the first dot of the last part of the name, with its folder.
        extension: All behind that dot, in lower case.
    """

    key: bytes
    extension: str


def split_name(name: bytes) -> Name | None:
    """Splits the name of a member as webdataset does; None for a member that belongs to no sample.

    That is one without an extension, a hidden file, and what webdataset takes for its own notes (``__name__``).

    >>> split_name(b"train/000017.seg.png")
    Name(key=b'train/000017', extension='seg.png')
    """
    folder, slash, last = name.rpartition(b"/")
    stem, _, extension = last.partition(b".")
    if not stem or not extension or b"\n" in name:
        return None
    first = name.partition(b"/")[0]
    if len(first) > 3 and first.startswith(b"__") and first.endswith(b"__"):
        return None
    return Name(folder + slash + stem, extension.decode("utf-8", "backslashreplace").lower())


@dataclass
class Grouping:
    """Puts the members of a shard together to samples, in the order in which they come.

    Attributes:
        keys: Key of each sample.
        headers: Offset of the first header of each sample.
        extensions: Where each extension was found first, by extension.
        left_out: Number of members that belong to no sample.
    """

    keys: list[bytes] = field(default_factory=list)
    headers: list[int] = field(default_factory=list)
    extensions: dict[str, int] = field(default_factory=dict)
    left_out: int = 0
    _samples: dict[bytes, int] = field(default_factory=dict)
    _members: dict[str, int] = field(default_factory=dict)

    def add(self, name: bytes, header: int) -> tuple[int, str] | None:
        """Takes the next member. Returns the number of its sample, and its extension; None if it belongs to none.

        Args:
            name: Name of the member.
            header: Offset of its header.

        Raises:
            BadArchive: A sample has two members with this extension, or its members are not adjacent, or there are so
                many extensions that keys must have dots in them.
        """
        if (parts := split_name(name)) is None:
            self.left_out += 1
            return None
        key, extension = parts
        if not self.keys or key != self.keys[-1]:
            if (before := self._samples.get(key)) is not None:
                raise BadArchive(
                    f"{shown(name)} belongs to the sample {shown(key)}, which began at byte {self.headers[before]}, "
                    "but another sample lies between them, or its name is there twice: sort the members by name (`tar "
                    "--sort=name`), and give each sample a key of its own",
                    header,
                )
            self._samples[key] = len(self.keys)
            self.keys.append(key)
            self.headers.append(header)
            self._members.clear()
        elif (twice := self._members.get(extension)) is not None:
            raise BadArchive(
                f"{shown(name)} is there twice (letter case does not count): the other one is at byte {twice}", header
            )
        self._members[extension] = header
        if extension not in self.extensions:
            self._take_extension(extension, name, header)
        return len(self.keys) - 1, extension

    def _take_extension(self, extension: str, name: bytes, header: int) -> None:
        if len(self.extensions) == MOST_EXTENSIONS:
            raise BadArchive(f"{shown(name)} has {too_many_extensions(self.extensions)}", header)
        self.extensions[extension] = header


def too_many_extensions(known: dict[str, int]) -> str:
    """What to say of one more extension than there may be."""
    examples = ", ".join(repr(name) for name in list(known)[:3])
    return (
        f"the {MOST_EXTENSIONS + 1}th extension, after {examples} and others: all behind the first dot of a name is "
        "its extension, so the keys of samples must not have dots. Replace the dots in their names"
    )
