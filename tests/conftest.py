"""Fixtures for all tests."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.faults.harness import NoCompilerError, build
from helpers.support import FORMATS, image_set
from hypothesis import settings

# The time that an example takes says nothing about a law.
settings.register_profile("laws", deadline=None, print_blob=True)
settings.load_profile("laws")


def pytest_configure() -> None:
    """Ctrl-C does what it does at a terminal, for what tests start, too: in a shell's background job it is ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Garbage that a test looks for is its own: modules and thousands of tests need not be looked through each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """An empty folder in memory where there is one: thousands of fsyncs take minutes on a disk."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="packtrain-test-", dir=shared) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def fault_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library under which system calls go wrong."""
    try:
        return build(tmp_path_factory.mktemp("faultlib"))
    except NoCompilerError as error:
        pytest.skip(str(error))


@pytest.fixture(params=FORMATS)
def format_name(request: pytest.FixtureRequest) -> str:
    """Every container format in turn."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A list of twelve JPEGs; not to be changed."""
    return image_set(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def torchvision() -> Any:
    """torchvision, as an oracle; the test is skipped without it."""
    if find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed: pip install --no-deps torchvision")
    return _import_torchvision()


def _import_torchvision() -> Any:
    # A torchvision that was built for another torch cannot load its C++ operators, of which our tests need none; but to
    # be imported at all it asks for their schemas.
    try:
        import torchvision
    except RuntimeError:
        library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms", "roi_align", "ps_roi_align", "roi_pool", "ps_roi_pool", "deform_conv2d"):
            for operator in (name, f"_{name}_backward"):
                library.define(f"{operator}(Tensor x) -> Tensor")
        import torchvision
    return torchvision
