"""Laws of a loader over a growing cache: each epoch goes through the newest generation, once, and stays with it."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import time
import warnings
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from helpers.batching import through_json
from helpers.generations import grow, last, loader_of, numbers, of, opened

from packtrain import Loader
from packtrain._core.errors import DatasetError, UsageError
from packtrain._core.generations import generation_numbers, generation_path
from packtrain._core.reader_reports import reports
from packtrain.orders import Sequential, Weighted


@pytest.fixture
def root(memory_path: Path) -> Path:
    """A cache of a few samples."""
    grow(memory_path / "cache", 70)
    return memory_path / "cache"


def turn_over(root: Path) -> None:
    """Writes so much that none of the present samples is left, unless somebody keeps them."""
    grow(root, 500)
    assert last(root).first_sample >= 170


@pytest.mark.complete
@pytest.mark.parametrize(("workers", "method"), [(0, None), (2, "fork"), (2, "spawn")])
def test_each_epoch_is_the_newest_generation_once(root: Path, workers: int, method: str | None) -> None:
    dataset = opened(root)
    with loader_of(dataset, num_workers=workers, multiprocessing_context=method) as loader:
        ends = []
        for samples in (0, 100, 300, 300):
            newest = grow(root, samples) if samples else last(root)
            assert sorted(numbers(loader)) == of(newest)
            assert dataset.generation == newest.number and len(loader) == -(-len(of(newest)) // 8)
            ends.append(newest.end_sample)
        assert ends == sorted(set(ends)) and last(root).first_sample > 0


def test_a_generation_stays_until_its_epoch_ends(root: Path) -> None:
    before = last(root)
    loader = loader_of(opened(root))
    batches = iter(loader)
    found = numbers(islice(batches, 3))
    turn_over(root)
    assert len(loader) == -(-len(of(before)) // 8) and loader.remaining == len(loader) - 3
    assert sorted(found + numbers(batches)) == of(before)
    assert sorted(numbers(loader)) == of(last(root))


def test_an_epoch_that_is_named_after_its_pass_was_begun(root: Path) -> None:
    before, loader = last(root), loader_of(opened(root))
    batches = iter(loader)
    # As Lightning does.
    loader.set_epoch(4)
    grow(root, 30)
    found = numbers(islice(batches, 2))
    state = through_json(loader.state_dict())
    assert (state["epoch"], state["generations"]) == (4, [[before.number, 1]])
    found += numbers(batches)
    assert sorted(found) == list(range(70)) and loader.epoch == 5
    loader.load_state_dict(state)
    assert numbers(loader) == found[16:]
    loader.load_state_dict(state)
    batches = iter(loader)
    loader.set_epoch(9)
    assert sorted(numbers(batches)) == of(last(root))


def test_a_generation_without_a_step_is_left_behind(root: Path) -> None:
    loader = loader_of(opened(root), 80, drop_last=True)
    assert len(list(loader)) == 0 == len(loader)
    grow(root, 30)
    assert len(list(loader)) == 1
    assert [report.seen for report in reports(root)] == [100]


def test_a_generation_that_the_user_chooses_is_that_of_the_next_epoch(root: Path) -> None:
    dataset, keeping = opened(root), opened(root)
    loader = loader_of(dataset)
    turn_over(root)
    assert sorted(numbers(loader)) == of(last(root))
    dataset.advance(keeping.generation)
    assert len(loader) == loader.remaining == -(-70 // 8)
    assert sorted(numbers(loader)) == list(range(70))
    assert sorted(numbers(loader)) == of(last(root))


def test_two_loaders_of_one_dataset_do_not_disturb_each_other(root: Path) -> None:
    dataset = opened(root)
    first, second = loader_of(dataset), loader_of(dataset, seed=4)
    batches = iter(first)
    found = numbers(islice(batches, 2))
    state = through_json(first.state_dict())
    turn_over(root)
    assert sorted(numbers(second)) == of(last(root))
    first.load_state_dict(state)
    assert dataset.generation == state["generations"][0][0]
    second.set_epoch(5)
    assert sorted(numbers(second)) in ([*range(70)], of(last(root)))
    dataset.advance()
    rest = numbers(first)
    assert sorted(found + rest) == list(range(70))


def test_subsets_and_concatenations_stay(root: Path) -> None:
    dataset = opened(root)
    loader = loader_of(dataset.subset(range(20)))
    assert sorted(numbers(loader)) == list(range(20))
    turn_over(root)
    assert sorted(numbers(loader)) == list(range(20))
    with pytest.raises(UsageError, match="stays as it is"):
        loader.load_state_dict(loader_of(dataset).state_dict())


def test_a_sample_by_position_is_that_of_the_epoch(root: Path) -> None:
    loader = loader_of(opened(root), batch_size=1, num_workers=1)
    batches = iter(loader)
    first = numbers(islice(batches, 5))
    turn_over(root)
    assert [int(loader.sample(position).n) for position in range(5)] == first
    rest = numbers(batches)
    newest = last(root)
    assert sorted(first + rest) == list(range(70)) and sorted(numbers(loader)) == of(newest)


def test_a_fixed_order_cannot_follow(root: Path) -> None:
    dataset = opened(root)
    for sampler in (Sequential(70), [3, 1, 2], Weighted(range(1, 71))):
        with pytest.raises(UsageError, match="sampler=lambda dataset"):
            Loader(dataset, 8, sampler=sampler)
        assert len(Loader(dataset.subset(range(70)), 8, sampler=sampler, num_workers=0)) > 0
    with pytest.raises(UsageError, match="by hand"):
        Loader(dataset, 8, rank=0, world_size=2, seed=1)
    assert len(list(Loader(dataset, 8, rank=0, world_size=1, seed=1, num_workers=0))) == 9
    with pytest.raises(UsageError, match="returned an object of type list"):
        Loader(dataset, 8, sampler=lambda dataset: [1])  # type: ignore[arg-type, return-value]


def recent(dataset: Any) -> Weighted:
    """Draws the newest ten samples only."""
    return Weighted([0.0] * (len(dataset) - 10) + [1.0] * 10, samples=64)


def test_a_function_makes_the_order_of_each_generation(root: Path) -> None:
    loader = loader_of(opened(root), sampler=recent)
    for samples in (1, 100):
        newest = grow(root, samples)
        found = numbers(loader)
        assert len(found) == 64 and set(found) <= set(of(newest)[-10:])
    batches = iter(loader)
    found = numbers(islice(batches, 2))
    again = loader_of(opened(root), sampler=recent)
    again.load_state_dict(through_json(loader.state_dict()))
    assert numbers(batches) == numbers(again)


@pytest.mark.parametrize(("workers", "batch"), [(0, 8), (2, 5)])
def test_the_rest_of_an_epoch_is_exact(root: Path, workers: int, batch: int) -> None:
    loader = loader_of(opened(root))
    list(loader)
    newest = grow(root, 60)
    batches = iter(loader)
    found = numbers(islice(batches, 4))
    state = through_json(loader.state_dict())
    rest = numbers(batches)
    del batches
    loader.close()
    del loader
    turn_over(root)
    with loader_of(opened(root), batch, seed=99, num_workers=workers, multiprocessing_context="fork") as again:
        again.load_state_dict(state)
        assert again.remaining == -(-len(rest) // batch) and again.epoch == 1
        assert numbers(again) == rest and sorted(found + rest) == of(newest)
        assert sorted(numbers(again)) == of(last(root)) and again.epoch == 3


def test_a_state_keeps_its_generation_only_as_long_as_promised(root: Path) -> None:
    for keep, kept in ((3600, True), (0, False)):
        loader = loader_of(opened(root, keep))
        next(iter(loader))
        state = loader.state_dict()
        number = state["generations"][0][0]
        del loader
        turn_over(root)
        assert (number in generation_numbers(root)) == kept


def test_a_later_state_takes_the_place_of_the_one_before(root: Path) -> None:
    """Otherwise the states of an hour, one in each epoch, would leave a full cache no room for new samples."""
    loader, other, states = loader_of(opened(root)), loader_of(opened(root)), []
    next(iter(other))
    for _ in range(4):
        list(islice(loader, 2))
        states.append(loader.state_dict()["generations"][0][0])
        # Nobody but who made a promise ends it.
        other.state_dict()
        grow(root, 70)
    later = time.time() + 120
    kept = [number for number in generation_numbers(root) if generation_path(root, number).stat().st_mtime > later]
    assert kept == [states[0], states[3]]


def test_a_state_whose_generation_is_gone_begins_the_next_epoch(root: Path) -> None:
    loader = loader_of(opened(root, keep=0))
    next(iter(loader))
    state = through_json(loader.state_dict())
    del loader
    turn_over(root)
    again = loader_of(opened(root))
    with pytest.warns(RuntimeWarning, match=r"after 8 of 70 samples.*begins epoch 1 on the newest") as caught:
        again.load_state_dict(state)
    assert caught[0].filename == __file__
    newest = grow(root, 10)
    assert again.epoch == 1 and sorted(numbers(again)) == of(newest) and again.epoch == 2


def test_a_state_between_two_epochs_goes_on_with_the_newest(root: Path) -> None:
    loader = loader_of(opened(root))
    unbegun, dataset = through_json(loader.state_dict()), opened(root)
    list(loader)
    between = through_json(loader.state_dict())
    newest = grow(root, 100)
    for state, epoch in ((unbegun, 0), (between, 1)):
        again = loader_of(dataset)
        again.load_state_dict(state)
        assert again.epoch == epoch and sorted(numbers(again)) == of(newest)


def test_the_end_of_an_epoch_needs_no_generation(root: Path) -> None:
    loader = loader_of(opened(root, keep=0))
    batches = iter(loader)
    list(islice(batches, len(loader)))
    state = through_json(loader.state_dict())
    assert state["consumed"] == state["length"]
    again = loader_of(opened(root))
    again.load_state_dict(state)
    assert numbers(again) == []
    del loader, batches, again
    turn_over(root)
    again = loader_of(opened(root))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again.load_state_dict(state)
    assert again.epoch == 1


def test_states_of_others_are_refused(root: Path, tmp_path: Path) -> None:
    grow(tmp_path / "other", 70)
    loader = loader_of(opened(root))
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(UsageError, match="another growing cache"):
        loader_of(opened(tmp_path / "other")).load_state_dict(state)
    with pytest.raises(UsageError, match="order Shuffled"):
        loader_of(opened(root), sampler=lambda dataset: Sequential(len(dataset))).load_state_dict(state)
    with pytest.raises(UsageError, match="does not say which generation"):
        loader.load_state_dict({name: value for name, value in state.items() if name != "generations"})
    for wrong in (3, [3], [[3]], [[3, -1]], [[1, 1], [1, 1]], [["3", 1]], "x"):
        with pytest.raises(UsageError, match="not the state of a loader"):
            loader.load_state_dict({**state, "generations": wrong})
    # Nothing of this has changed the loader.
    assert loader.state_dict() == state


def test_the_filler_hears_what_was_handed_out(root: Path) -> None:
    before = last(root)
    with loader_of(opened(root), num_workers=2, multiprocessing_context="fork") as loader:
        batches = iter(loader)
        for taken in (8, 16):
            next(batches)
            (report,) = reports(root)
            assert (report.taken, report.seen, report.generation, report.alive) == (taken, 0, before.number, True)
        list(batches)
        (report,) = reports(root)
        assert (report.taken, report.seen) == (70, before.end_sample)
        newest = grow(root, 30)
        next(iter(loader))
        (report,) = reports(root)
        assert (report.taken, report.seen, report.generation) == (78, before.end_sample, newest.number)
    assert [report.alive for report in reports(root)] == [False]
    next(iter(loader))
    assert sorted(report.alive for report in reports(root)) == [False, True]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_epoch_of_a_look_stays_with_its_generation(root: Path, workers: int) -> None:
    before = last(root)
    with loader_of(opened(root), num_workers=workers, multiprocessing_context="fork") as loader:
        next(iter(loader))
        turn_over(root)
        assert sorted(numbers(loader)) == of(before)
        assert sorted(numbers(loader)) == of(last(root)) and loader.epoch == 2


@pytest.mark.complete
def test_after_close_the_epoch_of_a_look_chooses_anew(root: Path) -> None:
    loader = loader_of(opened(root, keep=0))
    for sets in (False, True):
        epoch = loader.epoch
        next(iter(loader))
        loader.close()
        assert loader.state_dict()["consumed"] == 8
        # The generation of the look is gone.
        turn_over(root)
        turn_over(root)
        if sets:
            loader.set_epoch(epoch)
        assert sorted(numbers(loader)) == of(last(root)) and loader.epoch == epoch + 1


def test_copies_of_a_loader_are_readers_of_their_own(root: Path) -> None:
    loader = loader_of(opened(root))
    next(iter(loader))
    copy = pickle.loads(pickle.dumps(loader))
    copy.set_epoch(0)
    assert sorted(numbers(copy)) == list(range(70))
    assert sorted(report.taken for report in reports(root)) == [8, 70]


def test_no_reports_of_batches_that_are_handed_out_again(root: Path) -> None:
    loader = loader_of(opened(root))
    with loader.headspace():
        assert len(list(loader)) == 9
    assert [report.taken for report in reports(root)] == [0]


def refuse(*arguments: Any) -> None:
    """Fails as a call that writes does on a file system that is mounted read-only."""
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_a_cache_that_cannot_be_written_to_is_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = opened(root)
    shutil.rmtree(root / "readers")
    (root / "readers").touch()
    loader = loader_of(dataset)
    with pytest.warns(RuntimeWarning, match="does not know what this loader takes") as caught:
        batches = iter(loader)
    assert len(caught) == 1 and caught[0].filename == __file__ and len(numbers(batches)) == 70
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(numbers(loader)) == 70
    monkeypatch.setattr(os, "utime", refuse)
    next(iter(loader))
    with pytest.warns(RuntimeWarning, match="a state does not keep the generation") as caught:
        loader.state_dict()
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader.state_dict()


def test_stats_say_which_generation_and_how_often(root: Path) -> None:
    loader = loader_of(opened(root))
    assert loader.stats.present.growth is None and "growth" not in loader.stats.present.to_dict()
    list(loader)
    list(loader)
    growth = loader.stats.present.growth
    assert growth is not None and (growth.samples, growth.new_samples, growth.reuse) == (70, 0, 2.0)
    newest = grow(root, 30)
    list(loader)
    assert str(loader.stats).endswith(f"generation {newest.number}: 100 samples, 30 of them new, reuse 2.4")
    assert "times each of 100 samples on average" in loader.stats.report()
    assert loader.stats.total.to_dict()["growth"]["reuse"] == 2.4
    points: dict[str, float] = {}

    class Writer:
        def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
            points[tag] = scalar_value

    loader.stats.write(Writer(), 0)
    assert points["packtrain/new_samples"] == 30 and points["packtrain/reuse"] == 2.4


def test_a_cache_that_somebody_deletes_is_an_error_that_says_so(root: Path) -> None:
    loader = loader_of(opened(root), 1)
    batches = iter(loader)
    next(batches)
    shutil.rmtree(root)
    with pytest.raises(DatasetError, match="is missing"):
        list(batches)
    with pytest.raises(DatasetError, match="no growing cache") as error:
        iter(loader)
    assert str(root) in str(error.value)
