"""The state of a loader: all that is needed to continue from there, with other workers, batch sizes and ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from packtrain._core.errors import UsageError

from .sampler import SamplerOrder

_VERSION = 1


@dataclass(frozen=True)
class LoaderState:
    """Where a loader is. The same on all ranks.

    Attributes:
        seed: Seed of the order and of the random numbers.
        epoch: Number of the epoch, from 0.
        consumed: Number of positions of the epoch that all ranks together have handed out, skipped samples included.
        length: Number of positions in the epoch.
        order: Name of the order's class.
        sampler: What a foreign sampler needs to draw the epoch again, and the world size, which it cannot change; None
            for packtrain's own orders.
    """

    seed: int
    epoch: int
    consumed: int
    length: int
    order: str
    sampler: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The state as plain numbers and strings, except for what a foreign sampler's own state holds."""
        fields = {"version": _VERSION, **asdict(self)}
        return {name: value for name, value in fields.items() if value is not None}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Self:
        """The state that `to_dict` returned.

        Raises:
            UsageError: `state` is something else.
        """
        if not isinstance(state, Mapping):
            raise UsageError(f"this is not the state of a loader: it is an object of type {type(state).__name__}")
        fields = dict(state)
        version = fields.pop("version", None)
        if version != _VERSION:
            raise UsageError(f"this is not a loader state that this packtrain can read: version {version!r}, not 1")
        try:
            found = cls(**fields)
        except TypeError as error:
            raise UsageError(f"this is not the state of a loader: {error}") from error
        for name in ("seed", "epoch", "consumed", "length"):
            value = fields[name]
            if type(value) is not int or (name != "seed" and value < 0):
                raise UsageError(f"this is not the state of a loader: {name} is {value!r}")
        if isinstance(found.sampler, Mapping) != (found.order == SamplerOrder.__name__):
            raise UsageError(
                f"this is not the state of a loader: order is {found.order!r}, sampler is {found.sampler!r}"
            )
        if found.consumed > found.length:
            raise UsageError(
                f"this is not the state of a loader: {found.consumed} of {found.length} positions are consumed"
            )
        return found
