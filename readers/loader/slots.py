"""Free slots of an arena, and slots that the consumer has.

A slot that was handed out is free again when none of its arrays is alive, nor anything made from them, and when a
device that reads it has done its work. A forked process has the arrays, too, if they were alive when it was forked. So
these slots stay taken until that process and all that descend from it have ended.
"""

from __future__ import annotations

import os
import select
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from .arena import Arena, Arrays


class Event(Protocol):
    """The part of `torch.cuda.Event` that is needed: it is done when all work before it is done."""

    def query(self) -> bool:
        """True if it is done."""

    def synchronize(self) -> None:
        """Waits until it is done."""


class Slots:
    """Free and lent slots of an arena. Only for the process that made the arena.

    Args:
        arena: The arena.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._free: deque[int] = deque(range(arena.slots))
        self._events: list[deque[Event]] = [deque() for _ in range(arena.slots)]
        self._lent: dict[int, _Lent] = {}
        # Filled when the last array of a slot dies, which can happen in any thread and between any two instructions.
        # So no line of Python may be needed to fill it: an interrupt could stop that.
        self._returned: deque[_Lent] = deque()
        self._forking = 0
        """Number of threads that are about to fork."""
        self._shared: list[tuple[_Family | None, set[int]]] = []
        """The slots that were lent when a process was forked; None: it counts as living for ever."""
        _all[id(self)] = self

    def __len__(self) -> int:
        """Number of slots that are neither taken, nor lent, nor shared. A device may still be reading some of them."""
        returned = 0 if self._forking else len(self._returned)
        self._shared = [(family, slots) for family, slots in self._shared if family is None or family.lives()]
        for _ in range(returned):
            lent = self._returned.popleft()
            if any(lent.number in slots for _, slots in self._shared):
                self._returned.append(lent)
            else:
                del self._lent[lent.number]
                self._free.append(lent.number)
        return len(self._free)

    def take(self) -> int | None:
        """Takes a free slot that no device is reading; None if there is none."""
        for _ in range(len(self)):
            number = self._free.popleft()
            events = self._events[number]
            while events and events[0].query():
                events.popleft()
            if not events:
                return number
            self._free.append(number)
        return None

    def wait(self) -> None:
        """Waits until no device is reading the slot that has been free for longest."""
        events = self._events[self._free[0]]
        while events:
            events[0].synchronize()
            events.popleft()

    def give_back(self, number: int) -> None:
        """Makes a taken slot free again."""
        self._free.append(number)

    def lend(self, number: int) -> tuple[Arrays, Callable[[Event], None]]:
        """Lends a taken slot to the consumer, until none of its arrays is alive, nor anything made of them.

        Returns:
            The fields as arrays [batch_size, ...]. And a function that takes an event before which the slot must not
            be written again either; it must be called while an array is alive.
        """
        buffer = self._arena.slot(number)
        self._lent[number] = _Lent(buffer, self._returned.append)
        self._lent[number].number = number
        return self._arena.layout.arrays(buffer), self._events[number].append

    def retire(self) -> bool:
        """Gives the memory of all free slots back, for a consumer who only holds batches of before.

        Returns:
            True if that was the last of the arena; False if this must be called again later.
        """
        while (number := self.take()) is not None:
            self._arena.clear(number)
        if self._lent or self._free:
            return False
        self._arena.give_back()
        return True

    def begin_fork(self) -> list[_Lent]:
        """Keeps slots from becoming free. Returns the loans that have ended already, which need no more care."""
        self._forking += 1
        return [lent for lent in list(self._lent.values()) if lent() is None]

    def end_fork(self, ended: list[_Lent], family: _Family | None) -> None:
        """Slots may become free again, but those that are lent now not before the family has ended."""
        numbers = {lent.number for lent in list(self._lent.values()) if not any(lent is other for other in ended)}
        if numbers:
            self._shared.append((family, numbers))
        self._forking -= 1


class _Lent(weakref.ref[Any]):
    """Refers to the bytes of a lent slot, not to one of the arrays over them."""

    number: int


class _Family:
    """A process that is forked, with all that descend from it: tells whether any of them lives.

    They hold one end of a pipe. A program that they execute does not: it has none of the parent's memory either.
    """

    def __init__(self) -> None:
        self._ours, self._theirs = os.pipe()
        self._poll = select.poll()
        self._poll.register(self._ours, 0)

    def forked(self) -> None:
        """Called in the parent."""
        os.close(self._theirs)
        weakref.finalize(self, os.close, self._ours)

    def join(self) -> None:
        """Called in the child, which keeps its end as long as it lives."""
        os.close(self._ours)

    def lives(self) -> bool:
        """True if any of the processes lives. Only for the parent."""
        return not self._poll.poll(0)


class _Fork(threading.local):
    """A fork under way in this thread."""

    own = False
    """True for a worker, which reads nothing that was handed out."""
    slots: Sequence[tuple[Slots, list[_Lent]]] = ()
    """All slots that there are, and their loans that have ended."""
    family: _Family | None = None
    """The process that is forked; None: there was no descriptor left to watch it with."""


_all: weakref.WeakValueDictionary[int, Slots] = weakref.WeakValueDictionary()
_fork = _Fork()


@contextmanager
def forking_worker() -> Iterator[None]:
    """Processes that this thread forks in the block do not keep slots from becoming free."""
    _fork.own = True
    try:
        yield
    finally:
        _fork.own = False


def _before_fork() -> None:
    found = [slots for reference in _all.valuerefs() if (slots := reference()) is not None]
    if _fork.own or not found:
        return
    try:
        _fork.family = _Family()
    except OSError:
        _fork.family = None
    _fork.slots = [(slots, slots.begin_fork()) for slots in found]


def _after_fork_in_parent() -> None:
    if not _fork.slots:
        return
    if _fork.family is not None:
        _fork.family.forked()
    for slots, ended in _fork.slots:
        slots.end_fork(ended, _fork.family)
    _fork.slots = ()


def _after_fork_in_child() -> None:
    if _fork.slots and _fork.family is not None:
        _fork.family.join()
    # They are the parent's.
    _all.clear()
    _fork.slots, _fork.own = (), False


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
