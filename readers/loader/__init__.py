"""Batches for a training loop: `Loader`, and the orders in which it can go through a dataset."""

from .loader import Loader
from .order import BlockShuffled, Order, Sequential, Shuffled, Weighted

__all__ = ["BlockShuffled", "Loader", "Order", "Sequential", "Shuffled", "Weighted"]
