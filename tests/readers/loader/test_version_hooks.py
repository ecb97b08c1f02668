"""Laws of states that were saved with an earlier version: their epoch ends on it, and the next one takes the newest."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.ranks import in_ranks
from helpers.staging.remote import BUCKET, installed
from helpers.support import image_set, packed

from packtrain import Loader, append, drop_rows, drop_version, open_dataset
from packtrain.errors import UsageError
from packtrain.orders import Weighted
from packtrain.transforms import CenterCrop

ROWS = 20
CROP = CenterCrop((8, 8))


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """A dataset of three versions: packed, appended to, and without a row."""
    out = packed(image_set(tmp_path, ROWS), tmp_path / "out", "tar")
    more = tmp_path / "more.txt"
    more.write_text("".join(f"image {number}.jpg 7\n" for number in range(5)))
    append(out, more)
    drop_rows(out, [2])
    return out


def loader_of(path: Path, version: int | None = None, **options: Any) -> Loader:
    options = {"shuffle": True, "seed": 3, "num_workers": 0, "fields": ("row",), **options}
    return Loader(open_dataset(path, CROP, version=version), 4, **options)


def content(loader: Loader, most: int | None = None) -> list[tuple[bytes, list[int]]]:
    return [(images.numpy().tobytes(), rows.tolist()) for images, _, rows in islice(loader, most)]


def rows_of(batches: list[tuple[bytes, list[int]]]) -> list[int]:
    return list(chain.from_iterable(rows for _, rows in batches))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("version", [1, 2])
def test_the_epoch_ends_on_its_version_and_the_next_one_takes_the_newest(
    changed: Path, version: int, workers: int
) -> None:
    with loader_of(changed, version) as before:
        content(before, 2)
        state = before.state_dict()
        rest = content(Loader(before.dataset, 4, shuffle=True, seed=3, num_workers=0, fields=("row",)))[2:]
    with loader_of(changed, num_workers=workers) as after, loader_of(changed) as fresh:
        after.load_state_dict(state)
        assert len(after) == -(-len(before.dataset) // 4)
        assert content(after, 1) == rest[:1]
        # Saved once more in the same epoch, and after its end.
        again = after.state_dict()
        assert again["dataset"] == state["dataset"]
        after.load_state_dict(again)
        assert content(after) == rest[1:]
        fresh.set_epoch(1)
        assert after.state_dict() == fresh.state_dict()
        assert content(after) == content(fresh)
        assert after.dataset.version == 3


def test_a_state_from_before_the_first_change_is_one_of_version_1(tmp_path: Path) -> None:
    out = packed(image_set(tmp_path, ROWS), tmp_path / "out", "tar")
    with loader_of(out) as loader:
        content(loader, 2)
        state = loader.state_dict()
        loader.load_state_dict(state)
        rest = content(loader)
    drop_rows(out, [0])
    with loader_of(out) as after:
        after.load_state_dict(state)
        assert content(after) == rest
        assert sorted(rows_of(content(after))) == [*range(ROWS - 1)]


def test_an_epoch_that_has_not_begun_takes_the_newest(changed: Path) -> None:
    with loader_of(changed, 1) as before, loader_of(changed) as after, loader_of(changed) as fresh:
        before.set_epoch(4)
        after.load_state_dict(before.state_dict())
        fresh.set_epoch(4)
        assert content(after) == content(fresh)


@pytest.mark.parametrize("at", ["folder", "address"])
def test_with_staged_copies(
    at: str, changed: Path, memory_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = str(changed)
    if at == "address":
        installed(tmp_path / "store", monkeypatch).path(BUCKET).mkdir(parents=True)
        (tmp_path / "store" / "bucket" / "out").symlink_to(changed)
        source = f"{BUCKET}/out"
    with Loader(open_dataset(source, CROP, version=2, stage=memory_path), 4, seed=3, shuffle=True) as before:
        next(iter(before)), next(iter(before))
        state = {**before.state_dict(), "consumed": 4}
    with Loader(open_dataset(source, CROP, stage=memory_path), 4, seed=3, shuffle=True, fields=("row",)) as after:
        after.load_state_dict(state)
        rows = rows_of(content(after))
        assert len(rows) == 21 and len(set(rows)) == 21
        assert sorted(rows_of(content(after))) == [*range(24)]


def test_a_transform_that_is_set_meanwhile_counts(changed: Path) -> None:
    with loader_of(changed, 1) as before, loader_of(changed) as after:
        content(before, 2)
        after.load_state_dict(before.state_dict())
        after.transform = CenterCrop((4, 4))
        assert next(iter(after))[0].shape[-1] == 4
        assert after.sample(0)[0].shape[-1] == 4


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda path: drop_version(path, [1]), "as long as its own was not dropped"),
        (lambda path: None, "Weighted"),
    ],
)
def test_what_cannot_go_on_is_refused(changed: Path, break_it: Callable[[Path], object], message: str) -> None:
    with loader_of(changed, 1) as before:
        content(before, 2)
        state = before.state_dict()
    del before
    break_it(changed)
    options: dict[str, Any] = {"sampler": Weighted([1.0] * 24), "shuffle": None} if message == "Weighted" else {}
    with loader_of(changed, **options) as after, pytest.raises(UsageError, match=message):
        after.load_state_dict(state)


def _in_rank(rank: int, world: int, path: Path, state: dict[str, Any]) -> list[list[int]]:
    with loader_of(path) as loader:
        loader.load_state_dict(state)
        epochs = [rows_of(content(loader)) for _ in range(2)]
    torch.distributed.barrier()
    return epochs


def test_all_ranks_move_at_the_same_epoch(changed: Path, tmp_path: Path) -> None:
    with loader_of(changed, 1, drop_last=True) as before:
        content(before, 1)
        state = before.state_dict()
    found = in_ranks(2, _in_rank, changed, state, group=tmp_path / "group")
    assert len(set(found[0][0] + found[1][0])) == ROWS - 4
    assert sorted({*found[0][1], *found[1][1]}) == [*range(24)]
