"""Takes random samples from the store whose address is in the environment variable STORE.

STORE=127.0.0.1:8765 packtrain fill sampler:samples CACHE --budget 16MiB
"""

from __future__ import annotations

import http.client
import os
import random
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

SHAPE: Final = (1, 32, 32)
COUNT: Final = 1_000_000
"""Number of samples in the store."""
VALIDATION: Final = 300
"""The first so many samples are not for training."""


def samples() -> Iterator[dict[str, Any]]:
    """Yields samples without end. If something goes wrong it raises, and packtrain calls it again a little later."""
    connection = connect()
    while True:
        yield fetch(connection, random.randrange(VALIDATION, COUNT))


def connect() -> http.client.HTTPConnection:
    """A connection to the store."""
    return http.client.HTTPConnection(os.environ["STORE"], timeout=10)


def fetch(connection: http.client.HTTPConnection, number: int) -> dict[str, Any]:
    """One sample of the store."""
    connection.request("GET", f"/samples/{number}")
    with connection.getresponse() as response:
        body = response.read()
        if response.status != 200:
            raise OSError(f"the store answered {response.status} {response.reason}")
        label = int(response.headers["X-Label"])
    return {"picture": np.frombuffer(body, np.float32).reshape(SHAPE), "label": label}
