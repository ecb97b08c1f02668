"""Finishes an epoch on the version of a dataset that it began with, and goes on with the one that the loader has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from typing_extensions import override

from ..dataset.image_dataset import VersionDataset
from .dataset_hooks import DatasetHooks
from .order import Order
from .progress import Progress
from .sampler import SamplerOrder
from .state import LoaderState, identity_of


class VersionHooks(DatasetHooks):
    """Takes an earlier version of the dataset for the epoch of a state that was saved with it.

    Args:
        progress: How far the loader is; gets the order of that version.
        order: Makes the order of a version.
        identity: Which samples the rows of the loader's own version are.
    """

    def __init__(self, progress: Progress, order: Callable[[Any], Order], identity: str | None) -> None:
        super().__init__(progress)
        self._order: Final = order
        self._identity: Final = identity
        self._earlier: VersionDataset | None = None
        """The version of the epoch that is under way; None if it is that of the loader."""
        self._of: VersionDataset | None = None
        """The loader's dataset that it was made for."""
        self._epoch = 0

    @override
    def begin(self, dataset: VersionDataset) -> None:
        self.fit(dataset)

    @override
    def fit(self, dataset: VersionDataset) -> None:
        if self._earlier is not None and self._progress.epoch != self._epoch:
            self._earlier = self._of = None
            self._progress.serve(self._order(dataset), self._identity)

    @override
    def pin(self, dataset: VersionDataset) -> VersionDataset:
        self.fit(dataset)
        if self._earlier is None:
            return dataset
        if dataset is not self._of:
            # It has another transform now.
            self._earlier, self._of = dataset.at(self._earlier.version), dataset
        return self._earlier

    @override
    def load(self, dataset: VersionDataset, state: LoaderState) -> None:
        order = self._order(dataset)
        earlier = self._version_of(dataset, state, order)
        if earlier is not None and state.consumed:
            self._progress.serve(self._order(earlier), state.dataset)
            self._progress.load(state)
            self._earlier, self._of, self._epoch = earlier, dataset, state.epoch
            return
        if earlier is not None:
            # Nothing of its epoch was handed out, so it can begin on the version that there is now.
            state = replace(state, dataset=self._identity, length=len(order), parameters=order.parameters)
        self._progress.serve(order, self._identity)
        self._earlier = self._of = None
        super().load(dataset, state)

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
