"""plan.json: which lines go to which shard. It is written before the first shard, and every later run follows it.

A plan is arithmetic: place p holds entry ``Permutation(entries, seed)[p]`` of the list (entry p if the seed is null),
and each shard holds a range of places. So a plan stays small for any number of lines.
"""

from __future__ import annotations

import hashlib
import math
import os
import shlex
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from packtrain._core.document import dump_document, load_document, parse_document
from packtrain._core.errors import CorruptFile, ListError, OutputConflict
from packtrain._core.manifest import PLAN, Count, FileName, Format, Labels, Prefix, Sha256, shard_stem
from packtrain._core.options import StoreOptions
from packtrain._core.permutation import Permutation
from packtrain._readers.formats import container

from .images import Refused, encoder, read_source, store_image
from .listing import Listing
from .options import PackOptions, usual_shard_bytes

_SAMPLED_FILES: Final = 256
_SAMPLED_IMAGES: Final = 32
_SAMPLE_SEED: Final = 0x5A3D


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
class Plan:
    """The content of plan.json.

    Attributes:
        name: Prefix of the shard names.
        format: Container format: ``"tar"``, ``"hdf5"`` or ``"lmdb"``.
        store: How pixels are stored.
        labels: Type of the labels that follow the path on each line.
        classes: Class names by label, or None.
        list_sha256: SHA-256 of the list, in hexadecimal digits.
        lines: Number of lines that are not blank.
        entries: Number of lines that could be parsed; only these have places.
        seed: Seed that shuffles the order of places; None for the order of the list.
        shard_bytes: Target size of a shard in bytes; 0 in an outline for which none was asked for.
        encoder: Libraries that, apart from the source files, decide the stored bytes; None with store mode verbatim.
        written_by: Program and version that made the plan.
        shards: The shards, by number.
    """

    name: Prefix
    format: Format
    store: StoreOptions
    labels: Labels
    classes: tuple[str, ...] | None
    list_sha256: Sha256
    lines: Count
    entries: Count
    seed: int | None
    shard_bytes: Count
    encoder: str | None
    written_by: str
    shards: tuple[PlannedShard, ...]

    def dump(self) -> bytes:
        """Returns the content of plan.json."""
        return dump_document({"version": 1, **asdict(self), "labels": str(self.labels)})

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads and checks the plan in `folder`.

        Raises:
            FileNotFoundError: There is no plan.
            UnsupportedVersion: The plan was written by a newer packtrain.
            UnreadableFile: The plan cannot be read.
            CorruptFile: The plan is damaged, or says what no packer would.
        """
        path = folder / PLAN
        plan = parse_document(cls, load_document(path, newest=1), path)
        place = 0
        suffix = container(plan.format).SUFFIX
        for number, shard in enumerate(plan.shards):
            # Packing gives a file this name, whatever was there: it must be the one that this shard has.
            wanted = PlannedShard(shard_stem(plan.name, number) + suffix, place, shard.count)
            if shard != wanted:
                raise CorruptFile(
                    f"{path} is damaged: shards[{number}]: expected {wanted.name} from place {wanted.first}, found "
                    f"{shard.name} from place {shard.first}",
                    file=PLAN,
                )
            place += shard.count
        if place != plan.entries:
            raise CorruptFile(f"{path} is damaged: its shards hold {place} of {plan.entries} entries", file=PLAN)
        return plan

    @property
    def sha256(self) -> str:
        """SHA-256 of plan.json, in hexadecimal digits."""
        return hashlib.sha256(self.dump()).hexdigest()

    def ordinals(self, number: int) -> npt.NDArray[np.int64]:
        """Returns the ordinals, int64 [count], of the entries in shard `number`, in place order."""
        shard = self.shards[number]
        if self.seed is None:
            return np.arange(shard.first, shard.first + shard.count)
        return Permutation(self.entries, self.seed).range(shard.first, shard.first + shard.count)

    def require_same(self, other: Plan, folder: Path) -> None:
        """Compares this plan, which lies on disk, with the plan that is asked for.

        The division into shards is not compared: it was decided when this plan was made.

        Args:
            other: The plan that is asked for.
            folder: The folder that this plan is in, for the message.

        Raises:
            OutputConflict: They differ; the message says how.
        """
        mine, theirs = self._terms(), other._terms()
        differing = [
            f"{name}: {_short(mine[name])} there, {_short(theirs[name])} asked for"
            for name in mine
            if mine[name] != theirs[name]
        ]
        if differing:
            raise OutputConflict(
                f"{folder} was packed by another plan ({'; '.join(differing)}). Ask for the same as before to continue "
                f"it, choose another folder, or remove it: `rm -r {shlex.quote(os.fspath(folder))}`"
            )

    def _terms(self) -> dict[str, Any]:
        terms = asdict(self)
        for settled in ("shards", "written_by"):
            del terms[settled]
        return {**terms, **terms.pop("store"), "labels": str(self.labels)}


def outline_plan(images: Listing, options: PackOptions) -> Plan:
    """Makes a plan without its shards: what is to be packed, and how."""
    return Plan(
        name=images.name,
        format=options.format,
        store=options.store,
        labels=options.labels,
        classes=images.classes,
        list_sha256=images.sha256,
        lines=images.lines,
        entries=len(images),
        seed=options.seed,
        shard_bytes=options.shard_bytes or 0,
        encoder=encoder(options.store),
        written_by=f"packtrain {metadata.version('packtrain')}",
        shards=(),
    )


def plan_shards(outline: Plan, images: Listing) -> Plan:
    """Completes a plan with its shards. Reads a sample of the files, always the same one, to estimate the record size.

    Raises:
        ListError: None of the sampled files can be read.
    """
    record_bytes = _record_bytes(images, outline.store)
    shard_bytes = outline.shard_bytes or usual_shard_bytes(record_bytes * outline.entries)
    most = max(1, shard_bytes // record_bytes)
    count = -(-outline.entries // most)
    bounds = [outline.entries * number // count for number in range(count + 1)]
    suffix = container(outline.format).SUFFIX
    shards = (
        PlannedShard(shard_stem(outline.name, number) + suffix, start, stop - start)
        for number, (start, stop) in enumerate(pairwise(bounds))
    )
    return replace(outline, shard_bytes=shard_bytes, shards=tuple(shards))


def _record_bytes(images: Listing, store: StoreOptions) -> int:
    """Estimates the mean size of a record in bytes; at least 1."""
    if store.fixed_shape is not None:
        return math.prod(store.fixed_shape)
    wanted = min(len(images), _SAMPLED_FILES if store.keeps_pixels else _SAMPLED_IMAGES)
    sizes, failure = [], ""
    for entry in images.entries(Permutation(len(images), _SAMPLE_SEED).range(0, wanted)):
        path = images.resolve(entry.path)
        try:
            if store.keeps_pixels:
                sizes.append(os.stat(path).st_size)
            else:
                sizes.append(len(store_image(read_source(path), store).payload))
        except (OSError, Refused, MemoryError) as error:
            failure = failure or f"{path}: {str(error) or 'not enough memory'}"
    if not sizes:
        advice = f"{images.advice}." if images.advice else "Is --root right?"
        raise ListError(f"none of {wanted} sampled files can be read. {advice} First: {failure}")
    return max(1, sum(sizes) // len(sizes))


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
