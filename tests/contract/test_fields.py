"""Laws of containers whose samples have any fields: what a writer took is found again, by us and by others."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract.oracles import HDF5, LMDB, TAR, Oracle
from helpers.samples import SUFFIXES, Sample, Value, payload, sample_lists, schemas, write_shard
from helpers.support import tree
from hypothesis import given
from hypothesis import strategies as st

from packtrain._core.options import FORMATS
from packtrain._core.schema import Schema
from packtrain._formats import StoredSample, container

EVERY = pytest.mark.parametrize("oracle", [TAR, HDF5, LMDB], ids=lambda oracle: oracle.format)


@EVERY
@given(st.data())
def test_what_is_written_is_found_by_walk_and_by_others(oracle: Oracle, data: st.DataObject) -> None:
    schema = data.draw(schemas())
    samples = data.draw(sample_lists(schema))
    with tempfile.TemporaryDirectory(prefix="packtrain-test-") as folder:
        shard = Path(folder, "shard" + SUFFIXES[oracle.format])
        written = write_shard(shard, oracle.format, schema, samples)
        assert list(tree(Path(folder))) == [shard.name]
        walked = {found.line: found for found in container(oracle.format).walk(shard, schema)}
        others = {found.line: found for found in oracle.samples(shard)}
        content = shard.read_bytes()
    bare = FORMATS[oracle.format].bare
    # Nothing is stored of a sample that has nothing; HDF5 has its line all the same.
    something = [sample for sample in samples if sample.present(schema) or sample.label is not None]
    assert {sample.line for sample in something} <= walked.keys() <= {sample.line for sample in samples}
    assert walked.keys() == others.keys()
    for sample, offsets in zip(samples, written.offsets, strict=True):
        present = sample.present(schema)
        found = walked.get(sample.line, StoredSample(sample.line, {}, None))
        assert found.places.keys() == present.keys()
        places = (found.places.get(name, (0, -1)) for name in schema.names)
        assert offsets == tuple(offset for offset, _ in places)
        for name, (offset, length) in found.places.items():
            assert content[offset : offset + length] == payload(present[name], bare=bare), name
        assert _as_list(found.label) == _as_list(sample.label)
        if sample.line in others:
            other = others[sample.line]
            assert _as_list(other.label) == _as_list(sample.label)
            assert other.fields.keys() == present.keys()
            for name, value in present.items():
                assert_same(value, other.fields[name])


@EVERY
@given(st.data())
def test_the_same_samples_give_the_same_bytes(oracle: Oracle, data: st.DataObject) -> None:
    schema = data.draw(schemas())
    samples = data.draw(sample_lists(schema))
    assert _written(oracle, schema, samples) == _written(oracle, schema, samples)


def _written(oracle: Oracle, schema: Schema, samples: list[Sample]) -> Any:
    """The bytes of a shard of these samples, and of its sidecars."""
    with tempfile.TemporaryDirectory(prefix="packtrain-test-") as folder:
        path = Path(folder, "shard")
        written = write_shard(path, oracle.format, schema, samples)
        return path.read_bytes(), written.sidecars


def assert_same(value: Value, found: Value) -> None:
    """What another library found is what was written, type included."""
    if isinstance(value, bytes):
        assert bytes(found) == value
        return
    array = np.load(io.BytesIO(found)) if isinstance(found, bytes) else found
    assert array.dtype == value.dtype
    # A record of an optional array of one shape is one entry of its dataset, or none.
    assert array.shape in (value.shape, (1, *value.shape))
    assert array.tobytes() == value.tobytes()


def _as_list(label: Any) -> Any:
    return list(label) if isinstance(label, tuple) else label
