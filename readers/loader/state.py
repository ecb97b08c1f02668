"""The state of a loader: all that is needed to continue from there, with other workers, batch sizes and ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from packtrain._core.errors import UsageError

from .sampler import SamplerOrder

if TYPE_CHECKING:
    from ..dataset.store import Store

_VERSION = 1


class Chosen(NamedTuple):
    """The generations of growing caches that an epoch goes through.

    Attributes:
        caches: The caches, in the order of the lowest ranks that read them.
        generations: The number of the generation of each, and the number of ranks that read it.
    """

    caches: tuple[str, ...]
    generations: tuple[tuple[int, int], ...]

    @property
    def world_size(self) -> int:
        """Number of ranks that chose them."""
        return sum(ranks for _, ranks in self.generations)

    def number_of(self, cache: str) -> int:
        """The number of a cache's generation."""
        return self.generations[self.caches.index(cache)][0]

    def ranks_of(self, cache: str, world_size: int) -> int:
        """Number of ranks that read a cache, of which there are `world_size` now."""
        return world_size if len(self.caches) == 1 else self.generations[self.caches.index(cache)][1]


@dataclass(frozen=True)
class LoaderState:
    """State of a loader. It is equal on all ranks.

    Attributes:
        seed: Seed of the order and of the random numbers; None as long as it is not known, before the first pass.
        epoch: Number of the epoch, from 0.
        consumed: Number of positions of the epoch that all ranks together have handed out, skipped samples included.
        length: Number of positions in the epoch.
        order: Name of the order's class.
        parameters: What else decides the rows of the order, see `Order.parameters`.
        sampler: What a foreign sampler needs to draw the epoch again, and the world size, which it cannot change; None
            for packtrain's own orders.
        dataset: Which samples the rows are, see `Manifest.identity`; None for a foreign dataset, or if it was not
            recorded. Several caches are joined by ``+``.
        generations: For growing caches, the number of the generation of each that the epoch goes through, and the
            number of ranks that read it; empty as long as none is chosen. None for other datasets.
    """

    seed: int | None
    epoch: int
    consumed: int
    length: int
    order: str
    parameters: Mapping[str, int] = field(default_factory=dict)
    sampler: Mapping[str, Any] | None = None
    dataset: str | None = None
    generations: Sequence[Sequence[int]] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The state as plain numbers and strings, except for what a foreign sampler's own state holds."""
        # An open seed is there, too: what loads a checkpoint into this state must find its name.
        found = {"version": _VERSION, **asdict(self)}
        return {name: value for name, value in found.items() if name == "seed" or (value is not None and value != {})}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Self:
        """The state that `to_dict` returned.

        Raises:
            UsageError: `state` is something else.
        """
        if not isinstance(state, Mapping):
            raise _no_state(f"it is an object of type {type(state).__name__}")
        values = dict(state)
        version = values.pop("version", None)
        if version != _VERSION:
            raise UsageError(f"this is not a loader state that this packtrain can read: version {version!r}, not 1")
        needed = {each.name: each.default is MISSING and each.default_factory is MISSING for each in fields(cls)}
        if missing := [name for name, always in needed.items() if always and name not in values]:
            raise _no_state(f"it has no {', '.join(missing)}")
        if unknown := [name for name in values if name not in needed]:
            raise _no_state(f"it has {', '.join(map(repr, unknown))}, which means nothing to this packtrain")
        found = cls(**values)
        found._check()
        return found

    def _check(self) -> None:
        for name in ("seed", "epoch", "consumed", "length"):
            value = getattr(self, name)
            if name == "seed" and value is None and self.consumed == 0:
                continue
            if type(value) is not int or (name != "seed" and value < 0):
                raise _no_state(f"{name} is {value!r}")
        if not isinstance(self.parameters, Mapping):
            raise _no_state(f"parameters is {self.parameters!r}")
        if not isinstance(self.dataset, str | None):
            raise _no_state(f"dataset is {self.dataset!r}")
        if self.generations is not None and not self._names_generations(self.generations):
            raise _no_state(f"generations is {self.generations!r}")
        if isinstance(self.sampler, Mapping) != (self.order == SamplerOrder.__name__):
            raise _no_state(f"order is {self.order!r}, sampler is {self.sampler!r}")
        if self.consumed > self.length:
            raise _no_state(f"{self.consumed} of {self.length} positions are consumed")

    def _names_generations(self, found: Any) -> bool:
        """True if these are pairs of numbers, one pair for each cache or none at all."""
        if not isinstance(found, (list, tuple)) or len(found) not in (0, str(self.dataset).count("+") + 1):
            return False
        pairs = all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in found)
        return pairs and all(type(number) is int and number >= 0 for pair in found for number in pair)


def _no_state(why: str) -> UsageError:
    return UsageError(f"this is not the state of a loader: {why}")


def identity_of(stores: Sequence[Store]) -> str | None:
    """Return an identifier of the samples in these stores, one store after the other; None without stores."""
    return "+".join(store.identity for store in stores) or None
