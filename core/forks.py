"""Lets objects act first in a forked process, where each is a copy of the parent's."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, Final

_methods: Final = set[weakref.WeakMethod[Any]]()


def call_in_forked(method: Callable[[], None]) -> None:
    """Call a bound method in each process that is forked from this one, as long as its object lives."""
    _methods.add(weakref.WeakMethod(method, _methods.discard))


def _after_fork() -> None:
    for reference in list(_methods):
        if (method := reference()) is not None:
            method()


os.register_at_fork(after_in_child=_after_fork)
