"""A dataset that was changed, at an address and under a budget: each large segment has a bounded cache of its own."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from helpers.local_objects import SPEC, LocalObjects
from helpers.streaming import Remote, end_fetchers, remote_in
from helpers.support import encoded, held, packed, picture

from packtrain import Loader, append, drop_rows, open_dataset, split, stage
from packtrain._readers.dataset.image_dataset import VersionDataset, caches_of, is_remote
from packtrain._storage.remote import client
from packtrain._storage.streams import cutting, opening
from packtrain._storage.streams.opening import open_version
from packtrain.errors import NoRoom, UsageError
from packtrain.staging import entries, evict
from packtrain.transforms import CenterCrop

URL = "s3://bucket/set"
PLENTY = 1 << 26
CROP = CenterCrop(16)


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Versions of two large segments and a small one, without some rows of each, and split."""
    folder = tmp_path_factory.mktemp("changed")
    out = packed(listed(folder, 0, 120), folder / "out", "tar", shard_size=20_000)
    append(out, listed(folder, 1000, 4))
    append(out, listed(folder, 2000, 60))
    drop_rows(out, [3, 4, 121, 150])
    split(out, val="20%")
    return out


def listed(folder: Path, first: int, count: int) -> Path:
    for number in range(first, first + count):
        (folder / f"{number}.jpg").write_bytes(encoded(picture(number, 32, 24)))
    listing = folder / f"{first}.txt"
    listing.write_text("".join(f"{number}.jpg {number % 3}\n" for number in range(first, first + count)))
    return listing


@pytest.fixture
def remote(changed: Path, memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Remote]:
    """The dataset in a store, with chunks of a few records."""
    monkeypatch.setattr(cutting, "ENOUGH", 3_000)
    monkeypatch.setattr(cutting, "MOST", 4_096)
    monkeypatch.setattr(opening, "MOST", 4_096)
    monkeypatch.setattr(client, "ObjectStore", lambda **_: LocalObjects())
    monkeypatch.setattr(opening, "open_version", partial(open_version, fetch_with=SPEC))
    with remote_in(memory_path) as found:
        found.dataset.parent.mkdir(parents=True)
        found.dataset.symlink_to(changed)
        yield found


def opened(remote: Remote, budget: int = PLENTY, **options: object) -> VersionDataset:
    dataset = open_dataset(URL, stage=remote.place, budget=budget, **options)  # type: ignore[arg-type]
    assert isinstance(dataset, VersionDataset)
    return dataset


@pytest.mark.parametrize("version", [1, 3, 5])
def test_any_version_is_what_it_is(remote: Remote, changed: Path, version: int) -> None:
    there, here = open_dataset(changed, version=version), opened(remote, version=version)
    assert here.version == version and is_remote(here)
    assert len(caches_of(here)) == (1 if version == 1 else 2)
    assert held(here) == held(there)
    assert held(pickle.loads(pickle.dumps(here))) == held(there)
    assert here.targets.tolist() == there.targets.tolist()
    if version == 5:
        assert held(opened(remote, split="val")) == held(open_dataset(changed, split="val"))


def test_versions_share_caches_and_copies(remote: Remote) -> None:
    first = opened(remote, version=4)
    assert len(held(first)) == 180
    before = len(remote.store.reads())
    states = sorted(entry.state for entry in entries(remote.place))
    assert states == ["complete", "stream", "stream", "stream"], "of which one is the version's"
    second = opened(remote)
    assert {cache.entry for cache in caches_of(second)} == {cache.entry for cache in caches_of(first)}
    held(second)
    assert len(remote.store.reads()) == before, "nothing is fetched again"


@pytest.mark.complete
def test_a_part_of_the_budget_serves_chunks_and_refuses_what_goes_everywhere(remote: Remote, changed: Path) -> None:
    caches = caches_of(opened(remote))
    sizes = [(int(cache.state()["overhead"]), int(cache.table.allocated.sum())) for cache in caches]
    copied = sum(entry.bytes for entry in entries(remote.place) if entry.state == "complete")
    for cache in caches:
        cache.close()
    # Caches are shared, and of several budgets the largest counts.
    end_fetchers(remote.place)
    overhead, chunks = max(sizes)
    budget = copied + 2 * (overhead + chunks // 2)
    dataset = opened(remote, budget=budget)
    assert held(dataset) == held(open_dataset(changed))
    assert sum(cache.budget for cache in caches_of(dataset)) + copied <= budget
    with pytest.raises(UsageError, match=r"takes .* in the cache, whose budget is"):
        Loader(dataset.with_transform(CROP), 8, num_workers=0)
    with Loader(dataset.with_transform(CROP), 8, shuffle=True, seed=1, num_workers=0, fields=("row",)) as loader:
        for _ in range(2):
            assert sorted(row for _, _, rows in loader for row in rows.tolist()) == list(range(len(dataset)))


def test_a_budget_that_does_not_even_hold_the_copies(remote: Remote) -> None:
    with pytest.raises(
        NoRoom, match=f"small segments of {URL}, which are copied as a whole, take .*: raise the budget"
    ):
        opened(remote, budget=1000)


def test_a_state_ends_its_epoch_on_its_version(remote: Remote) -> None:
    options = {"shuffle": True, "seed": 1, "num_workers": 0, "fields": ("row",)}
    with Loader(open_with_crop(remote, 3), 8, **options) as before:  # type: ignore[arg-type]
        batches = iter(before)
        seen = [row for _ in range(2) for row in next(batches)[2].tolist()]
        state = before.state_dict()
    with Loader(open_with_crop(remote, None), 8, **options) as after:  # type: ignore[arg-type]
        after.load_state_dict(state)
        rest = [row for _, _, rows in after for row in rows.tolist()]
        assert sorted(seen + rest) == list(range(184))
        assert sorted(row for _, _, rows in after for row in rows.tolist()) == list(range(180))


def open_with_crop(remote: Remote, version: int | None) -> VersionDataset:
    dataset = open_dataset(URL, CROP, stage=remote.place, budget=PLENTY, version=version)
    assert isinstance(dataset, VersionDataset)
    return dataset


def test_nothing_of_it_is_evicted_while_it_is_open(remote: Remote) -> None:
    dataset = opened(remote)
    evict(remote.place, force=True)
    assert len(entries(remote.place)) == 4
    assert len(held(dataset)) == len(dataset)
    for cache in caches_of(dataset):
        cache.close()
    end_fetchers(remote.place)
    del dataset, cache
    evict(remote.place, force=True)
    assert entries(remote.place) == []


def test_a_complete_copy_is_read_in_place_of_caches(remote: Remote, changed: Path) -> None:
    stage(URL, remote.place).lease.close()
    dataset = opened(remote)
    assert caches_of(dataset) == () and is_remote(dataset)
    assert held(dataset) == held(open_dataset(changed))
