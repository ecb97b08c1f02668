"""A slow remote store, simulated: an HTTP server on this machine that sends so many bytes per second and no more.

python examples/growing_cache/store.py --port 8765 --rate 1000000

Its samples are pictures of shapes in noise. There are a million of them, each made when it is asked for.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import numpy as np
import numpy.typing as npt

SIDE: Final = 32
COUNT: Final = 1_000_000
CLASSES: Final = ("disc", "square", "triangle", "cross")
LABEL: Final = "X-Label"
"""The header that says which shape it is."""

Picture = npt.NDArray[np.float32]


def sample(number: int) -> tuple[Picture, int]:
    """A sample of the store: a picture, float32 [1, 32, 32], and the class of the shape in it."""
    random = np.random.default_rng(number)
    label = number % len(CLASSES)
    radius = random.uniform(4, 9)
    centre = random.uniform(radius, SIDE - radius, 2)
    y, x = (np.arange(SIDE)[:, None] - centre[0]) / radius, (np.arange(SIDE)[None] - centre[1]) / radius
    inside = {
        "disc": x**2 + y**2 < 1,
        "square": np.maximum(abs(x), abs(y)) < 0.88,
        "triangle": (y < 0.9) & (y > 2 * abs(x) - 0.9),
        "cross": np.minimum(abs(x), abs(y)) < 0.35,
    }[CLASSES[label]] & (np.maximum(abs(x), abs(y)) < 1)
    noise = random.normal(0, 0.5, (SIDE, SIDE))
    return (random.uniform(0.6, 1.4) * inside + noise).astype(np.float32)[None], label


class Store(ThreadingHTTPServer):
    """Serves ``/samples/NUMBER``: the values of the picture, and its class as a header.

    Args:
        rate: Bytes per second, for all clients together.
        port: Port on this machine; 0 for a free one.
    """

    daemon_threads = True

    def __init__(self, rate: float, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Request)
        self._rate = rate
        self._lock = threading.Lock()
        self._free = time.monotonic()

    def wait_for(self, size: int) -> None:
        """Returns when so many bytes would have gone through the slow link."""
        with self._lock:
            self._free = max(self._free, time.monotonic()) + size / self._rate
            until = self._free
        time.sleep(max(0.0, until - time.monotonic()))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says what went wrong, but not that a client has gone."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    """Headers and body are sent together: sent one by one, each answer takes 40 ms."""
    server: Store

    def do_GET(self) -> None:
        folder, _, number = self.path.removeprefix("/").partition("/")
        if folder != "samples" or not number.isdecimal() or int(number) >= COUNT:
            self.send_error(404)
            return
        picture, label = sample(int(number))
        body = picture.tobytes()
        self.server.wait_for(len(body))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header(LABEL, str(label))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keeps quiet about requests that succeed."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve samples, slowly.")
    parser.add_argument("--port", type=int, default=0, help="0: a free one, which is printed")
    parser.add_argument("--rate", type=float, default=1e6, help="bytes per second")
    arguments = parser.parse_args()
    with Store(arguments.rate, arguments.port) as store:
        print(f"127.0.0.1:{store.server_port}", flush=True)
        store.serve_forever()


if __name__ == "__main__":
    main()
