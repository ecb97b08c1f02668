"""Comparisons of samples from two distributions, with limits that equal ones exceed with a stated probability."""

from __future__ import annotations

import math
from statistics import NormalDist


def kolmogorov_smirnov_limit(left: int, right: int, probability: float) -> float:
    """The distance that equal distributions reach with `probability` at most (Smirnov; less for discrete ones)."""
    return math.sqrt(-math.log(probability / 2) / 2) * math.sqrt((left + right) / (left * right))


def chi_square_limit(freedom: int, probability: float) -> float:
    """The quantile that is exceeded with `probability` (Wilson and Hilferty)."""
    normal = NormalDist().inv_cdf(1 - probability)
    share = 2 / (9 * freedom)
    return float(freedom * (1 - share + normal * math.sqrt(share)) ** 3)
