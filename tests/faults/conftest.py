"""The fault library, built once per session, and what is packed under it."""

import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from faults.cases import WARM_UP, Job
from faults.harness import FaultServer, NoCompilerError, build


@pytest.fixture(scope="session")
def fault_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return build(tmp_path_factory.mktemp("faultlib"))
    except NoCompilerError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def small_job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return Job.make(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def mended_job(small_job: Job, tmp_path_factory: pytest.TempPathFactory) -> Job:
    return small_job.mended(tmp_path_factory.mktemp("mended"))


@pytest.fixture(scope="session")
def packer(fault_library: Path, small_job: Job) -> Iterator[FaultServer]:
    """Processes that have packed once already and fork from there."""
    with FaultServer(fault_library, WARM_UP, small_job.args(Path())) as server:
        yield server


@pytest.fixture
def job(small_job: Job, format_name: str) -> Job:
    """The small job in every format in turn."""
    return replace(small_job, format=format_name)


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """An empty folder in memory where there is one: thousands of fsyncs take minutes on a disk."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="packtrain-test-", dir=shared) as folder:
        yield Path(folder)
