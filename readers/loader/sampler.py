"""Any torch Sampler as an order: each epoch is drawn once, and once more when it is resumed."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from packtrain._core.errors import UsageError
from packtrain._core.keys import mixed
from packtrain._core.overriding import override

from .order import Order, check_range, checksum
from .randomness import preserved, seed_all

_SEED: Final = 0x73616D706C6572
# A sampler that yields more than this and more than 100 times the dataset is considered endless.
_ENDLESS: Final = 10_000_000


class SamplerOrder(Order):
    """The rows that a sampler yields: those of this rank, as in torch's DataLoader.

    `begin` draws a whole epoch. Before that it seeds `random`, numpy's global generator and torch's default one with
    the epoch's key, and afterwards it restores them. So RandomSampler and the like draw the same rows in every process
    and after a restart.

    Args:
        sampler: A torch Sampler, or any iterable of integers that can be iterated more than once. Its `set_epoch`,
            `state_dict` and `load_state_dict` are used if it has them.
        rows: Number of rows in the dataset.

    Raises:
        UsageError: The sampler is not iterable, or can be iterated only once.
    """

    def __init__(self, sampler: Iterable[Any], rows: int) -> None:
        if not hasattr(sampler, "__iter__") and not hasattr(sampler, "__getitem__"):
            raise UsageError(f"a sampler must be iterable; an object of type {type(sampler).__name__} is not")
        if isinstance(sampler, Iterator):
            raise UsageError(
                f"an object of type {type(sampler).__name__} can be iterated only once, but every epoch iterates the "
                "sampler: give a list, or an object with __iter__"
            )
        self._sampler: Final[Any] = sampler
        self._count: Final = rows
        self._key: int | None = None
        self._drawn: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._before: Any = None

    def __len__(self) -> int:
        """Number of rows in the epoch that was begun; before that, the length of the sampler.

        Raises:
            TypeError: No epoch was begun, and the sampler has no length.
        """
        if self._key is not None:
            return len(self._drawn)
        if not isinstance(self._sampler, Sized):
            raise TypeError(f"{type(self._sampler).__name__} has no length before an epoch is begun")
        return len(self._sampler)

    def begin(self, key: int, epoch: int) -> None:
        """Draws the rows of an epoch.

        Args:
            key: Key of the epoch; seeds the generators that the sampler draws from.
            epoch: Number of the epoch, for the sampler's `set_epoch`.

        Raises:
            UsageError: The sampler yields something that is not a row of the dataset, or does not end.
        """
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)
        self._before = copy.deepcopy(self._sampler.state_dict()) if self._has_state else None
        with preserved():
            seed_all(mixed(key, _SEED), 0)
            self._drawn = np.fromiter(self._checked(), np.int64)
        self._key = key

    @override
    def rows(self, key: int, start: int, stop: int) -> npt.NDArray[np.int64]:
        if key != self._key:
            raise UsageError("the rows of a sampler are known only for the epoch that was begun")
        check_range(self, start, stop)
        return self._drawn[start:stop].copy()

    def state(self) -> dict[str, Any]:
        """Return what `resume` needs to draw the epoch again that was begun.

        Returns:
            Number and checksum of the rows drawn as ``"samples"`` and ``"crc32c"``; the number is None if no epoch was
            begun. If the sampler has a state of its own, also that from before the draw as ``"sampler"``. Plain
            numbers, except for what that state holds.
        """
        drawn = self._key is not None
        before = self._before if drawn or not self._has_state else self._sampler.state_dict()
        own = {} if before is None else {"sampler": copy.deepcopy(before)}
        return {
            **({"samples": len(self._drawn), "crc32c": checksum(self._drawn)} if drawn else {"samples": None}),
            **own,
        }

    def resume(self, key: int, epoch: int, state: Mapping[str, Any]) -> None:
        """Draws the epoch again that `state` was taken from; otherwise like `begin`.

        Raises:
            UsageError: The sampler drew other rows than then, or `begin` fails.
        """
        # The state was taken before an epoch was begun.
        untouched = state.get("samples", 0) is None
        if self._has_state and "sampler" in state:
            self._sampler.load_state_dict(copy.deepcopy(state["sampler"]))
            self.begin(key, epoch)
            if untouched or self._drew(state):
                return
        # Also for samplers whose state says how far they have come: one from the end of an epoch would yield no rows.
        self.begin(key, epoch)
        if not (untouched or self._drew(state)):
            raise UsageError(
                f"{type(self._sampler).__name__} did not draw epoch {epoch} again as it was when the state was saved "
                f"({state.get('samples')} rows then, {len(self._drawn)} now), so rows would be repeated or left out. "
                "Either the dataset, the sampler or the world size changed, or the sampler has a generator of its own: "
                "remove that generator, seed it in set_epoch, or give the sampler state_dict and load_state_dict. "
                "packtrain's own Shuffled and Weighted always resume exactly"
            )

    @property
    def _has_state(self) -> bool:
        return hasattr(self._sampler, "state_dict") and hasattr(self._sampler, "load_state_dict")

    def _checked(self) -> Iterator[int]:
        name, rows, most = type(self._sampler).__name__, self._count, max(_ENDLESS, 100 * self._count)
        for position, value in enumerate(self._sampler):
            try:
                row = operator.index(value)
            except TypeError:
                raise UsageError(
                    f"{name} yields an object of type {type(value).__name__} at position {position}, where an integer "
                    "was expected. In place of a batch sampler, give the sampler inside it and batch_size"
                ) from None
            if not 0 <= row < rows:
                raise UsageError(f"{name} yields {row} at position {position}, the dataset has rows 0 to {rows - 1}")
            if position == most:
                raise UsageError(f"{name} yields more than {most} rows in an epoch: make it end, with itertools.islice")
            yield row

    def _drew(self, state: Mapping[str, Any]) -> bool:
        # A state from another rank comes without the checksum, because that rank had other rows.
        return state.get("samples") == len(self._drawn) and state.get("crc32c") in (None, checksum(self._drawn))
