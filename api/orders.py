"""Orders of the rows in an epoch, for `Loader(sampler=...)`."""

from packtrain._readers.loader import BlockShuffled as BlockShuffled
from packtrain._readers.loader import ChunkShuffled as ChunkShuffled
from packtrain._readers.loader import Order as Order
from packtrain._readers.loader import RepeatedAugmentation as RepeatedAugmentation
from packtrain._readers.loader import Sequential as Sequential
from packtrain._readers.loader import Shuffled as Shuffled
from packtrain._readers.loader import Weighted as Weighted

__all__ = [name for name in dir() if not name.startswith("_")]
