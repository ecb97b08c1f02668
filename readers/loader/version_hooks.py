"""Finishes an epoch on the version of a dataset that it began with, and goes on with the one that the loader has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from packtrain._core.overriding import override

from ..dataset.image_dataset import VersionDataset
from .dataset_hooks import DatasetHooks
from .engine import Job
from .order import Order
from .progress import Progress
from .ranks import World
from .sampler import SamplerOrder
from .state import LoaderState, identity_of


class VersionHooks(DatasetHooks):
    """Takes an earlier version of the dataset for the epoch of a state that was saved with it.

    Args:
        progress: How far the loader is; gets the order of that version.
        dataset: The loader's own version.
        order: Makes the order of a version.
        hooks: Makes the hooks of a version, once `progress` has its order.
    """

    def __init__(
        self,
        progress: Progress,
        dataset: VersionDataset,
        order: Callable[[Any], Order],
        hooks: Callable[[Any], DatasetHooks],
    ) -> None:
        super().__init__(progress, dataset)
        self._order: Final = order
        self._identity: Final = progress.dataset
        self._make_hooks: Final = hooks
        self._hooks = hooks(dataset)
        """Those of the version that is served."""
        self._earlier: VersionDataset | None = None
        """The version of the epoch that is under way; None if it is that of the loader."""
        self._of: VersionDataset | None = None
        """The loader's dataset that it was made for."""
        self._epoch = 0

    @override
    def begin(self, dataset: VersionDataset) -> None:
        self._return_to(dataset)
        self._hooks.begin(self._earlier or dataset)

    @override
    def fit(self, dataset: VersionDataset) -> None:
        self._return_to(dataset)
        self._hooks.fit(self._earlier or dataset)

    @override
    def pin(self, dataset: VersionDataset) -> Any:
        self._return_to(dataset)
        if self._earlier is not None and dataset is not self._of:
            # It has another transform now.
            self._earlier, self._of = dataset.at(self._earlier.version), dataset
        return self._hooks.pin(self._earlier or dataset)

    @override
    def load(self, dataset: VersionDataset, state: LoaderState) -> None:
        order = self._order(dataset)
        earlier = self._version_of(dataset, state, order)
        if earlier is not None and not state.consumed:
            # Nothing of its epoch was handed out, so it can begin on the version that there is now.
            state = replace(state, dataset=self._identity, length=len(order), parameters=order.parameters)
            earlier = None
        if earlier is not None:
            self._serve(earlier, self._order(earlier), state.dataset)
        else:
            self._serve(dataset, order, self._identity)
        self._earlier, self._of, self._epoch = earlier, dataset, state.epoch
        self._hooks.load(earlier or dataset, state)

    @override
    def jobs(self, jobs: Iterator[Job], world: World) -> Iterator[Job]:
        return self._hooks.jobs(jobs, world)

    @override
    def count(self, samples: int) -> None:
        self._hooks.count(samples)

    @override
    def close(self) -> None:
        self._hooks.close()

    def _return_to(self, dataset: VersionDataset) -> None:
        """Goes on with the loader's own version, once the epoch of the earlier one has ended."""
        if self._earlier is not None and self._progress.epoch != self._epoch:
            self._earlier = self._of = None
            self._serve(dataset, self._order(dataset), self._identity)

    def _serve(self, version: VersionDataset, order: Order, identity: str | None) -> None:
        self._hooks.close()
        self._progress.order, self._progress.dataset = order, identity
        self._hooks = self._make_hooks(version)

    def _version_of(self, dataset: VersionDataset, state: LoaderState, order: Order) -> VersionDataset | None:
        """The newest of the earlier versions that a state was saved with; None if it is the loader's, or gone."""
        # A foreign sampler is for the rows that there are now.
        if state.dataset is None or isinstance(order, SamplerOrder):
            return None
        if (state.dataset, state.length) == (self._identity, len(order)):
            return None
        for version in dataset.earlier():
            if len(version.segments) == state.dataset.count("+") + 1:
                found = dataset.at(version.number)
                if identity_of(found._samples.stores) == state.dataset and len(self._order(found)) == state.length:
                    return found
        return None
