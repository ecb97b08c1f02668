"""What is packed under the fault library."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.faults.cases import WARM_UP, Job
from helpers.faults.harness import FaultServer


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
