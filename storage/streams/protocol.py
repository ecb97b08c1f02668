"""Messages between the fetcher of a cache and its clients, over ``fetcher.sock``.

Both sides send JSON objects, each on a line. A request names itself in ``do``:

    {"do": "hello", "budget": BYTES, "check": BOOL, "access": DIGEST}
                                                what the cache may take, where the largest budget of all clients counts;
                                                whether each record is compared with its checksum: then chunks may
                                                come in which a few are wrong, and are an error otherwise; and how this
                                                process reads the dataset, by `digest_of_access`
    {"do": "ask", "chunk": N, "suspect": BOOL}  wants a chunk, whose file may be said to be damaged, and a ticket for it
    {"do": "done"}                              gives back the ticket that the last question brought
    {"do": "ahead", "chunks": [N, ...]}         will ask for them soon
    {"do": "read", "job": ID, "reading": {...}, "order": DIGEST or null}
                                                where a rank is, maybe in an order that goes through a part of this
                                                dataset, or others as well, as a file of the cache says (`order_files`)
    {"do": "fill"}                              wants everything, in the order of places
    {"do": "ping"}                              are you there?
    {"do": "state"}                             wants the figures

Answers:

    {"ok": true}                                to hello, fill, and the first read of a connection
    {"chunk": N}                                to ask, once the chunk is there
    {"pong": true}                              to ping
    {"pid": ..., "used": ..., ...}              to state
    {"error": CLASS, "message": TEXT, ...}      to any request
    {"gone": true}                              to no request: chunks have gone, which whoever waits may have mapped

A ticket, a rank and a wish for everything belong to the connection, and end with it. So a client that dies needs nobody
to clean up after it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

from packtrain._core.typed import MOST, Between, Form, Mismatch, parse

from ..remote.urls import Url
from .policy import Reading

_VARIABLES: Final = ("AWS_", "AZURE_", "GOOGLE_")
Count = Annotated[int, Between(0, MOST)]


@dataclass(frozen=True)
class Hello:
    """Gives the budget of the cache, whether this client compares checksums, and `digest_of_access`."""

    budget: Count
    check: bool
    access: str


@dataclass(frozen=True)
class Ask:
    """Wants a chunk, whose file may be damaged if it is `suspect`."""

    chunk: Count
    suspect: bool = False


@dataclass(frozen=True)
class Done:
    """Gives a ticket back."""


@dataclass(frozen=True)
class Ahead:
    """Will ask for chunks soon."""

    chunks: tuple[Count, ...]


@dataclass(frozen=True)
class Read:
    """Gives the position of a rank, and names its order if some chunks of that are parts of the cache's."""

    job: str
    reading: Reading
    order: Annotated[str, Form("[0-9a-f]{32}", "32 hexadecimal digits")] | None = None


@dataclass(frozen=True)
class Fill:
    """Wants everything."""


@dataclass(frozen=True)
class Ping:
    """Wants to know whether the fetcher is there."""


@dataclass(frozen=True)
class State:
    """Wants the figures."""


Request = Hello | Ask | Done | Ahead | Read | Fill | Ping | State
_KINDS: Final[dict[str, type[Request]]] = {
    kind.__name__.lower(): kind for kind in (Hello, Ask, Done, Ahead, Read, Fill, Ping, State)
}


def digest_of_access(url: Url) -> str:
    """Tells processes apart that read from another address, or with other credentials: eight hex digits.

    It does not say what the credentials are.
    """
    named = sorted(item for item in os.environ.items() if item[0].startswith(_VARIABLES))
    return hashlib.sha256(repr((str(url), named)).encode("utf-8", "surrogateescape")).hexdigest()[:8]


def request_line(request: Request) -> bytes:
    """A request as it is sent."""
    return answer_line({"do": type(request).__name__.lower(), **asdict(request)})


def parse_request(line: bytes) -> Request:
    """The request on a line.

    Raises:
        Mismatch: It is not one.
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Mismatch(f"not JSON ({error})") from error
    kind = _KINDS.get(str(found.pop("do", None))) if isinstance(found, dict) else None
    if kind is None:
        raise Mismatch("not a request that is known")
    return parse(kind, found)


def answer_line(answer: Mapping[str, Any]) -> bytes:
    """An answer as it is sent."""
    return json.dumps(answer).encode() + b"\n"


class LineBuffer:
    """Bytes that arrive, as lines."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def __len__(self) -> int:
        """Bytes that no line has been made of."""
        return len(self._rest)

    def add(self, data: bytes) -> None:
        """More bytes have arrived."""
        self._rest += data

    def next(self) -> bytes | None:
        """The next whole line; None if there is none yet."""
        end = self._rest.find(b"\n")
        if end < 0:
            return None
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        return line
