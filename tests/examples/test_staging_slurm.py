"""The Slurm scripts for staging, run as they are in a real cluster of one node: `pytest -m slurm`."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
from helpers.jobs import SCRIPTS, Bench, workbench
from helpers.slurm import Cluster, cluster

pytestmark = pytest.mark.slurm


@pytest.fixture
def bench() -> Iterator[Bench]:
    with workbench() as it:
        yield it


def set_in(script: Path, **settings: str) -> str:
    """A script with other values for the variables at its top."""
    text = script.read_text()
    for name, value in settings.items():
        text, count = re.subn(rf"^{name}=.*$", f"{name}={value}", text, flags=re.MULTILINE)
        assert count == 1, name
    return text


@pytest.fixture(scope="module")
def prologs() -> dict[str, str]:
    """A prolog and a task prolog that do nothing until a test writes others."""
    return {"prolog.sh": "#!/bin/bash\n", "task_prolog.sh": "#!/bin/bash\n"}


@pytest.fixture(scope="module")
def common(prologs: Mapping[str, str]) -> Iterator[Cluster]:
    """A cluster whose jobs share the node's /dev/shm."""
    with cluster("Prolog={folder}/prolog.sh\nTaskProlog={folder}/task_prolog.sh", prologs) as it:
        yield it


@pytest.fixture
def private() -> Iterator[Cluster]:
    """A cluster that gives each job a /tmp and a /dev/shm of its own."""
    if os.getuid() != 0:
        pytest.skip("mounting takes root")
    if any(Path(path).resolve().is_relative_to("/tmp") for path in (sys.prefix, __file__)):
        pytest.skip("a job with a /tmp of its own does not see this Python, or packtrain")
    files = {"job_container.conf": "BasePath={folder}/private\nAutoBasePath=true\n"}
    with cluster("JobContainerType=job_container/tmpfs\nPrologFlags=Contain", files) as it:
        yield it


@pytest.fixture
def user(bench: Bench) -> str | None:
    """Somebody else than root, whose jobs run; None for who runs the tests, where nobody else has this Python."""
    if os.getuid() == 0:
        command = ["runuser", "--user", "nobody", "--", str(bench.work / "bin/packtrain"), "--help"]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return "nobody"
    return None


def wait_for_results(it: Cluster, bench: Bench, job: str, count: int) -> None:
    """Waits until so many trainers have started."""
    it.until(lambda: len(bench.results()) == count or not it.states(job) <= {"RUNNING", "PENDING"}, f"{count} trainers")
    logs = "\n".join(path.read_text() for path in bench.work.glob("*.log"))
    assert len(bench.results()) == count, logs


def test_a_job_stages_once_for_all_its_ranks(common: Cluster, bench: Bench, user: str | None) -> None:
    go = bench.work / "go"
    script = SCRIPTS / "slurm/job.sbatch"
    job = common.submit(script, "--nodes=1", cwd=bench.work, user=user, HOLD=str(go), **bench.variables)
    wait_for_results(common, bench, job, 4)
    assert bench.leased(user) == [True]
    go.touch()
    common.finish(job)
    assert bench.leased(user) == [False]
    (path,) = {result["path"] for result in bench.results()}
    bench.holds(path, user)
    assert [result["content"] for result in bench.results()] == 4 * [bench.content]
    assert len(bench.copies) == 1
    (log,) = bench.work.glob("train-*.log")
    assert "Ignoring" not in log.read_text(), "one task on the node has staged, and srun was asked for that clearly"


def test_a_job_trains_on_the_source_where_there_is_no_room(common: Cluster, bench: Bench, user: str | None) -> None:
    script = SCRIPTS / "slurm/job.sbatch"
    job = common.submit(script, "--nodes=1", cwd=bench.work, user=user, BUDGET="1KiB", **bench.variables)
    common.finish(job)
    assert [result["path"] for result in bench.results()] == 4 * [str(bench.dataset)]


def test_the_tasks_of_an_array_share_one_copy(common: Cluster, bench: Bench, user: str | None) -> None:
    go = bench.work / "go"
    job = common.submit(SCRIPTS / "slurm/array.sbatch", cwd=bench.work, user=user, HOLD=str(go), **bench.variables)
    wait_for_results(common, bench, job, 4)
    assert bench.leased(user) == [True]
    go.touch()
    common.finish(job)
    assert bench.leased(user) == [False]
    results = bench.results()
    (path,) = {result["path"] for result in results}
    bench.holds(path, user)
    assert len({result["inode"] for result in results}) == 1
    assert [result["content"] for result in results] == 4 * [bench.content]
    assert len(bench.copies) == 1
    assert len({result["arguments"][-1] for result in results}) == 4, "each has a learning rate of its own"


def install_prologs(it: Cluster, bench: Bench, **settings: str) -> None:
    """Makes the administrator's scripts those of the cluster, with this machine's paths."""
    paths = {"DATASET": bench.dataset, "TO": bench.to, "PACKTRAIN": bench.work / "bin/packtrain"}
    for name in ("prolog.sh", "task_prolog.sh"):
        text = set_in(SCRIPTS / "slurm" / name, **{name: str(path) for name, path in paths.items()} | settings)
        (it.folder / name).write_text(text)
        (it.folder / name).chmod(0o755)


@pytest.fixture
def administered(common: Cluster, bench: Bench) -> Iterator[Cluster]:
    """The cluster with prologs."""
    if os.getuid() != 0:
        pytest.skip("a prolog runs as root")
    install_prologs(common, bench)
    yield common
    for name in ("prolog.sh", "task_prolog.sh"):
        (common.folder / name).write_text("#!/bin/bash\n")


SCRIPT: Final = '#!/bin/bash\n#SBATCH --job-name=mine --mem=1G\nsrun python train.py --data "$DATA"\n'


def test_what_a_prolog_has_staged_the_job_finds(administered: Cluster, bench: Bench, user: str | None) -> None:
    script = bench.work / "mine.sbatch"
    script.write_text(SCRIPT)
    job = administered.submit(script, "--partition=imagenet", cwd=bench.work, user=user, **bench.variables)
    administered.finish(job)
    (result,) = bench.results()
    bench.holds(result["path"], user)
    assert result["content"] == bench.content
    uid = os.getuid() if user is None else pwd.getpwnam(user).pw_uid
    assert bench.copies == [f"{uid} before"], "as the job's user, before its first task"
    # What the README gives for an epilog makes room again, although the path was promised a moment ago.
    (line,) = re.findall(r"^runuser .*$", (SCRIPTS / "README.md").read_text(), re.MULTILINE)
    line = line.replace("/opt/packtrain/bin/packtrain", str(bench.work / "bin/packtrain"))
    line = line.replace("/dev/shm", str(bench.to))
    done = bench.run("bash", "-c", line, SLURM_JOB_USER=user or "root")
    assert done.returncode == 0, done.stderr
    assert bench.leased(user) == []


def test_a_prolog_leaves_other_partitions_alone(administered: Cluster, bench: Bench, user: str | None) -> None:
    script = bench.work / "mine.sbatch"
    script.write_text(SCRIPT)
    job = administered.submit(script, cwd=bench.work, user=user, DATA=str(bench.dataset), **bench.variables)
    administered.finish(job)
    assert [result["path"] for result in bench.results()] == [str(bench.dataset)]
    assert bench.copies == []


def test_a_prolog_that_cannot_stage_does_not_drain_the_node(
    administered: Cluster, bench: Bench, user: str | None
) -> None:
    install_prologs(administered, bench, BUDGET="1KiB")
    script = bench.work / "mine.sbatch"
    script.write_text(SCRIPT)
    job = administered.submit(script, "--partition=imagenet", cwd=bench.work, user=user, **bench.variables)
    administered.finish(job)
    assert [result["path"] for result in bench.results()] == [str(bench.dataset)]
    assert "drain" not in administered.run("sinfo", "--noheader", "--format=%T")


def test_a_job_with_a_dev_shm_of_its_own_is_warned(private: Cluster, bench: Bench, user: str | None) -> None:
    variables = bench.variables | {"TO": "/dev/shm"}
    job = private.submit(SCRIPTS / "slurm/job.sbatch", "--nodes=1", cwd=bench.work, user=user, **variables)
    private.finish(job)
    (path,) = {result["path"] for result in bench.results()}
    assert Path(path).parent.parent == Path("/dev/shm")
    assert [result["content"] for result in bench.results()] == 4 * [bench.content]
    assert not Path(path).exists(), "it has gone with the job"
    (log,) = bench.work.glob("train-*.log")
    assert f"/dev/shm is private to Slurm job {job}" in log.read_text()
