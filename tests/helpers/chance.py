"""Comparisons of samples from two distributions, with limits that equal ones exceed with a stated probability."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt


def kolmogorov_smirnov(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> float:
    """The largest distance of the two samples' distribution functions."""
    values = np.concatenate([left, right])
    below = [np.searchsorted(np.sort(sample), values, "right") / len(sample) for sample in (left, right)]
    return float(np.abs(below[0] - below[1]).max())


def kolmogorov_smirnov_limit(left: int, right: int, probability: float) -> float:
    """The distance that equal distributions reach with `probability` at most (Smirnov; less for discrete ones)."""
    return math.sqrt(-math.log(probability / 2) / 2) * math.sqrt((left + right) / (left * right))


def chi_square(
    left: Iterable[Hashable], right: Iterable[Hashable], *, rare_together: bool = False
) -> tuple[float, int]:
    """Pearson's statistic of homogeneity of two samples of categories, and its degrees of freedom.

    With `rare_together`, categories of which fewer than 20 were seen count as one, or are left out if even together
    they are too few.
    """
    counts = [Counter(left), Counter(right)]
    kinds = sorted(counts[0] | counts[1], key=repr)
    table = np.array([[count[kind] for kind in kinds] for count in counts], float)
    if rare_together:
        common = table.sum(axis=0) >= 20
        rare = table[:, ~common].sum(axis=1, keepdims=True)
        table = np.hstack([table[:, common], rare]) if rare.sum() >= 40 else table[:, common]
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0) / table.sum()
    assert expected.min() >= 5, "too few for the statistic's limit to hold"
    return float(((table - expected) ** 2 / expected).sum()), table.shape[1] - 1


def chi_square_limit(freedom: int, probability: float) -> float:
    """The quantile that is exceeded with `probability` (Wilson and Hilferty)."""
    normal = NormalDist().inv_cdf(1 - probability)
    share = 2 / (9 * freedom)
    return float(freedom * (1 - share + normal * math.sqrt(share)) ** 3)
