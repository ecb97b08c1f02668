"""Ctrl-C is held back for a while, and never for good."""

from __future__ import annotations

import os
import signal
import sys
from itertools import count
from typing import Any

import pytest

from packtrain._core import interrupts
from packtrain._core.interrupts import postponed_ctrl_c


class Exit(Exception):
    """Raised by the handler of another signal."""


def raising_at(event: int) -> Any:
    """A tracer that raises at the n-th instruction of `postponed_ctrl_c` and of what it calls in `signal`."""
    seen = count(1)

    def trace(frame: Any, what: str, _: object) -> Any:
        if frame.f_code.co_filename not in (interrupts.__file__, signal.__file__):
            return None
        frame.f_trace_opcodes = True
        if what == "opcode" and next(seen) == event:
            raise Exit
        return trace

    return trace


def test_whatever_another_signals_handler_raises_wherever_ctrl_c_arrives_again() -> None:
    before = signal.getsignal(signal.SIGINT)
    for event in count(1):
        done = False
        sys.settrace(raising_at(event))
        try:
            with postponed_ctrl_c():
                pass
            done = True
        except Exit:
            pass
        finally:
            sys.settrace(None)
            mask, handler = signal.pthread_sigmask(signal.SIG_BLOCK, ()), signal.getsignal(signal.SIGINT)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            signal.signal(signal.SIGINT, before)
        assert (mask, handler) == (set(), before), event
        if done:
            break
    assert event > 100


def fails_after_ctrl_c(reached: list[str]) -> None:
    with postponed_ctrl_c():
        os.kill(os.getpid(), signal.SIGINT)
        reached.append("the end")
        raise Exit


def test_it_comes_at_the_end_of_the_block_also_if_that_fails() -> None:
    reached: list[str] = []
    with pytest.raises(KeyboardInterrupt) as caught:
        fails_after_ctrl_c(reached)
    assert reached == ["the end"]
    assert isinstance(caught.value.__context__, Exit)
