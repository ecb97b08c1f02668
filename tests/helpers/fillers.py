"""For tests of a filler's process: sources that it imports by name, and programs that start one.

torch is not imported: it takes ten times as long as all else that these processes do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from packtrain._growing.cache_folder import is_filled
from packtrain._growing.status import read_status

BUDGET: Final = "4MiB"
SHARD: Final = "128KiB"
SIZES: Final = (0, 1, 700, 3000, 5000)


def sample(number: int) -> dict[str, Any]:
    """A sample of 8 KB, of which every value is its number."""
    return {"x": np.full(2000, number, np.float32), "label": number % 7}


def numbered_sample(who: int, sizes: tuple[int, ...] = SIZES) -> dict[str, Any]:
    """A sample that can be told from all others, of one of some sizes."""
    data = np.random.default_rng(who).bytes(sizes[who % len(sizes)])
    return {"who": np.array(who, np.int64), "data": data, "text": f"sample {who}", "label": who % 7}


def few() -> Iterator[dict[str, Any]]:
    """Some hundred kilobytes."""
    return map(sample, range(60))


def none() -> Iterator[dict[str, Any]]:
    """Ends at once."""
    return iter(())


def failing() -> Iterator[dict[str, Any]]:
    """Fails each time."""
    raise ValueError("the line is busy")


def hopeless() -> Iterator[dict[str, Any]]:
    """Samples that cannot be stored."""
    return iter([{"x": None}] * 9)


def unlike() -> Iterator[dict[str, Any]]:
    """Samples that have no form in common."""
    return iter([{"x": b"1"}, {"x": "1"}])


def steady() -> Iterator[dict[str, Any]]:
    """Samples without end, some megabytes a second."""
    number = 0
    while True:
        yield sample(number)
        number += 1
        time.sleep(0.002)


def slow() -> Iterator[dict[str, Any]]:
    """Samples without end, too few to fill a shard."""
    number = 0
    while True:
        yield sample(number)
        number += 1
        time.sleep(0.5)


def talking() -> Iterator[dict[str, Any]]:
    """Samples without end, and a lot of words."""
    for each in steady():
        os.write(1, b"the source speaks\n" * 200)
        os.write(2, b"and warns\n")
        yield each


PROGRAM: Final = """\
import os, signal, sys, time
from helpers import fillers
from packtrain import GrowingCache

def main():
    root = sys.argv[1]
{body}

if __name__ == "__main__":
    main()
"""


def environment() -> dict[str, str]:
    """The environment of a process that imports these sources."""
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


def trainer(folder: Path, body: str, root: Path) -> subprocess.Popen[str]:
    """Starts a program in a process group of its own. It has a `cache`, and prints a line when it is ready."""
    script = folder / "train.py"
    lines = [f"cache = GrowingCache(root, {BUDGET!r}, shard_size={SHARD!r})", *body.splitlines()]
    script.write_text(PROGRAM.format(body="\n".join(f"    {line}" for line in lines)))
    return subprocess.Popen(
        [sys.executable, str(script), str(root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )


def ready(process: subprocess.Popen[str]) -> str:
    """Waits for the line that says that the program is ready, and returns it."""
    assert process.stdout is not None and process.stderr is not None
    line = process.stdout.readline()
    assert line, process.stderr.read()
    return line.strip()


def wait_until_unfilled(root: Path) -> None:
    """Waits until no filler works on a cache; the test fails where that takes too long."""
    end = time.monotonic() + 20
    while is_filled(root):
        assert time.monotonic() < end, read_status(root)
        time.sleep(0.02)


@contextmanager
def cleared(root: Path) -> Iterator[None]:
    """Ends the filler of a cache at the end of the block, if it still lives."""
    try:
        yield
    finally:
        process = read_status(root).process
        if is_filled(root) and process not in (0, os.getpid()):
            os.kill(process, signal.SIGKILL)
            wait_until_unfilled(root)
