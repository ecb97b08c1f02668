"""Laws of checks: what is right comes back in one form, everything else is named together with what was expected."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from packtrain._core import arguments
from packtrain.errors import UsageError

# As callers without a type checker see it.
unchecked: Any = arguments


def test_what_is_right_comes_back_as_pythons_own() -> None:
    for value in (3, np.int8(3), np.uint64(3), torch.tensor(3)):
        found = unchecked.whole("n", value)
        assert (type(found), found) == (int, 3)
    for truth in (True, np.bool_(True)):
        assert unchecked.flag("f", truth) is True
    for share in (1, 0.5, np.float32(0.5), torch.tensor(0.5)):
        assert type(unchecked.number("p", share, 0, 1, "a share")) is float
    assert unchecked.choice("c", "b", "ab") == "b"
    assert unchecked.function("g", len) is len and unchecked.function("g", None) is None
    assert unchecked.items("l", (1, 2), "a list") == [1, 2]


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: unchecked.whole("n", True), "n=True: expected a whole number"),
        (lambda: unchecked.whole("n", 2.0), "n=2.0: expected a whole number"),
        (lambda: unchecked.whole("n", "2", 1), "n='2': expected a whole number, at least 1"),
        (lambda: unchecked.whole("n", 0, 1), "n=0: expected a whole number, at least 1"),
        (lambda: unchecked.whole("n", None), "n=None: expected a whole number"),
        (lambda: unchecked.flag("f", 1), "f=1: expected True or False"),
        (lambda: unchecked.flag("f", "no"), "f='no': expected True or False"),
        (lambda: unchecked.number("p", "0.5", 0, 1, "a share"), "p='0.5': expected a share"),
        (lambda: unchecked.number("p", float("nan"), 0, 1, "a share"), "p=nan: expected a share"),
        (lambda: unchecked.number("p", None, 0, 1, "a share"), "p=None: expected a share"),
        (
            lambda: unchecked.choice("c", "tra", ["tar", "lmdb"]),
            "c='tra': expected one of tar, lmdb; did you mean 'tar'?",
        ),
        (lambda: unchecked.choice("c", ["tar"], ["tar"]), "c=['tar']: expected one of tar"),
        (lambda: unchecked.function("g", 3), "g=3: expected a function"),
        (lambda: unchecked.items("l", "ab", "a list"), "l='ab': expected a list"),
        (lambda: unchecked.items("l", 3, "a list"), "l=3: expected a list"),
        (
            lambda: unchecked.refuse_unknown("open", ["pth"], ["path"]),
            "open has no argument 'pth'; did you mean 'path'?",
        ),
        (lambda: unchecked.whole("n", [0] * 1000), "... (an object of type list): expected a whole number"),
    ],
)
def test_what_is_wrong_is_named(check: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message) + "$") as caught:
        check()
    assert len(str(caught.value)) < 200
