"""Fetching whole objects to files."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from packtrain._storage.remote.download import download, download_all
from packtrain._storage.remote.urls import Url
from packtrain.errors import RemoteError

URL = Url.parse("s3://bucket/set")


class Stalling:
    """A store that does not answer until it is closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def size(self, url: Url) -> int:
        return 1

    def copy_into(self, url: Url, offset: int, size: int, descriptor: int) -> int:
        assert self.closed.wait(60), "it was never closed"
        raise RemoteError(f"{url} cannot be read any more")

    def close(self) -> None:
        self.closed.set()


@pytest.mark.parametrize("several", [False, True])
def test_ctrl_c_does_not_wait_for_a_store_that_does_not_answer(several: bool, tmp_path: Path) -> None:
    store: Any = Stalling()

    def fetch() -> None:
        if several:
            download_all(store, URL, ["one", "two"], tmp_path)
        else:
            download(store, URL / "one", tmp_path / "one")

    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            fetch()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert store.closed.is_set()
