"""Batches for a training loop: `Loader`, and the orders in which it can go through a dataset.

A batch goes by five names on its way from the order to the consumer:

- `schedule.Step`: the positions of the epoch that this rank takes in one training step.
- `engine.Job`: a batch to be made: the positions, the rows that the order puts there, and the key of the random
  numbers.
- `worker.Ticket`: a job as one message to the worker processes. The rows lie in the slot of the arena that it names.
- `batches.Made`: the result of a job, which is also what a worker sends back: how many samples, what was left out, or
  an error. The images and labels lie in the slot; texts and the like, whose size differs, follow as a `blob`.
- `engine.Batch`: job, result and content in one. An engine fills it with arrays, and a transfer (`device`) turns these
  into what the consumer gets, on its device and postprocessed.

readers/README.md tells which function does what on this way.
"""

from .chunk_shuffled import ChunkShuffled
from .loader import Loader
from .order import BlockShuffled, Order, RepeatedAugmentation, Sequential, Shuffled, Weighted
from .ragged import Ragged

__all__ = [
    "BlockShuffled",
    "ChunkShuffled",
    "Loader",
    "Order",
    "Ragged",
    "RepeatedAugmentation",
    "Sequential",
    "Shuffled",
    "Weighted",
]
