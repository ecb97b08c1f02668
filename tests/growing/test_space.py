"""What a shard takes never exceeds what was reserved for it, at any moment."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from helpers.fillers import numbered_sample
from helpers.filling import Scales, assert_sound, blocks, fill, newest_store
from helpers.memory import disk_factory
from helpers.support import FORMATS
from hypothesis import example, given
from hypothesis import strategies as st

from packtrain._core.errors import UsageError
from packtrain._core.generations import CacheInfo
from packtrain._growing.cache_folder import clear_up
from packtrain._growing.options import FillOptions
from packtrain._growing.shard import GrowingShard
from packtrain._growing.space import Space
from packtrain._growing.status import FillFigures
from packtrain._packer.sample_schemas import join_schemas, schema_of
from packtrain._packer.samples import SampleEncoder

SIZES = st.one_of(st.integers(0, 40), st.integers(400, 600), st.integers(1900, 2100), st.integers(3900, 4300))

tmp_path_factory = disk_factory


def _sample(sizes: tuple[int, ...], label: float | None) -> dict[str, Any]:
    sample: dict[str, Any] = {f"f{at}": bytes([7]) * size for at, size in enumerate(sizes[1:])}
    sample["array"] = np.full(sizes[0], 3, np.uint8)
    return sample if label is None else {**sample, "label": label}


def _begun(root: Path, format: str, first: dict[str, Any]) -> tuple[CacheInfo, Space]:
    schema = join_schemas(schema_of(first), schema_of({**first, "array": np.zeros(len(first["array"]) + 1, np.uint8)}))
    info = CacheInfo("0" * 32, format, schema.fields, schema.labels)
    info.save(root)
    clear_up(root, 0)
    return info, Space(root, info)


@pytest.mark.complete
@pytest.mark.parametrize("where", ["/dev/shm", None], ids=["memory", "disk"])
@pytest.mark.parametrize("format", FORMATS)
@given(
    st.integers(1, 4).flatmap(lambda fields: st.tuples(*[SIZES] * fields)),
    st.integers(1, 300),
    st.sampled_from([None, 3, -1.0e-300]),
    st.randoms(),
)
@example((0,), 73, None, Random(0))  # records that are nothing but the header of an `.npy` file
def test_no_moment_of_a_shard_exceeds_what_was_reserved(
    format: str,
    where: str | None,
    tmp_path_factory: pytest.TempPathFactory,
    sizes: tuple[int, ...],
    count: int,
    label: float | None,
    random: Any,
) -> None:
    near = None if where and Path(where).is_dir() else tmp_path_factory.getbasetemp()
    with tempfile.TemporaryDirectory(dir=near or where) as folder:
        root = Path(folder)
        info, space = _begun(root, format, _sample(sizes, label))
        encoder = SampleEncoder(info.schema, bare=info.bare)
        before, spent = blocks(root), 0
        shard = GrowingShard(root, info, 0, 0)
        for _ in range(count):
            sample = encoder.encode(_sample(tuple(random.randint(0, size) for size in sizes), label))
            spent += space.cost.sample(sample)
            shard.add(sample)
        assert blocks(root) - before <= space.cost.peak(spent)
        with Scales(root) as scales:
            shard.finish()
        assert max(scales.most, blocks(root)) - before <= space.cost.peak(spent)


@pytest.mark.parametrize("size", [1, 100, 2030, 5000, 3_000_000])
def test_the_bound_of_many_samples_is_not_far_off(format_name: str, size: int, memory_path: Path) -> None:
    """A bound that is always kept by being huge would leave most of the disk empty."""
    info, space = _begun(memory_path, format_name, {"array": np.zeros(size, np.uint8)})
    encoder = SampleEncoder(info.schema, bare=info.bare)
    before, spent = blocks(memory_path), 0
    shard = GrowingShard(memory_path, info, 0, 0)
    for _ in range(max(4, min(20_000, 200_000 // size))):
        sample = encoder.encode({"array": np.zeros(size, np.uint8)})
        spent += space.cost.sample(sample)
        shard.add(sample)
    shard.finish()
    # A page of LMDB may be only a fourth full.
    times = 4 if format_name == "lmdb" else 3
    assert spent <= times * (blocks(memory_path) - before)


def _many(count: int, sizes: tuple[int, ...]) -> Any:
    return lambda: (numbered_sample(who, sizes) for who in range(count))


@pytest.mark.complete
@pytest.mark.parametrize(
    ("count", "sizes"),
    [
        (3000, (0, 1, 700, 3000, 5000)),
        pytest.param(20_000, (0, 3), marks=pytest.mark.stress),
        (60, (200_000, 1, 150_000, 4097)),
    ],
)
def test_the_folder_never_exceeds_its_budget(
    format_name: str, memory_path: Path, count: int, sizes: tuple[int, ...]
) -> None:
    root = memory_path / "cache"
    budget = 6 << 20
    options = FillOptions(budget=budget, headroom=0.4, shard_size=500_000, format=format_name)

    def weighed() -> Iterator[dict[str, Any]]:
        for who, sample in enumerate(_many(count, sizes)()):
            if who % (count // 60) == 0:
                scales.weigh()
            yield sample

    with Scales(root) as scales:
        figures = fill(root, weighed, options)
    assert figures.evicted_shards
    assert figures.samples == count
    assert scales.most <= budget
    assert_sound(newest_store(root), sizes=sizes)


def test_a_sample_larger_than_a_shard_is_refused_and_the_message_says_what_to_change(
    format_name: str, memory_path: Path
) -> None:
    options = FillOptions(budget="4MiB", headroom=0.5, shard_size="300KiB", format=format_name)
    seen: list[FillFigures] = []
    figures = fill(memory_path / "c", _many(6, (400_000, 10)), options, seen.append)
    assert (figures.refused, figures.samples) == (3, 3)
    assert "give a larger shard_size" in figures.problem


@pytest.mark.parametrize("fields", [1, 6])
def test_a_budget_that_cannot_hold_a_shard_in_its_headroom_is_an_error_at_the_start(
    format_name: str, memory_path: Path, fields: int
) -> None:
    sample = {f"f{at}": b"x" for at in range(fields)}
    options = FillOptions(budget="700KiB", shard_size="64KiB", format=format_name)
    with pytest.raises(UsageError, match=r"budget=700.0 KiB is too small.*Give at least"):
        fill(memory_path / "c", lambda: iter([sample]), options)
