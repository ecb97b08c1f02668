"""Orders of the rows in an epoch, for `Loader(sampler=...)`."""

from packtrain._readers.loader import (
    BlockShuffled,
    ChunkShuffled,
    Order,
    RepeatedAugmentation,
    Sequential,
    Shuffled,
    Weighted,
)

__all__ = [
    "BlockShuffled",
    "ChunkShuffled",
    "Order",
    "RepeatedAugmentation",
    "Sequential",
    "Shuffled",
    "Weighted",
]
