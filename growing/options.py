"""Options of filling a cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from packtrain._core.arguments import choice, flag, number
from packtrain._core.errors import UsageError
from packtrain._core.options import FORMATS
from packtrain._core.sizes import byte_count, size

MiB: Final = 1 << 20
_LARGEST: Final = 256 * MiB
_SMALLEST: Final = 64 << 10
_SHARDS: Final = 4
"""Number of shards that fit the headroom, unless the size of a shard is given."""


@dataclass(frozen=True)
class FillOptions:
    """Options of filling a cache.

    Attributes:
        budget: The most bytes that the cache takes on its file system, as in ``"500GiB"``: everything in its folder,
            in allocated blocks.
        headroom: Part of the budget that the newest generation leaves free, so that there is room for new samples as
            soon as no reader needs an older one.
        shard_size: The most bytes that the samples of a shard take, with the container's and the index's share of each,
            as in ``"256MiB"``; None: a fourth of the headroom, at most 256 MiB.
        format: Container format of the shards: ``"tar"``, ``"hdf5"`` or ``"lmdb"``; None: that which the cache has,
            tar for a new one.
        rate: The most bytes to write per second, as in ``"600MB"``; None: as fast as it goes.
        samples_per_insert: The least number of samples that readers take for each one that is written; None: no limit.
        keep_unseen: True to keep each sample until a reader has gone through a generation that holds it.
        budget_bytes: `budget` in bytes.
        shard_bytes: `shard_size` in bytes.
        bytes_per_second: `rate` in bytes per second; None for no limit.

    Raises:
        UsageError: A value is out of its range, or these do not fit together.
    """

    budget: int | str
    headroom: float = 0.2
    shard_size: int | str | None = None
    format: str | None = None
    rate: int | str | None = None
    samples_per_insert: float | None = None
    keep_unseen: bool = False
    budget_bytes: int = field(init=False)
    shard_bytes: int = field(init=False)
    bytes_per_second: int | None = field(init=False)

    def __post_init__(self) -> None:
        set_to = object.__setattr__
        if self.format is not None:
            choice("format", self.format, FORMATS)
        set_to(self, "keep_unseen", flag("keep_unseen", self.keep_unseen))
        set_to(self, "headroom", number("headroom", self.headroom, 0.01, 0.9, "a part of the budget, 0.01 to 0.9"))
        if self.samples_per_insert is not None:
            least = number("samples_per_insert", self.samples_per_insert, 0, 1e9, "a number, at least 0")
            set_to(self, "samples_per_insert", least)
        set_to(self, "bytes_per_second", None if self.rate is None else byte_count("rate", self.rate))
        budget = byte_count("budget", self.budget)
        set_to(self, "budget_bytes", budget)
        fitting = int(budget * self.headroom) // _SHARDS
        shard_size = min(_LARGEST, fitting) if self.shard_size is None else byte_count("shard_size", self.shard_size)
        set_to(self, "shard_bytes", shard_size)
        if shard_size < _SMALLEST or 2 * shard_size > budget * self.headroom:
            raise UsageError(
                f"shard_size={size(shard_size)}: at least {size(_SMALLEST)}, and two shards must fit into the "
                f"headroom, {self.headroom:.0%} of a budget of {size(budget)}. Raise `budget`, or give a smaller "
                "`shard_size`"
            )

    @property
    def generation_bytes(self) -> int:
        """The most bytes of shards that a generation may have."""
        return int(self.budget_bytes * (1 - self.headroom))
