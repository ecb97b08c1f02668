"""Makes a plan for a list: finds out what its fields are, and how large their records, by samples of its rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from itertools import pairwise
from typing import Final

from packtrain._core.errors import ListError, RemoteError
from packtrain._core.manifest import shard_stem
from packtrain._core.paths import without_credentials
from packtrain._core.schema import IMAGE, Schema
from packtrain._formats import container

from .listing import Listing, where_looked
from .options import Columns, PackOptions, usual_shard_bytes
from .plan import Plan, PlannedColumn, PlannedShard
from .settling import sampled, settled_fields
from .sources import Refused

_SAMPLED_FILES: Final = 256
_SAMPLED_IMAGES: Final = 32
_LONGEST_SHOWN: Final = 300


def outline_plan(images: Listing, options: PackOptions, there: Plan | None = None) -> Plan:
    """Makes a plan without its shards: what is to be packed, and how.

    Args:
        images: The list.
        options: What is asked for.
        there: A plan that has been made of this list before; what was found from a sample then is taken from it.

    Raises:
        ListError: A field is found from a sample, and no row of the sample can be used.
    """
    fields = settled_fields(images, options, there.fields if there is not None else ())
    columns = options.columns
    return Plan(
        name=images.name,
        format=options.format,
        fields=fields,
        labels=options.labels,
        classes=images.classes,
        columns=None if columns is None else tuple(_planned(columns)),
        list_sha256=images.sha256,
        lines=images.lines,
        entries=len(images),
        seed=options.seed,
        shard_bytes=options.shard_bytes or (there.shard_bytes if there is not None else 0),
        encoder=images.source.encoder(Schema(fields, options.labels, images.classes)),
        written_by=f"packtrain {metadata.version('packtrain')}",
        shards=(),
    )


def _planned(columns: Columns) -> Iterator[PlannedColumn]:
    if columns.image is not None:
        yield PlannedColumn(IMAGE, columns.image, by_path=True)
    if columns.label is not None:
        yield PlannedColumn("label", columns.label, by_path=False)
    for field in columns.fields:
        yield PlannedColumn(field.name, field.column, field.by_path)


def plan_shards(outline: Plan, images: Listing) -> Plan:
    """Completes a plan with its shards. Reads a sample of the files, always the same one, to estimate the record size.

    Raises:
        ListError: None of the sampled files can be read.
    """
    record_bytes = _record_bytes(images, outline.schema)
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


def _record_bytes(images: Listing, schema: Schema) -> int:
    """Estimates the mean size of the records of a sample in bytes; at least 1."""
    image = schema.image
    if schema.plain and image is not None and image.store is not None and image.store.fixed_shape is not None:
        return math.prod(image.store.fixed_shape)
    source, sizes, first, failure = images.source, [], "", ""
    # Records that are about as large as their files need not be made to know their size.
    kept = source.keeps_sizes(schema)
    sample = sampled(images, _SAMPLED_FILES if kept else _SAMPLED_IMAGES)
    with source.reading(sample, content=not kept) as reading:
        for entry in sample:
            try:
                if kept:
                    sizes.append(reading.size(schema, entry))
                else:
                    records = reading.encode(schema, entry)
                    sizes.append(sum(len(record.payload) for record in records if record is not None))
            except (OSError, Refused, RemoteError, MemoryError) as error:
                if not failure:
                    first = without_credentials(entry.path)
                    why = (isinstance(error, OSError) and error.strerror) or str(error) or "not enough memory"
                    failure = f"{_shown(images.resolve(first))}: {why}"
    if not sizes:
        advice = images.advice or where_looked(images, first, failure)
        raise ListError(f"none of {len(sample)} sampled files can be read. First: {failure}{advice and f'. {advice}'}")
    return max(1, sum(sizes) // len(sizes))


def _shown(path: str) -> str:
    # A file that is not a list at all may hold a line without an end.
    return path if len(path) <= _LONGEST_SHOWN else f"{path[:_LONGEST_SHOWN]}..."
