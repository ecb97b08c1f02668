"""Laws of checks: what is right comes back in one form, everything else is named together with what was expected."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from packtrain._core.arguments import choice, flag, function, items, number, refuse_unknown, whole
from packtrain.errors import UsageError


def test_what_is_right_comes_back_as_pythons_own() -> None:
    for value in (3, np.int8(3), np.uint64(3), torch.tensor(3)):
        found = whole("n", value)  # type: ignore[arg-type]
        assert (type(found), found) == (int, 3)
    for truth in (True, np.bool_(True)):
        assert flag("f", truth) is True  # type: ignore[arg-type]
    for share in (1, 0.5, np.float32(0.5), torch.tensor(0.5)):
        assert type(number("p", share, 0, 1, "a share")) is float  # type: ignore[arg-type]
    assert choice("c", "b", "ab") == "b"
    assert function("g", len) is len and function("g", None) is None
    assert items("l", (1, 2), "a list") == [1, 2]


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: whole("n", True), "n=True: expected a whole number"),
        (lambda: whole("n", 2.0), "n=2.0: expected a whole number"),
        (lambda: whole("n", "2", 1), "n='2': expected a whole number, at least 1"),
        (lambda: whole("n", 0, 1), "n=0: expected a whole number, at least 1"),
        (lambda: whole("n", None), "n=None: expected a whole number"),
        (lambda: flag("f", 1), "f=1: expected True or False"),
        (lambda: flag("f", "no"), "f='no': expected True or False"),
        (lambda: number("p", "0.5", 0, 1, "a share"), "p='0.5': expected a share"),
        (lambda: number("p", float("nan"), 0, 1, "a share"), "p=nan: expected a share"),
        (lambda: number("p", None, 0, 1, "a share"), "p=None: expected a share"),
        (lambda: choice("c", "tra", ["tar", "lmdb"]), "c='tra': expected one of tar, lmdb; did you mean 'tar'?"),
        (lambda: choice("c", ["tar"], ["tar"]), "c=['tar']: expected one of tar"),
        (lambda: function("g", 3), "g=3: expected a function"),
        (lambda: items("l", "ab", "a list"), "l='ab': expected a list"),
        (lambda: items("l", 3, "a list"), "l=3: expected a list"),
        (lambda: refuse_unknown("open", ["pth"], ["path"]), "open has no argument 'pth'; did you mean 'path'?"),
        (lambda: whole("n", [0] * 1000), "... (an object of type list): expected a whole number"),
    ],
)
def test_what_is_wrong_is_named(check: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message) + "$") as caught:
        check()
    assert len(str(caught.value)) < 200
