"""DALI's threads do not live on in a forked process, where ending a pipeline would wait for them for ever."""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any

_pipelines: weakref.WeakSet[Any] = weakref.WeakSet()


def left_alone_by_children(pipeline: Any) -> Any:
    """The pipeline of DALI's, which processes that are forked from this one will neither use nor end."""
    _pipelines.add(pipeline)
    return pipeline


def _leave_alone() -> None:
    for pipeline in _pipelines:
        # A reference that nobody gives back: it is not ended at the end of the process either.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(pipeline._pipe))
        pipeline._pipe = None
    _pipelines.clear()


os.register_at_fork(after_in_child=_leave_alone)
