"""The journal of `verify`: what has been found so far, so that a run that was stopped can continue."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, TypeVar

from packtrain._core.errors import UsageError
from packtrain._core.files import file_errors
from packtrain._core.manifest import Manifest, Sha256
from packtrain._core.opening import read_regular
from packtrain._core.problems import reason
from packtrain._core.typed import Mismatch, parse_json

from .shard_check import ShardFindings

Parsed = TypeVar("Parsed")
_MOST_BYTES: Final = 1 << 30


@dataclass(frozen=True)
class _Head:
    """The first line of a journal."""

    manifest_sha256: Sha256
    decode: bool


class Journal:
    """The findings so far, by shard; also kept in a file if one is given.

    The first line of the file names the dataset and the kind of check. Then comes one line per shard. A journal that is
    complete, or about another dataset or kind of check, is begun anew.

    Args:
        path: The file, or None.
        manifest: Manifest of the dataset.
        decode_images: Whether images are decoded.

    Raises:
        UsageError: The file cannot be used, or is something else.
    """

    def __init__(self, path: Path | None, manifest: Manifest, decode_images: bool) -> None:
        self._path = path
        self.findings: dict[int, ShardFindings] = {}
        if path is None:
            return
        head = _Head(hashlib.sha256(manifest.dump()).hexdigest(), decode_images)
        lines = _lines(path)
        begun = _parsed(_Head, lines[0]) if lines else None
        if lines and begun is None:
            raise UsageError(f"{path} is not a journal of packtrain verify: name another file, or a new one")
        if begun == head:
            # A run that was killed while it wrote a line leaves a part of it.
            found = [_parsed(ShardFindings, line) for line in lines[1:]]
            self.findings = {
                shard.number: shard for shard in found if shard is not None and shard.number < len(manifest.shards)
            }
        if len(self.findings) == len(manifest.shards) or not self.findings:
            self.findings = {}
            with file_errors(path, UsageError, verb="use the journal"):
                path.write_text(json.dumps(asdict(head)) + "\n", encoding="utf-8")

    def add(self, findings: ShardFindings) -> None:
        """Adds the findings of a shard."""
        self.findings[findings.number] = findings
        if self._path is not None:
            with file_errors(self._path, UsageError), self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(findings)) + "\n")


def _lines(path: Path) -> list[str]:
    try:
        return read_regular(path, _MOST_BYTES).decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"cannot use the journal {path}: {reason(error)}") from error


def _parsed(kind: type[Parsed], line: str) -> Parsed | None:
    try:
        return parse_json(kind, line)
    except Mismatch:
        return None
