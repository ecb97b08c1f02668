"""What `tune` is asked for is checked when it is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from packtrain import TuneOptions, watch
from packtrain.errors import UsageError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seconds": "x"}, "seconds='x': expected seconds, from 1 to a million"),
        ({"seconds": 0.5}, "seconds=0.5: expected seconds, from 1 to a million"),
        ({"consumer_ms": float("nan")}, "consumer_ms=nan: expected milliseconds"),
        ({"batch_size": 1.5}, "batch_size=1.5: expected a whole number from 1"),
        ({"max_workers": -1}, "max_workers=-1: expected a whole number from 0"),
        ({"transform": 3}, "transform=3: expected a str"),
    ],
)
def test_a_value_of_the_wrong_type_or_out_of_range_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TuneOptions(**options)


def test_what_cannot_be_iterated_cannot_be_watched() -> None:
    loader: Any = 3
    with pytest.raises(UsageError, match="loader=3: expected a DataLoader"):
        watch(loader)
