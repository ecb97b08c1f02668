"""Datasets to pack under the fault library."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.faults.cases import WARM_UP, Job
from helpers.faults.harness import FaultServer

MANY_FIELDS = "many fields"


@pytest.fixture(scope="session")
def small_jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Job]:
    return {
        "images": Job.make(tmp_path_factory.mktemp("small")),
        MANY_FIELDS: Job.of_fields(tmp_path_factory.mktemp("fields")),
    }


@pytest.fixture(params=["images", pytest.param(MANY_FIELDS, marks=pytest.mark.complete)])
def content(request: pytest.FixtureRequest) -> str:
    """The fields of samples: an image and a label, or many. The latter are left out of the sample of most tests."""
    name: str = request.param
    return name


@pytest.fixture
def small_job(small_jobs: dict[str, Job], content: str) -> Job:
    return small_jobs[content]


@pytest.fixture(scope="session")
def mended_jobs(small_jobs: dict[str, Job], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Job]:
    return {name: job.mended(tmp_path_factory.mktemp("mended")) for name, job in small_jobs.items()}


@pytest.fixture
def mended_job(mended_jobs: dict[str, Job], content: str) -> Job:
    return mended_jobs[content]


@pytest.fixture(scope="session")
def packer(fault_library: Path, small_jobs: dict[str, Job]) -> Iterator[FaultServer]:
    """Processes that have packed once already and fork from there."""
    with FaultServer(fault_library, WARM_UP, small_jobs[MANY_FIELDS].args(Path())) as server:
        yield server


@pytest.fixture
def job(small_job: Job, format_name: str) -> Job:
    """The small job in every format in turn."""
    return replace(small_job, format=format_name)
