"""Servers of object stores on this machine, those of the tests, and what counts and slows the traffic to them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.measure import ROOT, Unmeasurable

sys.path.append(str(ROOT / "tests"))

from helpers.objects.proxy import Proxy, proxy
from helpers.objects.servers import Nginx, Server, nginx, seaweedfs

__all__ = ["Nginx", "Proxy", "Server", "bucket", "proxy", "website"]


@contextmanager
def bucket(folder: Path) -> Iterator[Server]:
    """SeaweedFS, with its files in a folder.

    Raises:
        Unmeasurable: It is not installed.
    """
    with _measurable(), seaweedfs(folder) as server:
        yield server


@contextmanager
def website(folder: Path) -> Iterator[Nginx]:
    """nginx, with its files in a folder.

    Raises:
        Unmeasurable: It is not installed.
    """
    with _measurable(), nginx(folder) as server:
        assert isinstance(server, Nginx)
        yield server


@contextmanager
def _measurable() -> Iterator[None]:
    try:
        yield
    except (pytest.skip.Exception, pytest.fail.Exception) as error:
        raise Unmeasurable(str(error)) from None
