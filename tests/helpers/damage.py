"""Files that are damaged for a while, and what `verify` says of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from packtrain import verify
from packtrain.errors import DatasetError


@contextmanager
def changed(path: Path, change: Callable[[bytes], bytes | None]) -> Iterator[None]:
    """The file with other content, or for None without the file, for a while."""
    sound = path.read_bytes()
    data = change(sound)
    assert data != sound
    if data is None:
        path.unlink()
    else:
        path.write_bytes(data)
    yield
    path.write_bytes(sound)


def flipped(*offsets: int, mask: int = 0x55) -> Callable[[bytes], bytes]:
    """Changes one byte at each offset."""

    def change(data: bytes) -> bytes:
        array = bytearray(data)
        for offset in offsets:
            array[offset] ^= mask
        return bytes(array)

    return change


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def assert_named_by_verify(folder: Path, name: str, case: object) -> None:
    """`verify` says that this file is damaged."""
    try:
        found = {problem.file for problem in verify(folder).problems}
    except DatasetError as error:
        assert name == "manifest.json", case
        found = {str(error.file)}
    assert name in found, (case, found)
