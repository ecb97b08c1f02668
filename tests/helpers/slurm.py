"""A Slurm cluster of one node for a test: the real daemons, configured in a temporary folder."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from helpers.support import tool

_ENDED: Final = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL"}

# The node claims to be large, so that job scripts get the resources that they request; nothing enforces them.
_CONFIG: Final = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=1
GresTypes=gpu
{more}
NodeName={host} NodeAddr=127.0.0.1 CPUs=64 RealMemory=500000 Gres=gpu:4 State=UNKNOWN
PartitionName=plain Nodes=ALL Default=YES State=UP
PartitionName=imagenet Nodes=ALL State=UP
"""


@dataclass
class Cluster:
    """A running cluster.

    Attributes:
        folder: Folder with its configuration, state and logs.
        environment: Environment of its commands, and so of its jobs.
    """

    folder: Path
    environment: dict[str, str]
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def run(self, *command: str | os.PathLike[str]) -> str:
        """Runs one of Slurm's commands, which must succeed. Returns its standard output."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}{self.logs()}"
        return done.stdout

    def submit(self, script: Path, *options: str, cwd: Path, user: str | None = None, **variables: str) -> str:
        """Submits a job script with these variables in its environment. Returns the job's number."""
        command = ["sbatch", "--parsable", f"--chdir={cwd}", f"--output={cwd}/%x-%j.log", *options, str(script)]
        if user is not None:
            command = ["runuser", "--user", user, "--", *command]
        done = subprocess.run(
            command, env=self.environment | variables, cwd="/", capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stderr}{self.logs()}"
        return done.stdout.strip().partition(";")[0]

    def states(self, job: str) -> set[str]:
        """The state of a job, or the states of all tasks of an array."""
        lines = self.run("scontrol", "--oneliner", "show", "job", job).splitlines()
        return {
            item.removeprefix("JobState=") for line in lines for item in line.split() if item.startswith("JobState=")
        }

    def finish(self, job: str) -> None:
        """Waits for the end of a job. All of its tasks must succeed."""
        self.until(lambda: self.states(job) <= _ENDED, f"the end of job {job}")
        assert self.states(job) == {"COMPLETED"}, self.run("scontrol", "show", "job", job) + self.logs()

    def until(self, happened: Callable[[], bool], what: str, seconds: float = 60) -> None:
        """Waits until `happened()` is true; after `seconds` the test fails."""
        end = time.monotonic() + seconds
        while not happened():
            assert time.monotonic() < end, f"waited {seconds:.0f} s for {what}{self.logs()}"
            for daemon in self.daemons:
                assert daemon.poll() is None, f"{daemon.args!r} ended{self.logs()}"
            time.sleep(0.1)

    def logs(self) -> str:
        """The last 1000 characters of each log."""
        ends = (
            f"--- {path}\n{path.read_text(errors='replace')[-1000:]}" for path in sorted(self.folder.glob("*d.log"))
        )
        return "\n" + "\n".join(ends)


@contextmanager
def cluster(more: str = "", files: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """Starts a cluster. At the end, stops it, its jobs and their processes.

    Args:
        more: More lines for slurm.conf; {folder} stands for the folder of that file.
        files: Content of more files in that folder, by name.
    """
    programs = [tool("munged", "munge"), tool("slurmctld", "slurm-wlm"), tool("slurmd", "slurm-wlm")]
    # The path is short, because that of a socket has at most 108 characters. It is not below /tmp, because jobs may
    # have a private /tmp. The users whose jobs run can read it.
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/var/tmp"))
    folder.chmod(0o755)
    host = socket.gethostname().partition(".")[0]
    ports = dict(zip(("controller_port", "node_port"), _free_ports(2), strict=True))
    user = pwd.getpwuid(os.getuid()).pw_name
    config = _CONFIG.format(folder=folder, host=host, user=user, more=more.format(folder=folder), **ports)
    for name, text in {
        "slurm.conf": config,
        "gres.conf": "Name=gpu File=/dev/null,/dev/zero,/dev/full,/dev/urandom\n",
        **(files or {}),
    }.items():
        (folder / name).write_text(text.replace("{folder}", str(folder)))
        (folder / name).chmod(0o755)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key").chmod(0o400)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
    environment |= {
        "SLURM_CONF": str(folder / "slurm.conf"),
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), environment["PATH"])),
    }
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        it = Cluster(folder, environment)
        stack.callback(_stop, it)
        _start(it, programs)
        yield it


def _start(it: Cluster, programs: list[str]) -> None:
    munged, slurmctld, slurmd = programs
    files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munged.pid", "seed-file": "munge.seed"}
    places = [f"--{option}={it.folder / name}" for option, name in files.items()]
    _daemon(it, munged, "--foreground", f"--log-file={it.folder}/munged.log", *places)
    it.until((it.folder / "munge.socket").exists, "munged")
    _daemon(it, slurmctld, "-D")
    _daemon(it, slurmd, "-D")
    it.until(lambda: "idle" in _quiet(it, "sinfo", "--noheader", "--format=%t"), "a node that is idle")


def _daemon(it: Cluster, *command: str) -> None:
    with (it.folder / f"{Path(command[0]).name}.out").open("wb") as log:
        it.daemons.append(
            subprocess.Popen(command, env=it.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        )


def _stop(it: Cluster) -> None:
    if len(it.daemons) == 3:
        for owner in _owners(it):
            _quiet(it, "scancel", f"--user={owner}")
        with suppress(AssertionError):
            it.until(lambda: not _owners(it), "the end of all jobs", 20)
    for daemon in reversed(it.daemons):
        daemon.send_signal(signal.SIGTERM)
        try:
            daemon.wait(10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def _owners(it: Cluster) -> list[str]:
    return sorted(set(_quiet(it, "squeue", "--noheader", "--format=%u").split()))


def _quiet(it: Cluster, *command: str) -> str:
    return subprocess.run(command, env=it.environment, capture_output=True, text=True, timeout=30, check=False).stdout


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]
