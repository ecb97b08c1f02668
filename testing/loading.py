"""Laws of what a `Loader` reads: a sample depends on seed, epoch and position alone."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, ClassVar

import pytest
import torch

from packtrain import Loader

# So many samples of one row are never all equal by chance if anything about them is random.
_SAME_ROW = 24
_DEPENDS = "the samples of your dataset depend on more than seed, epoch and position"


class LoadingContract:
    """Laws of a dataset in a `Loader`, its transforms included: who makes a batch, and when, changes nothing.

    A subclass defines the fixture `dataset`: a map-style dataset of any kind, whose samples fit into one batch. Some
    tens of samples are enough; every test goes through all of them.

    Attributes:
        random: True if samples have random parts.
        start_methods: How workers are started. What cannot be pickled can only be forked: ``("fork",)``.
        batch_size: Number of samples in a batch.
    """

    random: ClassVar[bool] = True
    start_methods: ClassVar[tuple[str, ...]] = ("fork", "spawn")
    batch_size: ClassVar[int] = 5

    @pytest.fixture
    def dataset(self) -> Any:
        """The dataset."""
        raise NotImplementedError(f"{type(self).__name__} has no fixture `dataset`, which returns what a Loader reads")

    @pytest.fixture
    def expected(self, dataset: Any) -> list[Any]:
        """The batches of the first epoch, made in this process."""
        with self.loading(dataset) as loader:
            return list(loader)

    @contextmanager
    def loading(self, dataset: Any, *, copied: bool = True, **options: Any) -> Iterator[Loader]:
        """A loader over a fresh copy of the dataset; without workers, unless options say otherwise."""
        order = {} if "sampler" in options else {"shuffle": True}
        fixed = {"batch_size": self.batch_size, "seed": 4, "num_workers": 0, "multiprocessing_context": "fork"}
        # What a sample leaves behind must not be there already.
        dataset = copy.deepcopy(dataset) if copied else dataset
        with Loader(dataset, **{**order, **fixed, "fields": ("row", "position"), **options}) as loader:
            yield loader

    @pytest.mark.parametrize(("workers", "prefetch"), [(1, 2), (2, 1), (3, 3)])
    def test_any_number_of_workers_makes_the_same_batches(
        self, dataset: Any, expected: list[Any], workers: int, prefetch: int
    ) -> None:
        with self.loading(dataset, num_workers=workers, prefetch_factor=prefetch) as loader:
            require_same(list(loader), expected, f"with {workers} workers, {_DEPENDS}")

    def test_workers_started_in_any_way_make_the_same_batches(self, dataset: Any, expected: list[Any]) -> None:
        if self.start_methods != ("fork",):
            again = pickle.loads(pickle.dumps(dataset))
            with self.loading(again) as loader, self.loading(dataset, copied=False) as original:
                require_same(list(loader), list(original), "a pickled copy of your dataset gives other samples")
        for method in self.start_methods:
            with self.loading(dataset, num_workers=1, multiprocessing_context=method) as loader:
                require_same(list(loader), expected, f"in a worker that is started by {method}, {_DEPENDS}")

    def test_batches_of_any_size_hold_the_same_samples(self, dataset: Any, expected: list[Any]) -> None:
        samples = [sample for batch in expected for sample in samples_in(batch)]
        for size in (1, self.batch_size + 1):
            with self.loading(dataset, batch_size=size) as loader:
                found = [sample for batch in loader for sample in samples_in(batch)]
            require_same(found, samples, f"in batches of {size}, {_DEPENDS}")

    def test_an_epoch_can_be_gone_through_again(self, dataset: Any, expected: list[Any]) -> None:
        with self.loading(dataset) as loader:
            for epoch in (0, 1):
                loader.set_epoch(epoch)
                list(loader)
            loader.set_epoch(0)
            require_same(list(loader), expected, f"after other epochs, {_DEPENDS}")

    def test_a_resumed_epoch_goes_on_where_it_was(self, dataset: Any, expected: list[Any]) -> None:
        for count in range(len(expected) + 1):
            with self.loading(dataset) as loader:
                list(islice(loader, count))
                state = json.loads(json.dumps(loader.state_dict()))
            if state["epoch"] == 0:  # after the last batch the next epoch has begun
                with self.loading(dataset, seed=0) as loader:
                    loader.load_state_dict(state)
                    require_same(list(loader), expected[count:], f"after a resume behind batch {count}, {_DEPENDS}")

    def test_samples_are_random_exactly_if_the_suite_says_so(self, dataset: Any) -> None:
        options: dict[str, Any] = {"sampler": [0] * _SAME_ROW, "batch_size": _SAME_ROW, "fields": ()}
        batches = []
        for seed in (4, 5):
            with self.loading(dataset, seed=seed, **options) as loader:
                batches += list(loader)
        one, other = map(samples_in, batches)
        alike = not any(difference(sample, one[0]) for sample in [*one[1:], *other])
        if self.random:
            assert not alike, f"row 0 is the same at {_SAME_ROW} positions; if nothing is random, say `random = False`"
            assert difference(one, other), "another seed gives the same samples: the transform seeds its own generator"
        else:
            assert alike, "row 0 differs from position to position: something is random, so say `random = True`"


def require_same(found: Any, expected: Any, law: str) -> None:
    """Fails the test with a law and the first place in which two batches, or lists of batches, differ."""
    __tracebackhide__ = True
    if place := difference(found, expected):
        pytest.fail(f"{law}: {place}")


def difference(found: Any, expected: Any) -> str:
    """The first place in which two batches differ in value, type or shape; "" if there is none."""
    if isinstance(found, Mapping) and isinstance(expected, Mapping):
        return difference(list(found.items()), list(expected.items()))
    if isinstance(found, (list, tuple)) and isinstance(expected, (list, tuple)):
        if len(found) != len(expected):
            return f"there are {len(found)} of them, not {len(expected)}"
        places = (difference(one, other) for one, other in zip(found, expected, strict=True))
        return next((f"[{number}]{place}" for number, place in enumerate(places) if place), "")
    if isinstance(found, torch.Tensor) and isinstance(expected, torch.Tensor):
        if (found.dtype, found.shape) != (expected.dtype, expected.shape):
            return f" is {found.dtype} {list(found.shape)}, not {expected.dtype} {list(expected.shape)}"
        apart = int((found.nan_to_num() != expected.nan_to_num()).sum()) if found.numel() else 0
        return f" differs in {apart} of {found.numel()} values" if apart else ""
    if hasattr(found, "values") and hasattr(found, "offsets"):  # a `Ragged`
        return difference((found.values, found.offsets), (expected.values, expected.offsets))
    return "" if type(found) is type(expected) and found == expected else f" is {found!r}, not {expected!r}"


def samples_in(batch: Any) -> list[Any]:
    """The samples of a batch, each with what belongs to it."""
    if isinstance(batch, tuple):
        return list(zip(*map(samples_in, batch), strict=True))
    if isinstance(batch, Mapping):
        return [dict(zip(batch, values, strict=True)) for values in samples_in(tuple(batch.values()))]
    return list(batch)
