"""Laws of the fault-injection kit itself: a fault test proves nothing if the kit misses calls."""

import errno
import os
import signal
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.faults.harness import Action, Call, FaultServer, Outcome, points, sample

# What the tests of packtrain stand on, and what they would show by failing.
pytestmark = pytest.mark.complete

# Each step makes exactly one call: what it does, the call's name and bytes, and what half of it does.
STEPS = [
    ("os.mkdir(root)", "mkdir", 0, ""),
    ("fd = os.open(root + '/a.tmp', os.O_CREAT | os.O_RDWR)", "open", 0, ""),
    ("os.write(fd, b'abcdef')", "write", 6, "os.write(fd, b'abc')"),
    ("os.pwrite(fd, b'ghijk', 4)", "pwrite", 5, "os.pwrite(fd, b'gh', 4)"),
    ("os.writev(fd, [b'lm', b'nop', b'qrs'])", "writev", 8, "os.write(fd, b'lmno')"),
    ("os.pwritev(fd, [b'12', b'34'], 9)", "pwritev2", 4, "os.pwrite(fd, b'12', 9)"),
    ("os.fsync(fd)", "fsync", 0, ""),
    ("os.rename(root + '/a.tmp', root + '/a')", "rename", 0, ""),
    ("other = open(os.open(root + '/b', os.O_CREAT | os.O_WRONLY), 'wb', 0)", "open", 0, ""),
    ("os.sendfile(other.fileno(), fd, 2, 1 << 20)", "sendfile", 12, "os.sendfile(other.fileno(), fd, 2, 6)"),
    (
        "os.copy_file_range(fd, other.fileno(), 1 << 20, offset_src=4)",
        "copy_file_range",
        10,
        "os.copy_file_range(fd, other.fileno(), 5, offset_src=4)",
    ),
    ("other.write(b'io')", "write", 2, "other.write(b'i')"),
    ("np.arange(4, dtype='u1').tofile(other)", "fwrite", 4, "np.arange(2, dtype='u1').tofile(other)"),
    ("os.fdatasync(other.fileno())", "fdatasync", 0, ""),
    ("os.ftruncate(other.fileno(), 20)", "ftruncate", 0, ""),
    ("os.close(os.open(root + '/a', os.O_WRONLY | os.O_TRUNC))", "open", 0, ""),
    ("os.link(root + '/b', root + '/c')", "link", 0, ""),
    ("folder = os.open(root, os.O_RDONLY)", "", 0, ""),
    ("os.link('b', 'd', src_dir_fd=folder, dst_dir_fd=folder)", "linkat", 0, ""),
    ("os.rename('d', 'e', src_dir_fd=folder, dst_dir_fd=folder)", "renameat", 0, ""),
    ("os.unlink('e', dir_fd=folder)", "unlinkat", 0, ""),
    ("os.mkdir('f', dir_fd=folder)", "mkdirat", 0, ""),
    ("os.fsync(folder)", "fsync", 0, ""),
    ("os.unlink(root + '/c')", "unlink", 0, ""),
    ("os.rmdir(root + '/f')", "rmdir", 0, ""),
    ("mapped = np.memmap(root + '/b', mode='r+'); mapped.flush()", "msync", 0, ""),
    ("os.mkdir(root + '/x')", "mkdir", 0, ""),
    ("os.close(os.open(os.path.relpath(root) + '/x/../last', os.O_CREAT))", "open", 0, ""),
]
CALLS = [step for step in STEPS if step[1]]

LMDB = """
import lmdb
with lmdb.open(args["path"], subdir=False, lock=False, map_size=1 << 24) as env:
    for commit in range(3):
        with env.begin(write=True) as transaction:
            for key in range(5):
                transaction.put(b"%d %d" % (commit, key), bytes([commit]) * 10 ** key)
"""

HDF5 = """
import h5py, numpy
with h5py.File(args["path"], "w") as file:
    data = file.create_dataset("data", (100_000,), "u1")
    for start in range(0, 100_000, 10_000):
        data[start : start + 10_000] = start // 10_000 + 1
    file.create_dataset("tail", (1 << 18,), "u1", fill_time="never")[:100] = 1  # the rest is made by ftruncate
"""


@pytest.fixture(scope="module")
def faults(fault_library: Path) -> Iterator[FaultServer]:
    with FaultServer(fault_library, "import numpy, lmdb, h5py") as server:
        yield server


def tree(root: Path) -> dict[str, bytes | None]:
    """The whole content of a folder, which may be missing."""
    return {str(path.relative_to(root)): path.read_bytes() if path.is_file() else None for path in root.rglob("*")}


def perform(lines: list[str], root: Path) -> dict[str, bytes | None]:
    """The oracle: carry the lines out in this process, without the library."""
    names: dict[str, Any] = {"root": str(root), "os": os, "np": np}
    exec("\n".join(lines), names)
    for name in {"fd", "folder"} & names.keys():
        os.close(names[name])
    if "other" in names:
        names["other"].close()
    return tree(root)


def script(lines: list[str]) -> str:
    return "\n".join(["import os, numpy as np", "root = args['root']", *lines])


def run_steps(faults: FaultServer, root: Path, action: Action = Action.COUNT, at: int = 0, error: int = 0) -> Outcome:
    return faults.run(script([step[0] for step in STEPS]), {"root": str(root)}, root, action, at, error)


def before(at: int) -> list[str]:
    """The lines that come before the ``at``-th call."""
    return [step[0] for step in STEPS[: STEPS.index(CALLS[at - 1])]]


@pytest.mark.parametrize("every", [2, 8])
def test_a_sample_has_every_kind_of_call(every: int) -> None:
    names, paths = ("write", "fsync"), ["a/1.tar", "a/2.tar", "b/.3.tar.tmp-77", "b/.4.tar.tmp-99", "c"]
    # Folders whose names are random.
    paths += ["d/0123456789abcdef/e", "d/fedcba9876543210/e"]
    calls = [Call(name, 8, path, "") for _ in range(20) for name in names for path in paths]
    cases = list(points(calls, Action.KILL, Action.TEAR))
    chosen = sample(calls, cases, every)
    kinds = Counter((calls[at - 1].name, calls[at - 1].path[0]) for _, at in chosen)
    assert kinds.keys() == set(product(names, "abcd"))
    assert {action for action, _ in chosen} == {Action.KILL, Action.TEAR}
    assert set(chosen) <= set(cases) and len(set(chosen)) == len(chosen)
    assert chosen == sorted(chosen, key=lambda case: case[1])
    # Of the 40 or 80 cases of a kind, or of the 20 or 40 of calls that cannot be torn, one in so many; not always the
    # same ones of each kind.
    assert all(20 // every <= count <= 80 // every + 1 for count in kinds.values())
    assert len({at % every for _, at in chosen}) > 1


def test_every_call_is_seen_by_name_and_size(faults: FaultServer, tmp_path: Path) -> None:
    outcome = run_steps(faults, tmp_path / "a")
    assert outcome.returncode == 0, outcome.output
    assert [(call.name, call.bytes) for call in outcome.calls] == [(name, size) for _, name, size, _ in CALLS]
    renamed, last = outcome.calls[7], outcome.calls[-1]
    assert (renamed.path, renamed.target, last.path) == ("a.tmp", "a", "last")
    assert tree(tmp_path / "a") == perform([step[0] for step in STEPS], tmp_path / "b")


@pytest.mark.product
@pytest.mark.parametrize("action", [Action.KILL, Action.TEAR, Action.FAIL])
@pytest.mark.parametrize("at", range(1, len(CALLS) + 1))
def test_what_a_call_leaves_that_is_struck(faults: FaultServer, tmp_path: Path, action: Action, at: int) -> None:
    """The effect of the calls before, and if it is torn half of its own; one that fails delivers the errno."""
    _, name, _, half = CALLS[at - 1]
    outcome = run_steps(faults, tmp_path / "a", action, at, errno.EIO if action is Action.FAIL else 0)
    if action is Action.FAIL:
        assert outcome.returncode == 1
        # numpy's tofile does not look at errno.
        assert ("Input/output error" if name != "fwrite" else "4 requested and 0 written") in outcome.output
    else:
        assert (outcome.returncode, len(outcome.calls)) == (-signal.SIGKILL, at)
    done = [*before(at), half] if action is Action.TEAR else before(at)
    assert tree(tmp_path / "a") == perform(done, tmp_path / "b")


def test_fail_strikes_once_and_fail_from_until_the_end(faults: FaultServer, tmp_path: Path) -> None:
    code = """
import os
def attempt(call):
    try:
        call()
        print("done")
    except OSError as error:
        print(error.errno)
fd = os.open(args["root"] + "/file", os.O_CREAT | os.O_WRONLY)
attempt(lambda: os.write(fd, b"ab"))
attempt(lambda: os.write(fd, b"cd"))
attempt(lambda: os.fsync(fd))
attempt(lambda: os.unlink(args["root"] + "/file"))
"""
    args = {"root": str(tmp_path)}
    once = faults.run(code, args, tmp_path, Action.FAIL, 2, errno.ENOSPC)
    assert once.output.split() == [str(errno.ENOSPC), "done", "done", "done"]
    full = faults.run(code, args, tmp_path, Action.FAIL_FROM, 2, errno.ENOSPC)
    assert full.output.split() == [str(errno.ENOSPC)] * 3 + ["done"]
    assert tree(tmp_path) == {}


def test_short_write_is_reported_and_done_by_half(faults: FaultServer, tmp_path: Path) -> None:
    code = "import os; fd = os.open(args['root'] + '/f', os.O_CREAT | os.O_WRONLY); print(os.write(fd, b'abcde'))"
    outcome = faults.run(code, {"root": str(tmp_path)}, tmp_path, Action.SHORT, 2)
    assert (outcome.returncode, outcome.output) == (0, "2\n")
    assert tree(tmp_path) == {"f": b"ab"}


def test_only_the_watched_directory_counts(faults: FaultServer, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    code = """
import os
for name in ("inside", "in.txt", "out"):
    open(args["root"] + "/" + name, "w").write("x")
os.rename(args["root"] + "/out", args["root"] + "/in/out")
os.open(args["root"] + "/in/out", os.O_RDONLY)
os.symlink("in", args["root"] + "/alias")
open(args["root"] + "/alias/through", "w").write("x")
"""
    outcome = faults.run(code, {"root": str(tmp_path)}, tmp_path / "in")
    assert outcome.returncode == 0, outcome.output
    assert [(call.name, call.path) for call in outcome.calls] == [
        ("rename", str(tmp_path / "out")),
        ("open", "through"),
        ("write", "through"),
    ]


def test_forked_processes_share_one_count_and_the_one_that_calls_dies(faults: FaultServer, tmp_path: Path) -> None:
    code = """
import os
child = os.fork()
if child == 0:
    for i in range(3):
        os.mkdir(f"{args['root']}/{i}")
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os.mkdir(args["root"] + "/parent")
"""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    outcome = faults.run(code, {"root": str(tmp_path / "a")}, tmp_path / "a", Action.KILL, 3)
    assert (outcome.returncode, outcome.output) == (0, "-9\n")
    assert tree(tmp_path / "a") == {"0": None, "1": None, "parent": None}
    outcome = faults.run(code, {"root": str(tmp_path / "b")}, tmp_path / "b", Action.KILL, 4)
    assert outcome.returncode == -signal.SIGKILL
    assert tree(tmp_path / "b") == {"0": None, "1": None, "2": None}


def test_exit_status_output_and_timeout_are_reported(fault_library: Path, tmp_path: Path) -> None:
    with FaultServer(fault_library, timeout=1) as faults:
        assert faults.run("print('hi'); raise SystemExit(3)", {}, tmp_path).returncode == 3
        outcome = faults.run("raise SystemExit('stop')", {}, tmp_path)
        assert (outcome.returncode, outcome.output) == (1, "stop\n")
        assert "ZeroDivisionError" in faults.run("1 / 0", {}, tmp_path).output
        assert "parent folder does not exist" in faults.run("", {}, tmp_path / "a" / "b").output
        assert faults.run("import time; time.sleep(30)", {}, tmp_path).returncode == -signal.SIGALRM


@pytest.mark.parametrize(
    ("code", "names"),
    [(LMDB, {"open", "pwrite", "writev", "fdatasync"}), (HDF5, {"open", "pwrite", "ftruncate"})],
    ids=["lmdb", "hdf5"],
)
def test_writes_inside_lmdb_and_hdf5_are_seen(faults: FaultServer, tmp_path: Path, code: str, names: set[str]) -> None:
    outcome = faults.run(code, {"path": str(tmp_path / "file")}, tmp_path)
    assert outcome.returncode == 0, outcome.output
    assert {call.name for call in outcome.calls} == names
    assert {call.path for call in outcome.calls} == {"file"}
