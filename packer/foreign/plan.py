"""plan.json of an indexed dataset: how its shards were read, so that later shards are read in the same way."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from packtrain._core.document import MOST_BYTES, dump_document, load_document, parse_document, read_document
from packtrain._core.errors import OutputConflict
from packtrain._core.manifest import PLAN, VERSION
from packtrain._core.typed import OneOf
from packtrain._storage.remote.objects import Objects
from packtrain._storage.remote.urls import Url
from packtrain._storage.staging.files import Location

from .fields import Rules

_INDEX = "index"


@dataclass(frozen=True)
class IndexPlan:
    """The content of plan.json.

    Attributes:
        rules: What each extension is, and where labels come from.
        written_by: Program and version that made the plan.
        made_by: The command, ``"index"``: the plan of packed datasets has no such key.
    """

    rules: Rules
    written_by: str
    made_by: Annotated[str, OneOf((_INDEX,))] = _INDEX

    def dump(self) -> bytes:
        """The content of plan.json."""
        return dump_document({"version": VERSION, **asdict(self)})

    @property
    def sha256(self) -> str:
        """SHA-256 of plan.json, in hexadecimal digits."""
        return hashlib.sha256(self.dump()).hexdigest()

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads and checks the plan in `folder`.

        Raises:
            OutputConflict: There is none, or the dataset was packed.
            UnsupportedVersion: It was written by a newer packtrain.
            UnreadableFile: It cannot be read.
            CorruptFile: It is damaged.
        """
        path = folder / PLAN
        try:
            body = load_document(path, newest=VERSION)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise OutputConflict(f"{folder} is not an indexed dataset: it has no {PLAN}") from error
        return cls._of(body, folder)

    @classmethod
    def fetch(cls, url: Url, objects: Objects) -> Self:
        """Reads and checks the plan at an address; raises the same errors as `load`, and RemoteError."""
        return cls._of(read_document(objects.read(url / PLAN, MOST_BYTES), url / PLAN, newest=VERSION), url)

    @classmethod
    def _of(cls, body: dict[str, Any], folder: Location) -> Self:
        if body.get("made_by") != _INDEX:
            raise OutputConflict(f"{folder} holds a dataset that was packed: index into another folder")
        return parse_document(cls, body, folder / PLAN)
