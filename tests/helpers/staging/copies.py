"""Files to copy, and checks of a copy."""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crc32c import crc32c

from packtrain._storage.staging.folder import Folder
from packtrain._storage.staging.options import OnStageProgress, StageProgress
from packtrain._storage.staging.origin import Origin, SourceFile
from packtrain._storage.staging.pieces import Journal
from packtrain._storage.staging.transfer import copy_files

PIECE = 64 << 10
BUFFER = 16 << 10
# Sizes at and next to the boundaries of buffers and pieces.
SIZES = (0, 1, 4095, 4096, BUFFER - 1, BUFFER + 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 10 * PIECE + 5)


def made(folder: Path, contents: Mapping[str, bytes]) -> list[SourceFile]:
    """Writes files, and returns what a manifest would say about them."""
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return [SourceFile(name, len(content), crc32c(content)) for name, content in contents.items()]


def noise(sizes: Sequence[int] = SIZES) -> dict[str, bytes]:
    """Random files of the given sizes, every other one in a subfolder; no two have a piece in common."""
    random_bytes = random.Random(7).randbytes
    return {f"index/{i}.npy" if i % 2 else f"{i}.tar": random_bytes(size) for i, size in enumerate(sizes)}


def copied(
    source: Path,
    target: Path,
    files: Sequence[SourceFile],
    journal: Path,
    on_progress: OnStageProgress = lambda progress: None,
    **options: Any,
) -> tuple[int, int]:
    """Copies files between two folders; the journal is in a third. Returns the bytes copied and resumed."""
    assert journal.name == "journal"
    seen = deque[StageProgress](maxlen=1)

    def report(progress: StageProgress) -> None:
        seen.append(progress)
        on_progress(progress)

    with Journal(Folder.open(journal.parent)) as opened:
        count, _ = copy_files(Origin(source), Folder.open(target), files, opened, on_progress=report, **options)
    return count, seen[0].resumed


def assert_copied(target: Path, contents: Mapping[str, bytes]) -> None:
    """Every file is there, has the right content and is read-only."""
    found = {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}
    assert found == contents
    assert {path.stat().st_mode & 0o777 for path in target.rglob("*") if path.is_file()} <= {0o444}


def journaled(journal: Path) -> list[tuple[str, int, int]]:
    """Name, offset and length of every piece in a journal, torn lines excluded."""
    text = journal.read_text(errors="replace") if journal.exists() else ""
    lines = re.findall(r'^\["([^"]+)", \d+, (\d+), (\d+), \d+, "[\d:]+"\]$', text, re.MULTILINE)
    return [(name, int(offset), int(length)) for name, offset, length in lines]
