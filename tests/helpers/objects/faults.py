"""Faults between a client and an object store, as data: which fault, and which request gets it."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, TypeAlias


@dataclass(frozen=True)
class Status:
    """The answer is an error.

    Attributes:
        code: Its status, as 500, or 503 for a store that is too busy.
        text: What it says.
        name: The store's own code for it; empty for one that goes with the status.
        done: True if the server has done what it was asked; otherwise it is not asked.
    """

    code: int
    text: str = "Injected."
    name: str = ""
    done: bool = False


@dataclass(frozen=True)
class Reset:
    """The connection is reset.

    Attributes:
        after: When so many bytes of the answer's body have been sent; below 1, such a part of it; None: as soon as the
            request's head has arrived, before the server is asked. With 0, the server does what it is asked, but the
            client never hears of it.
    """

    after: float | None = None


@dataclass(frozen=True)
class Stall:
    """Nothing comes for a while.

    Attributes:
        seconds: How long; after that, the answer goes on.
        after: When so many bytes of the body have been sent; None: before the server is asked, see `Reset`.
    """

    seconds: float
    after: float | None = None


@dataclass(frozen=True)
class Truncate:
    """The body ends early.

    Attributes:
        after: After so many bytes, see `Reset`.
        admit: True if Content-Length says so, and the connection lives on; otherwise the head announces the whole body,
            and the connection is closed.
    """

    after: float = 0.5
    admit: bool = False


@dataclass(frozen=True)
class Corrupt:
    """One byte of the body is another.

    Attributes:
        at: Its place, see `Reset`.
    """

    at: float = 0.5


@dataclass(frozen=True)
class Shift:
    """The body is that of another range: it is rotated by some bytes.

    Attributes:
        by: How many bytes.
        admit: True if Content-Range names the other range.
    """

    by: int = 1
    admit: bool = False


@dataclass(frozen=True)
class Whole:
    """The range is ignored: the answer is the whole object, with status 200.

    Not in front of a server that checks signatures: they cover the range.
    """


@dataclass(frozen=True)
class Unconditional:
    """The condition ``If-None-Match`` is ignored.

    Not in front of a server that checks signatures: they cover the condition.
    """


@dataclass(frozen=True)
class Kill:
    """The process that asks is killed by SIGKILL, and is not answered.

    Attributes:
        pid: The process.
        done: True if the server has done what it was asked; otherwise it is not asked.
    """

    pid: int
    done: bool = False


Fault: TypeAlias = Status | Reset | Stall | Truncate | Corrupt | Shift | Whole | Unconditional | Kill
SLOW_DOWN: Final = Status(503)


@dataclass(frozen=True)
class Request:
    """The facts that a fault may depend on.

    Attributes:
        method: Its method.
        path: Its path, decoded, without the query.
        range: Its Range header; empty if it has none.
    """

    method: str
    path: str
    range: str = ""


@dataclass(frozen=True)
class Rule:
    """A fault for certain requests.

    Attributes:
        fault: What happens to them.
        method: Only requests with this method; empty for all.
        holds: Only requests whose path holds this.
        skip: So many of them do not get it.
        times: So many of them get it after that; None: all.
    """

    fault: Fault
    method: str = "GET"
    holds: str = ""
    skip: int = 0
    times: int | None = 1

    def covers(self, request: Request) -> bool:
        """True if a request is one of those that this is about."""
        return self.method in ("", request.method) and self.holds in request.path


@dataclass(frozen=True)
class Chances:
    """Faults by chance. The same requests get the same faults, in whatever order they come.

    Attributes:
        seed: Chooses them.
        faults: Pairs of a fault and its probability.
        method: Only requests with this method; empty for all.
        most: So many requests for the same thing may get a fault; the next one passes. None: no such limit.
    """

    seed: int
    faults: tuple[tuple[Fault, float], ...]
    method: str = "GET"
    most: int | None = 3

    def draw(self, request: Request, earlier: int) -> Fault | None:
        """The fault for a request, which was made so many times before; None to let it pass."""
        if self.method not in ("", request.method) or (self.most is not None and earlier >= self.most):
            return None
        text = f"{self.seed}\n{request.method}\n{request.path}\n{request.range}\n{earlier}"
        number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") / 2**64
        for fault, probability in self.faults:
            number -= probability
            if number < 0:
                return fault
        return None


@dataclass
class Script:
    """Decides for each request which fault it gets: by the first rule that has one for it, or else by chance."""

    rules: tuple[Rule, ...] = ()
    chances: Chances | None = None
    _covered: Counter[int] = field(default_factory=Counter, init=False)
    _seen: Counter[Request] = field(default_factory=Counter, init=False)

    def decide(self, request: Request) -> Fault | None:
        """The fault for the next request. To be called by one thread at a time."""
        self._covered.update(number for number, rule in enumerate(self.rules) if rule.covers(request))
        self._seen[request] += 1
        for number, rule in enumerate(self.rules):
            place = self._covered[number] - rule.skip
            if rule.covers(request) and place > 0 and (rule.times is None or place <= rule.times):
                return rule.fault
        return self.chances.draw(request, self._seen[request] - 1) if self.chances else None


def place(after: float, size: int) -> int:
    """The place that `after` means in a body of this size, see `Reset`."""
    return min(int(after * size) if after < 1 else int(after), size)
