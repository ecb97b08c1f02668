"""A place to run the job scripts for staging, with a dataset, a stand-in trainer and a command that logs copies."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from helpers.support import image_set, packed

SCRIPTS: Final = Path(__file__).parents[2] / "examples/staging"

# Stands in for train.py and evaluate.py: opens the dataset, records what it finds, and exits when the test tells it to.
TRAINER: Final = """\
import json, os, sys, time
from hashlib import sha256
from pathlib import Path
from packtrain import open_dataset

path = Path(sys.argv[sys.argv.index("--data") + 1])
dataset = open_dataset(path)
files = {str(file.relative_to(path)): file for file in path.rglob("*") if file.is_file() and file.name != "staged.json"}
note = {
    "script": sys.argv[0],
    "arguments": sys.argv[1:],
    "path": str(path),
    "variable": os.environ.get("PACKTRAIN_STAGED"),
    "content": {name: sha256(file.read_bytes()).hexdigest() for name, file in files.items()},
    "inode": (path / "manifest.json").stat().st_ino,
}
place = Path(os.environ["RESULTS"]) / f"{os.getpid()}.json"
place.with_suffix(".tmp").write_text(json.dumps(note))
place.with_suffix(".tmp").rename(place)
while "HOLD" in os.environ and not Path(os.environ["HOLD"]).exists():
    time.sleep(0.05)
sys.exit(int(os.environ.get("CODE", 0)))
"""

# The real command, slowed down. It logs each copy that it makes, with the user and the task of the job.
COMMAND: Final = """\
#!{python}
import os, time
from packtrain._storage.staging import transfer

def copy_files(*arguments, real=transfer.copy_files, **options):
    with open({log!r}, "a") as log:
        log.write(f"{{os.getuid()}} {{os.environ.get('SLURM_PROCID', 'before')}}\\n")
    time.sleep(0.5)
    return real(*arguments, **options)

transfer.copy_files = copy_files
from packtrain._cli.main import main
main()
"""


@dataclass(frozen=True)
class Bench:
    """A packed dataset, a place for copies, and a folder to run scripts in."""

    folder: Path
    dataset: Path
    to: Path
    work: Path

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables for the scripts."""
        path = os.pathsep.join((str(self.work / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]))
        return {"DATASET": str(self.dataset), "TO": str(self.to), "RESULTS": str(self.work / "results"), "PATH": path}

    @property
    def content(self) -> dict[str, str]:
        """Hash of each file of the dataset, by relative path."""
        files = [path for path in self.dataset.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.dataset)): sha256(path.read_bytes()).hexdigest() for path in files}

    @property
    def copies(self) -> list[str]:
        """One line for each copy: the number of the user who made it, and the task of the job."""
        log = self.work / "copies"
        return log.read_text().splitlines()

    def results(self) -> list[dict[str, Any]]:
        """Records of the trainers that have started so far."""
        return [json.loads(path.read_text()) for path in sorted((self.work / "results").glob("*.json"))]

    def leased(self, user: str | None = None) -> list[bool]:
        """Tells of each of a user's copies whether it is in use."""
        command = ["packtrain", "staged", "list", "--to", str(self.to), "--json"]
        if user is not None:
            command = ["runuser", "--user", user, "--", *command]
        done = subprocess.run(command, env=os.environ | self.variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return [entry["leased"] for entry in json.loads(done.stdout)["entries"]]

    def run(self, *command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs a command in the work folder, with more environment variables."""
        environment = os.environ | self.variables | variables
        return subprocess.run(command, cwd=self.work, env=environment, capture_output=True, text=True, check=False)

    def holds(self, path: str, user: str | None = None) -> None:
        """Asserts that a path lies in this user's root of staged copies."""
        uid = os.getuid() if user is None else pwd.getpwnam(user).pw_uid
        assert Path(path).parent == self.to / f"packtrain-{uid}"


@contextmanager
def workbench() -> Iterator[Bench]:
    """Makes a bench, and removes it at the end."""
    # Not in pytest's own folder, which other users cannot enter; not below /tmp, because jobs may have a private /tmp.
    with tempfile.TemporaryDirectory(prefix="jobs-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        work = folder / "work"
        it = Bench(folder, packed(image_set(folder / "images"), folder / "imagenet-train", "tar"), folder / "to", work)
        for place in (it.to, work, work / "bin", work / "results"):
            place.mkdir()
            place.chmod(0o1777)
        for name in ("train.py", "evaluate.py"):
            (work / name).write_text(TRAINER)
        (work / "copies").touch()
        (work / "copies").chmod(0o666)
        command = work / "bin/packtrain"
        command.write_text(COMMAND.format(python=sys.executable, log=str(work / "copies")))
        command.chmod(0o755)
        yield it
