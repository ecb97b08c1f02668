"""Random numbers that are a function of seed, epoch and position: the same for any number of workers.

Every saved state of a loader relies on what these functions return for given arguments, so it must never change.
Therefore they use what numpy keeps stable for ever (the raw output of a bit generator), and not what it may improve
(how `numpy.random.Generator` turns that into floats).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np
import numpy.typing as npt

from packtrain._core.keys import mixed

# Philox makes four 64-bit numbers at a time.
_PER_COUNT: Final = 4


def uniforms(key: int, start: int, stop: int, draws: int) -> npt.NDArray[np.float64]:
    """Uniform numbers in [0, 1) for positions `start` to `stop`, float64 [stop - start, draws].

    Philox4x64-10 (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011), as numpy has it: position p
    takes the counters from p * ceil(draws / 4) on, so that its numbers do not depend on the batch it is in.

    Args:
        key: Key in [0, 2**64), from `mixed`. The same key gives the same numbers wherever it is used.
        start: First position, not negative.
        stop: One past the last position.
        draws: How many numbers each position gets.
    """
    counts = -(-draws // _PER_COUNT)
    raw = np.random.Philox(key=key, counter=start * counts).random_raw((stop - start) * counts * _PER_COUNT)
    numbers: npt.NDArray[np.float64] = (raw >> np.uint64(11)).astype(np.float64)
    numbers *= 2.0**-53
    return numbers.reshape(stop - start, counts * _PER_COUNT)[:, :draws]


def seed_all(key: int, position: int) -> None:
    """Seeds `random`, numpy's global generator and torch's default one (not a GPU's) for one sample.

    Each gets a seed of its own: all three are the Mersenne Twister, and with one seed for numpy and torch,
    ``numpy.random.randint(2)`` and ``torch.randint(2, ())`` would always agree.
    """
    # Imported here, because only transforms that are not packtrain's need seeded generators.
    import torch

    random.seed(mixed(key, position, 0))
    np.random.seed(mixed(key, position, 1) & 0xFFFFFFFF)
    torch.default_generator.manual_seed(mixed(key, position, 2))


@contextmanager
def preserved() -> Iterator[None]:
    """Restores the states of `random`, numpy's global generator and torch's default one at the end of the block."""
    import torch

    states = random.getstate(), np.random.get_state(legacy=False), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.default_generator.set_state(states[2])
