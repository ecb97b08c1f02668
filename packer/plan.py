"""plan.json: which lines go to which shard. It is written before the first shard, and every later run follows it.

A plan is arithmetic: place p holds entry ``Permutation(entries, seed)[p]`` of the list (entry p if the seed is null),
and each shard holds a range of places. So a plan stays small for any number of lines.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from packtrain._core.document import dump_document, load_document, parse_document
from packtrain._core.errors import CorruptFile, OutputConflict, UsageError
from packtrain._core.manifest import (
    NEWEST,
    PLAN,
    Count,
    FileName,
    Format,
    Labels,
    Prefix,
    Sha256,
    as_version_1,
    document_version,
    from_version_1,
    require_version,
    shard_stem,
)
from packtrain._core.options import FORMATS, StoreOptions
from packtrain._core.permutation import Permutation
from packtrain._core.schema import IMAGE, Field, Schema, image_field
from packtrain._storage.remote.urls import Url


@dataclass(frozen=True)
class PlannedShard:
    """A shard that is to be packed.

    Attributes:
        name: File name of the shard.
        first: First place in the shard.
        count: Number of places in the shard.
    """

    name: FileName
    first: Count
    count: Count


@dataclass(frozen=True)
class PlannedColumn:
    """The column of a list that holds a field or the label.

    Attributes:
        field: Name of the field, or ``"label"``.
        column: Name of the column.
        by_path: True if its cells are paths of files that hold the values.
    """

    field: str
    column: str
    by_path: bool


@dataclass(frozen=True)
class Plan:
    """The content of plan.json.

    Attributes:
        name: Prefix of the shard names.
        format: Container format: ``"tar"``, ``"hdf5"`` or ``"lmdb"``.
        fields: The fields that are stored; the image, if there is one, comes first.
        labels: Type of the labels.
        classes: Class names by label, or None.
        columns: The columns of the list; None for a list of paths and labels.
        list_sha256: SHA-256 of the list, in hexadecimal digits.
        lines: Number of lines that are not blank.
        entries: Number of lines that could be parsed; only these have places.
        seed: Seed that shuffles the order of places; None for the order of the list.
        shard_bytes: Target size of a shard in bytes; 0 in an outline for which none was asked for.
        encoder: Libraries that, apart from the source files, decide the stored bytes; None if there are none.
        written_by: Program and version that made the plan.
        shards: The shards, by number.
    """

    name: Prefix
    format: Format
    fields: tuple[Field, ...]
    labels: Labels
    classes: tuple[str, ...] | None
    columns: tuple[PlannedColumn, ...] | None
    list_sha256: Sha256
    lines: Count
    entries: Count
    seed: int | None
    shard_bytes: Count
    encoder: str | None
    written_by: str
    shards: tuple[PlannedShard, ...]

    @cached_property
    def schema(self) -> Schema:
        """The fields and the label of a sample."""
        return Schema(self.fields, self.labels, self.classes)

    @property
    def version(self) -> int:
        """Version of the document: 1 if that can say everything."""
        return document_version(self.schema, plain=self.columns is None)

    def dump(self) -> bytes:
        """Returns the content of plan.json."""
        body = {"version": self.version, **asdict(self), "labels": str(self.labels)}
        return dump_document(body if self.version > 1 else as_version_1(body, "columns"))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads and checks the plan in `folder`.

        Raises:
            FileNotFoundError: There is no plan.
            UnsupportedVersion: The plan was written by a newer packtrain.
            UnreadableFile: The plan cannot be read.
            CorruptFile: The plan is damaged, or says what no packer would.
            OutputConflict: The folder was not packed, but indexed.
        """
        path = folder / PLAN
        body = load_document(path, newest=NEWEST)
        if "made_by" in body:
            raise OutputConflict(f"{folder} holds an index of shards that lie elsewhere: choose another folder")
        plan = parse_document(
            cls, body if body["version"] > 1 else from_version_1(body, image_field(StoreOptions()), columns=None), path
        )
        try:
            plan._check()
            require_version(body["version"], plan.schema)
        except (ValueError, UsageError) as error:
            raise CorruptFile(f"{path} is damaged: {error}", file=PLAN) from error
        return plan

    def _check(self) -> None:
        """Checks what concerns several values."""
        Schema(self.fields, self.labels, self.classes)
        place, suffix = 0, FORMATS[self.format].suffix
        for number, shard in enumerate(self.shards):
            # Packing gives a file this name, whatever was there: it must be the one that this shard has.
            wanted = PlannedShard(shard_stem(self.name, number) + suffix, place, shard.count)
            if shard != wanted:
                raise ValueError(
                    f"shards[{number}]: expected {wanted.name} from place {wanted.first}, found {shard.name} from "
                    f"place {shard.first}"
                )
            place += shard.count
        if place != self.entries and (self.shards or self.schema.stored):
            raise ValueError(f"its shards hold {place} of {self.entries} entries")

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of plan.json, in hexadecimal digits."""
        return hashlib.sha256(self.dump()).hexdigest()

    @cached_property
    def _order(self) -> npt.NDArray[np.int64] | None:
        return None

    def in_order(self, order: npt.NDArray[np.int64] | None) -> Plan:
        """The same plan with an order that its document does not have: the entry at each place, int64 [entries]."""
        plan = replace(self)
        plan.__dict__["_order"] = order
        return plan

    def ordinals(self, number: int) -> npt.NDArray[np.int64]:
        """Returns the ordinals, int64 [count], of the entries in shard `number`, in place order."""
        shard = self.shards[number]
        if self._order is not None:
            return self._order[shard.first : shard.first + shard.count]
        if self.seed is None:
            return np.arange(shard.first, shard.first + shard.count)
        return Permutation(self.entries, self.seed).range(shard.first, shard.first + shard.count)

    def only(self, number: int) -> Plan:
        """The same plan, as far as it takes to pack shard `number`: of a million shards it has this one.

        So a plan can travel with each of its tasks.
        """
        shards: Any = {number: self.shards[number]}
        plan = replace(self, shards=shards)
        # It is the name of the whole plan.
        plan.__dict__["sha256"] = self.sha256
        return plan

    def require_same(self, other: Plan, folder: Path | Url) -> None:
        """Compares this plan, which lies on disk, with the plan that is asked for.

        The division into shards is not compared: it was decided when this plan was made.

        Args:
            other: The plan that is asked for.
            folder: The folder that this plan is in, for the message.

        Raises:
            OutputConflict: They differ; the message says how.
        """
        require_same_terms(self._terms(), other._terms(), folder, "packed")

    def is_same(self, other: Plan) -> bool:
        """True if both pack the same in the same way, however they divide it into shards."""
        return self._terms() == other._terms()

    def _terms(self) -> dict[str, Any]:
        terms = asdict(self)
        for settled in ("shards", "written_by", "fields", "columns"):
            del terms[settled]
        for field in self.fields:
            values = asdict(field)
            of = "" if field.name == IMAGE else f"{field.name} "
            terms |= {f"{of}{name}": value for name, value in (values.pop("store") or {}).items()}
            terms |= {f"{field.name} {name}": value for name, value in values.items() if name != "name"}
        for column in self.columns or ():
            terms[f"column of {column.field}"] = f"{column.column}{' (paths)' * column.by_path}"
        return {**terms, "labels": str(self.labels)}


def require_same_terms(mine: Mapping[str, Any], theirs: Mapping[str, Any], folder: Path | Url, made: str) -> None:
    """Compares what a folder was made by with what is asked for; raises as `Plan.require_same`.

    Args:
        mine: What it was made by.
        theirs: What is asked for.
        folder: The folder, for the message.
        made: The verb for it, for the message.
    """
    differing = [
        f"{name}: {_short(mine.get(name))} there, {_short(theirs.get(name))} asked for"
        for name in {**mine, **theirs}
        if mine.get(name) != theirs.get(name)
    ]
    if differing:
        how = "" if isinstance(folder, Url) else f": `rm -r {shlex.quote(os.fspath(folder))}`"
        raise OutputConflict(
            f"{folder} was {made} by another plan ({'; '.join(differing)}). Ask for the same as before to continue "
            f"it, choose another folder, or remove it{how}"
        )


def _short(value: Any) -> str:
    text = str(value)
    # A plan may have been made by a stranger, and this goes into a message.
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= 60 else text[:57] + "..."
