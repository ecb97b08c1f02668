"""Serves a dataset as a page to one browser on this machine.

What a stranger may have written stays text: the page gets it as JSON and never makes markup of it, images are drawn
anew, and the page may load nothing but its own two files. Who does not know the address, which holds a secret, gets
nothing; neither do other sites that the browser has open, whatever name they give this machine.
"""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import parse_qs, urlsplit

from packtrain._core.errors import PacktrainError, UsageError
from packtrain._core.overriding import override
from packtrain._core.printable import one_line, printable
from packtrain._readers.dataset.pictures import stored_texts

from .looker import Looker
from .pages import Page, Pages
from .sheet import tile

HOST: Final = "127.0.0.1"
_FILES: Final = {
    "": ("page.html", "text/html; charset=utf-8"),
    "page.css": ("page.css", "text/css; charset=utf-8"),
    "page.js": ("page.js", "text/javascript; charset=utf-8"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
}
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_SECONDS: Final = 0.15
"""Seconds that a search takes before it says how far it has come."""
_MOST_ROWS: Final = 200
_SIDES: Final = (16, 2048)
_MOST: Final = 10**18


class _MissingError(Exception):
    """There is nothing at this address."""


@dataclass(frozen=True)
class View:
    """The dataset that is served, and its options.

    Attributes:
        looker: Makes the pictures.
        pages: The rows.
    """

    looker: Looker
    pages: Pages

    def about(self) -> dict[str, Any]:
        """Return what the page must know before it shows rows."""
        schema, looker = self.looker.rows.schema, self.looker
        return {
            "name": one_line(looker.rows.name),
            "rows": len(self.pages),
            "total": len(looker.rows),
            "pixels": any(field.has_pixels for field in schema.fields),
            "overlays": looker.overlays,
            "boxes": looker.boxes,
            "transform": one_line(looker.transform) if looker.transforms else None,
            "note": None if looker.note is None else printable(looker.note),
        }

    def rows(self, arguments: Arguments) -> dict[str, Any]:
        """Return the rows of a page, from a place, or from a row on; those with a text in them, if one is asked for."""
        size, text = arguments.number("size", 24, 1, _MOST_ROWS), arguments.text("search")
        place = arguments.number("place", 0, 0, _MOST)
        if arguments.text("row"):
            place = self.pages.place_of(arguments.number("row", 0, 0, _MOST))
        found: Page = self.pages.search(text, place, size, _SECONDS) if text else self.pages.page(place, size)
        return {"place": place, "next": found.next, "rows": [self._row(row) for row in found.rows.tolist()]}

    def image(self, arguments: Arguments) -> bytes:
        """Return a picture of a row as a PNG file."""
        row, side = arguments.number("row", 0, 0, len(self.looker.rows) - 1), arguments.number("side", 256, *_SIDES)
        overlays = bool(arguments.number("overlays", 1, 0, 1))
        if arguments.number("seen", 0, 0, 1) and self.looker.transforms:
            found = self.looker.seen(row, side, arguments.number("epoch", 0, 0, 10**6), overlays=overlays)
        else:
            found = self.looker.stored(row, side, overlays=overlays)
        image = tile(found, side) if found.problem is not None or found.image is None else found.image
        file = io.BytesIO()
        # Whoever waits is on this machine.
        image.save(file, "PNG", compress_level=1)
        return file.getvalue()

    def _row(self, row: int) -> dict[str, Any]:
        store, inner = self.looker.rows.locate(row)
        texts, problems = stored_texts(store, inner)
        try:
            path = one_line(store.filename(inner)) if store.has_paths else ""
        except PacktrainError as error:
            path, problems = "", [*problems, printable(str(error))]
        return {"row": row, "path": path, "texts": texts, "problem": next(iter(problems), None)}


class Arguments:
    """The arguments of a request."""

    def __init__(self, text: str) -> None:
        self._values: Final[Mapping[str, list[str]]] = parse_qs(text, errors="surrogateescape", max_num_fields=20)

    def text(self, name: str) -> str:
        """Return an argument, "" if there is none."""
        return self._values.get(name, [""])[-1]

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """Return an argument that is a number between two others.

        Raises:
            _MissingError: It is something else.
        """
        text = self.text(name) or str(default)
        if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
            raise _MissingError
        return int(text)


@contextmanager
def serving(view: View, port: int = 0) -> Iterator[tuple[ThreadingHTTPServer, str]]:
    """Opens a server, and closes it again.

    Args:
        view: What it serves.
        port: Its port; 0: any that is free.

    Yields:
        The server, whose `serve_forever` is still to be called, and the address of the page.

    Raises:
        UsageError: The port is taken.
    """
    token = secrets.token_urlsafe(24)
    try:
        server = _Server((HOST, port), type("Handler", (_Handler,), {"view": view, "token": token}))
    except OSError as error:
        raise UsageError(f"port={port}: {error.strerror}: leave it out to take one that is free") from error
    with server:
        yield server, f"http://{HOST}:{server.server_port}/{token}/"


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keeps quiet: the browser has gone, or has been told."""


class _Handler(BaseHTTPRequestHandler):
    view: ClassVar[View]
    token: ClassVar[str]
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "packtrain", ""
    timeout = 60
    error_content_type = "text/plain; charset=utf-8"
    error_message_format = "%(code)d %(message)s\n"

    def do_GET(self) -> None:
        """Answers a request."""
        if not self._is_invited():
            self.send_error(403, self._advice())
            return
        address = urlsplit(self.path)
        name = address.path.split("/", 2)[2]
        try:
            content, kind = self._content(name, Arguments(address.query))
        except (_MissingError, ValueError, IndexError):
            self.send_error(404)
        except PacktrainError as error:
            self._answer(500, json.dumps({"problem": printable(str(error))}).encode(), "application/json")
        else:
            self._answer(200, content, kind)

    def _is_invited(self) -> bool:
        """True if the request comes from the page, or from the person who typed its address."""
        port = self.connection.getsockname()[1]
        # A site may have its own name lead to this machine; its requests have that name.
        known = self.headers.get("Host") in (f"{HOST}:{port}", f"localhost:{port}")
        alone = self.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")
        given = self.path.split("/", 2)
        secret = given[1] if len(given) == 3 else ""
        return known and alone and secrets.compare_digest(secret.encode(), self.token.encode())

    def _advice(self) -> str | None:
        """Say what is wrong with a tunnel that changes the port."""
        name, _, port = (self.headers.get("Host") or "").partition(":")
        own = self.connection.getsockname()[1]
        if name not in (HOST, "localhost") or port in ("", str(own)):
            return None
        return f"Take the same port on both sides of a tunnel: ssh -L {own}:{HOST}:{own}"

    def _content(self, name: str, arguments: Arguments) -> tuple[bytes, str]:
        if name in _FILES:
            file, kind = _FILES[name]
            return (Path(__file__).parent / "page" / file).read_bytes(), kind
        if name == "image":
            return self.view.image(arguments), "image/png"
        made = {"about": lambda _: self.view.about(), "rows": self.view.rows}.get(name)
        if made is None:
            raise _MissingError
        return json.dumps(made(arguments)).encode(), "application/json"

    def _answer(self, code: int, content: bytes, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    @override
    def end_headers(self) -> None:
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Keeps quiet."""
