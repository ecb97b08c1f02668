"""Brings what the scans of shards found into rows: which samples are taken, and the columns of every field."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from packtrain._core.errors import PackError
from packtrain._core.options import StoreOptions
from packtrain._core.schema import IMAGE, LABEL, Field

from ..listing import Reject
from ..lists.labels import is_exact, rounded_label
from ..notes import MISSING
from .fields import FieldRule, Rules
from .headers import shown
from .records import ArrayFacts, Label
from .scan import Found, Scan

Array = npt.NDArray[Any]
Columns = dict[str, Array]
_SOURCES: Final = {
    "offset": "offsets",
    "length": "lengths",
    "crc32c": "checksums",
    "width": "widths",
    "height": "heights",
    "orientation": "orientations",
}
"""The columns of a field, and where a scan has them."""


@dataclass(frozen=True)
class Rows:
    """Samples in the order of the shards.

    Attributes:
        lines: Number of each sample, int64 [rows].
        shards: Number of its shard, uint32 [rows].
        paths: ``SHARD/KEY`` of each sample.
        labels: Its label; None without labels.
        columns: The columns of each field, without prefix, by the name of the field.
        rejects: The samples that were refused.
    """

    lines: Array
    shards: Array
    paths: list[bytes]
    labels: list[Label] | None
    columns: dict[str, Columns]
    rejects: list[Reject]


def settle(rules: Rules, scans: Iterable[Scan]) -> tuple[Rules, tuple[Field, ...]]:
    """Decides the field of every extension.

    Returns:
        Rules that name every extension, and the fields, the image first, none of them optional.

    Raises:
        UsageError: Two fields would have the same name.
    """
    found: dict[str, list[Found]] = {}
    for scan in scans:
        for extension, members in scan.found.items():
            found.setdefault(extension, []).append(members)
    fields: dict[str, Field] = {}
    settled = {rule.extension: rule for rule in rules.fields}
    names = rules.names(found)
    for name in dict.fromkeys(names.values()):
        own = [extension for extension in found if names.get(extension) == name]
        fields[name] = _field(name, [members for extension in own for members in found[extension]], rules.mode)
        settled |= {extension: FieldRule(name, extension, fields[name].kind) for extension in own}
    labels = rules.labels and (rules.label is not None or rules.label_extension in found)
    ordered = tuple(sorted(fields.values(), key=lambda field: field.name != IMAGE))
    return replace(rules, fields=tuple(settled.values()), masks=(), labels=labels), ordered


def _field(name: str, found: Sequence[Found], mode: str) -> Field:
    kind = found[0].kind
    if kind == "image":
        return Field(name, kind, store=StoreOptions("verbatim", mode=mode))
    if kind == "mask":
        return mask_field(name, wide=any(members.wide for members in found))
    if kind == "array":
        return array_field(name, reduce(ArrayFacts.joined, (each.form for each in found if each.form is not None)))
    return Field(name, kind)


def mask_field(name: str, *, wide: bool) -> Field:
    """A mask of 8 or 16 bits."""
    return Field(name, "mask", encoding="png", dtype="<u2" if wide else "|u1")


def array_field(name: str, form: ArrayFacts) -> Field:
    """A field of arrays; of bytes, if they do not fit together."""
    return Field(name, "bytes") if form.problem else Field(name, "array", dtype=form.dtype, shape=form.shape)


def rows(
    scan: Scan, shard: str, first_line: int, names: Mapping[str, str], fields: Sequence[Field], labels: bool
) -> Rows:
    """The rows of one shard.

    Args:
        scan: What was found in it.
        shard: Its name in the dataset.
        first_line: Number of its first sample.
        names: Name of the field of each extension.
        fields: The fields of the dataset.
        labels: Whether it has labels.

    Raises:
        PackError: A sample has two members that would both be the same field.
    """
    count = len(scan.keys)
    columns = {field.name: _columns(scan, shard, count, names, field) for field in fields}
    refused = dict(scan.unfit)
    if IMAGE in columns:
        _refuse(refused, np.flatnonzero(columns[IMAGE]["length"] < 0), lambda sample: f"no image{_there(scan, sample)}")
        for field in fields:
            if field.kind == "mask":
                _refuse_other_sizes(refused, columns[IMAGE], columns[field.name], field.name)
    if labels:
        lacking = np.setdiff1d(np.arange(count), np.fromiter(scan.labels, np.int64, len(scan.labels)))
        _refuse(refused, lacking, lambda sample: f"no label{_there(scan, sample)}")
    paths = [shard.encode() + b"/" + key for key in scan.keys]
    taken = np.setdiff1d(np.arange(count), np.fromiter(refused, np.int64, len(refused)))
    return Rows(
        lines=first_line + taken,
        shards=np.full(len(taken), scan.number, "<u4"),
        paths=[paths[sample] for sample in taken.tolist()],
        labels=[scan.labels[sample] for sample in taken.tolist()] if labels else None,
        columns={name: {each: values[taken] for each, values in columns[name].items()} for name in columns},
        rejects=[
            Reject(first_line + sample, paths[sample].decode("utf-8", "surrogateescape"), refused[sample])
            for sample in sorted(refused)
        ],
    )


def refuse_rounded_labels(scans: Sequence[Scan]) -> None:
    """Refuses samples whose label is a whole number that would be rounded, because other labels are not whole."""
    if not any(isinstance(label, float) for scan in scans for label in scan.labels.values()):
        return
    for scan in scans:
        for sample, label in scan.labels.items():
            if isinstance(label, int) and not is_exact(label, "<f4"):
                scan.unfit.setdefault(sample, rounded_label(label))


def joined(parts: Sequence[Rows]) -> Rows:
    """The rows of several parts, one after the other. All of them have the same fields."""
    names = parts[0].columns
    return Rows(
        lines=np.concatenate([part.lines for part in parts]),
        shards=np.concatenate([part.shards for part in parts]),
        paths=[path for part in parts for path in part.paths],
        labels=None if parts[0].labels is None else [label for part in parts for label in part.labels or ()],
        columns={
            name: {each: np.concatenate([part.columns[name][each] for part in parts]) for each in names[name]}
            for name in names
        },
        rejects=[item for part in parts for item in part.rejects],
    )


def no_columns(field: Field, count: int) -> Columns:
    """The columns of a field that none of `count` samples has."""
    names = {name.removeprefix(field.prefix): dtype for name, dtype in field.columns().items()}
    return {name: np.full(count, MISSING if name == "length" else 0, dtype) for name, dtype in names.items()}


def _columns(scan: Scan, shard: str, count: int, names: Mapping[str, str], field: Field) -> Columns:
    columns = no_columns(field, count)
    for extension, found in scan.found.items():
        if names.get(extension) != field.name or found.kind == LABEL:
            continue
        samples = np.asarray(found.samples)
        if (twice := samples[columns["length"][samples] >= 0]).size:
            sample = int(twice[0])
            place = found.offsets[found.samples.index(sample)]
            raise PackError(
                f"{shard}: the sample {shown(scan.keys[sample])} has two members for the field {field.name!r}, at "
                f"bytes {columns['offset'][sample]} and {place}: name one of them with --field NAME={extension}"
            )
        for name, values in columns.items():
            values[samples] = np.asarray(getattr(found, _SOURCES[name]))
    return columns


def _refuse(refused: dict[int, str], samples: Array, why: Callable[[int], str]) -> None:
    for sample in samples.tolist():
        if sample not in refused:
            refused[sample] = why(sample)


def _refuse_other_sizes(refused: dict[int, str], image: Columns, mask: Columns, name: str) -> None:
    both = (image["length"] >= 0) & (mask["length"] >= 0)
    other = (image["width"] != mask["width"]) | (image["height"] != mask["height"])
    _refuse(
        refused,
        np.flatnonzero(both & other),
        lambda sample: (
            f"its mask {name} has {mask['width'][sample]} x {mask['height'][sample]} pixels, and the image "
            f"{image['width'][sample]} x {image['height'][sample]}"
        ),
    )


def _there(scan: Scan, sample: int) -> str:
    # The numbers ascend.
    there = [
        extension
        for extension, found in scan.found.items()
        if found.samples[min(bisect_left(found.samples, sample), len(found.samples) - 1)] == sample
    ]
    return f": it has only {', '.join(there)}" if there else ""
