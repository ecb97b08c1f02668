"""Memory that is there before a clock starts."""

from __future__ import annotations

from pathlib import Path


def touch_memory(path: Path, size: int) -> None:
    """Writes and removes a file as large as the output will be.

    The first write to a page of tmpfs may have to wait until the machine, or the host of a virtual machine, finds
    memory. Without this, whoever runs after a pause would pay for the others.
    """
    with path.open("wb", buffering=0) as file:
        piece = bytes(1 << 20)
        for _ in range(size // len(piece) + 1):
            file.write(piece)
    path.unlink()
