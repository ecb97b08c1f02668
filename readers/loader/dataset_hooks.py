"""Functions that a loader calls, in the course of an epoch, for a dataset that changes or has to be fetched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from packtrain._core.errors import UsageError

from .engine import Job
from .progress import Progress
from .ranks import World
from .state import LoaderState


class DatasetHooks:
    """Functions that a loader calls for its dataset. For a dataset that stays as it is, they do nothing.

    Args:
        progress: How far the loader is.
        dataset: The dataset.
    """

    def __init__(self, progress: Progress, dataset: Any) -> None:
        self._progress: Final = progress

    def begin(self, dataset: Any) -> None:
        """Chooses what an epoch goes through, as its first pass begins. All ranks must call this together."""

    def pin(self, dataset: Any) -> Any:
        """Lets the dataset have what the present epoch goes through, and returns it; or what stands for it."""
        return dataset

    def fit(self, dataset: Any) -> None:
        """Takes the order for what the dataset has, as long as no pass of the epoch has begun."""

    def load(self, dataset: Any, state: LoaderState) -> None:
        """Goes to a state; see `Loader.load_state_dict` for what is raised."""
        if state.generations is not None:
            raise UsageError(
                "the state was saved with a growing cache, and says which generation its epoch went through; this "
                "loader has a dataset that stays as it is"
            )
        self._progress.load(state)

    def keep(self, dataset: Any) -> None:
        """Keeps what a state names."""

    def jobs(self, jobs: Iterator[Job], world: World) -> Iterator[Job]:
        """Sees what is to be made in a pass, as it is about to be made."""
        return jobs

    def count(self, samples: int) -> None:
        """Counts samples that are handed out."""

    def finish(self) -> None:
        """Says that an epoch was handed out to its end."""

    def close(self) -> None:
        """Says that nothing more is handed out."""
