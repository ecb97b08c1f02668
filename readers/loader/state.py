"""Where a loader is: all that it takes to go on from there, with other workers, batches and ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from packtrain._core.errors import UsageError

from .sampler import SamplerOrder

_VERSION = 1


@dataclass(frozen=True)
class LoaderState:
    """Where a loader is, equal on all ranks.

    Attributes:
        seed: Of order and random numbers.
        epoch: From 0.
        consumed: Positions of the epoch that were handed out, by all ranks together, skipped samples included.
        length: Positions in the epoch.
        order: What kind of order it is.
        sampler: What a foreign sampler needs to draw the epoch again, and the world size, to which it is bound.
    """

    seed: int
    epoch: int
    consumed: int
    length: int
    order: str
    sampler: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers and strings, apart from what a foreign sampler's own state holds."""
        fields = {"version": _VERSION, **asdict(self)}
        return {name: value for name, value in fields.items() if value is not None}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Self:
        """What `to_dict` returned.

        Raises:
            UsageError: It is something else.
        """
        if not isinstance(state, Mapping):
            raise UsageError(f"this is no state of a loader: a {type(state).__name__}")
        fields = dict(state)
        version = fields.pop("version", None)
        if version != _VERSION:
            raise UsageError(f"this is no state of a loader that this packtrain knows: version {version!r}, not 1")
        try:
            found = cls(**fields)
        except TypeError as error:
            raise UsageError(f"this is no state of a loader: {error}") from error
        for name in ("seed", "epoch", "consumed", "length"):
            value = fields[name]
            if type(value) is not int or (name != "seed" and value < 0):
                raise UsageError(f"this is no state of a loader: {name} is {value!r}")
        if isinstance(found.sampler, Mapping) != (found.order == SamplerOrder.__name__):
            raise UsageError(f"this is no state of a loader: order is {found.order!r}, sampler is {found.sampler!r}")
        if found.consumed > found.length:
            raise UsageError(f"this is no state of a loader: {found.consumed} of {found.length} positions are consumed")
        return found
