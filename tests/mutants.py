"""Changes the product in small ways, one at a time, and says which changes no test notices.

    .venv/bin/python tests/mutants.py --count 20 --among tests/core core storage/staging
    .venv/bin/python tests/mutants.py --only mutants.json --tests OTHER/tests

The tests run once under coverage, which says which of them reach which line, also in the processes that they start. A
mutant is tried with those that reach it, and is killed by the first that fails. A mutant that survives is a place to
look at, not always a missing test: some changes mean the same.

Everything runs in copies of the working tree, which come before the installed package, so several at once. Each run is
a fork of this process, which has imported what takes long.

Let nothing else run meanwhile: a test that a busy machine makes fail looks like a killed mutant.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest
from coverage import Coverage
from coverage.numbits import numbits_to_nums

ROOT: Final = Path(__file__).resolve().parents[1]
ROOMS: Final = ("core", "codec", "formats", "storage", "readers", "packer", "growing", "extras", "cli", "testing")
IMPORTED: Final = ("numpy", "torch", "PIL.Image", "h5py", "lmdb", "hypothesis.strategies", "click")
"""Imported once, before the forks. None of them imports packtrain."""

# Calls without which a crash, a race or damage goes unnoticed: each of them is tried, not a sample.
GUARDS: Final = frozenset(
    ("fsync", "fsync_file", "fsync_folder", "flock", "lockf", "rename", "replace", "link", "exchange", "publish")
) | {"write_file"}
CHECKSUMS: Final = ("crc", "checksum", "sha256", "digest")
_WITHOUT: Final = ("-p", "no:cacheprovider", "-p", "no:xdist")
_COMPARED: Final = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_COMPUTED: Final = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult}


@dataclass(frozen=True)
class Mutant:
    """A change of one expression or statement.

    Attributes:
        file: The module, from the root of the repository.
        start: Line and column, from 1 and 0 (in bytes), at which the text begins that is replaced.
        end: Where it ends.
        text: What takes its place.
        guard: True if it removes one of the `GUARDS`, or a comparison of a checksum.
        always: True outside functions, where every test that imports the module reaches it.
    """

    file: str
    start: tuple[int, int]
    end: tuple[int, int]
    text: str
    guard: bool = False
    always: bool = False

    def applied(self, source: bytes) -> bytes:
        """The module with the change."""
        lines = source.splitlines(keepends=True)
        first, last = self.start[0] - 1, self.end[0] - 1
        head, tail = lines[first][: self.start[1]], lines[last][self.end[1] :]
        return b"".join([*lines[:first], head + self.text.encode() + tail, *lines[last + 1 :]])

    def __str__(self) -> str:
        return f"{self.file}:{self.start[0]}: {self.text}" + (" (guard)" if self.guard else "")


def mutants_of(file: str) -> Iterator[Mutant]:
    """All changes of a module that the rules below make."""
    tree = ast.parse((ROOT / file).read_bytes())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda)]
    within = {id(node) for function in functions for node in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.arguments):
            continue
        for new, guard in _changes(node):
            assert isinstance(node, ast.expr | ast.stmt)
            assert node.end_lineno is not None and node.end_col_offset is not None
            end = (node.end_lineno, node.end_col_offset)
            yield Mutant(file, (node.lineno, node.col_offset), end, new, guard, id(node) not in within)


def _changes(node: ast.AST) -> Iterator[tuple[str, bool]]:
    match node:
        case ast.Compare(left, [operator], [right]) if type(operator) in _COMPARED:
            new = ast.Compare(left, [_COMPARED[type(operator)]()], [right])
            yield f"({ast.unparse(new)})", any(word in ast.unparse(node) for word in CHECKSUMS)
        case ast.BoolOp(operator, values):
            yield (
                f"({ast.unparse(ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values))})",
                False,
            )
        case ast.UnaryOp(ast.Not(), operand):
            yield f"bool({ast.unparse(operand)})", False
        case ast.BinOp(left, operator, right) if type(operator) in _COMPUTED and not isinstance(left, ast.Constant):
            yield f"({ast.unparse(ast.BinOp(left, _COMPUTED[type(operator)](), right))})", False
        case ast.Return(ast.expr() as value) if not isinstance(value, ast.Constant):
            yield "return None", False
        case ast.Return(ast.Constant(bool() as value)):
            yield f"return {not value}", False
        case ast.Expr(ast.Call(called)):
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            yield "pass", name in GUARDS
        case _:
            return


def chosen(rooms: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """All guards of the rooms, then so many others, drawn at random."""
    listed = subprocess.run(["git", "ls-files", *rooms], cwd=ROOT, capture_output=True, text=True, check=True)
    found = [each for file in listed.stdout.split() if file.endswith(".py") for each in mutants_of(file)]
    others = [each for each in found if not each.guard]
    return [each for each in found if each.guard] + random.Random(seed).sample(others, min(count, len(others)))


def tree(folder: Path, tests: Path) -> Path:
    """Copies what git knows of the working tree, with other tests, and makes it importable."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.split(b"\0")
    for name in filter(None, map(os.fsdecode, listed)):
        if not name.startswith("tests/") and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    shutil.copytree(tests, folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    for library in (ROOT / "codec/native").glob("*.so"):
        shutil.copy2(library, folder / "codec/native")
    package = folder / "links/packtrain"
    package.mkdir(parents=True)
    for file in (folder / "api").iterdir():
        (package / file.name).symlink_to(file)
    for room in ROOMS:
        (package / f"_{room}").symlink_to(folder / room)
    return folder


@dataclass(frozen=True)
class Run:
    """Tests to run in a copy of the tree.

    Attributes:
        arguments: For pytest.
        plugin: For pytest, too.
        limit: The seconds after which it is ended.
        tests: The number of tests, if it is known.
        mutant: The change that is made for as long as it runs.
    """

    arguments: Sequence[str]
    plugin: object
    limit: float
    tests: int = 0
    mutant: Mutant | None = None


def ended(runs: Iterable[Run], folders: Sequence[Path]) -> Iterator[tuple[Run, int | None, str, float]]:
    """Runs in each folder one after the other; yields how each ended (None: at its limit), its output, the seconds."""
    free, going, left = list(folders), dict[int, tuple[Run, Path, bytes, float]](), iter(runs)
    while True:
        while free and (run := next(left, None)):
            folder, whole = free.pop(), b""
            if run.mutant:
                path = folder / run.mutant.file
                whole = path.read_bytes()
                _written(path, run.mutant.applied(whole))
            if not (child := os.fork()):
                _child(run, folder)
            going[child] = run, folder, whole, time.monotonic()
        if not going:
            return
        for child, (run, folder, whole, began) in list(going.items()):
            done, status = os.waitpid(child, os.WNOHANG)
            seconds = time.monotonic() - began
            if not done and seconds < run.limit:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)  # with what it has started
            if not done:
                os.waitpid(child, 0)
            if run.mutant:
                _written(folder / run.mutant.file, whole)
            del going[child]
            free.append(folder)
            code = os.waitstatus_to_exitcode(status) if done else None
            yield run, code, (folder / "output").read_text(errors="replace"), seconds
        time.sleep(0.02)


def _written(path: Path, source: bytes) -> None:
    path.write_bytes(source)
    # The time of a change counts in seconds there: a change of the same length could go unnoticed.
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
        compiled.unlink()


def _child(run: Run, folder: Path) -> None:
    """Runs pytest in a process group of its own, and ends this process."""
    code = 3
    try:
        os.setsid()
        os.chdir(folder)
        links = str(folder / "links")
        sys.path.insert(0, links)
        os.environ["PYTHONPATH"] = links
        output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for standard in (1, 2):
            os.dup2(output, standard)
        # What is imported before the fork has no rewritten assertions.
        settings = ["-q", "--no-header", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        code = int(pytest.main([*settings, *_WITHOUT, *run.arguments], plugins=[run.plugin]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Recorder:
    """Runs tests under coverage, and notes how long each takes that passes.

    Args:
        work: The folder of all copies of the tree.
        number: Of the run.
    """

    def __init__(self, work: Path, number: int) -> None:
        self._work, self._folder = work, work / f"coverage {number}"
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_load_initial_conftests(self) -> None:
        """Begins before anything of packtrain is imported."""
        self._folder.mkdir()
        settings = self._folder / "settings"
        settings.write_text(
            f"[run]\nsource_pkgs = packtrain\nparallel = true\ndata_file = {self._folder}/data\n"
            "patch =\n    _exit\n    fork\n    subprocess\n"
        )
        self._coverage = Coverage(config_file=str(settings), messages=False)
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Names the test as the context of what runs now, here and in processes that are started meanwhile."""
        self._coverage.config.context = item.nodeid
        os.environ["COVERAGE_PROCESS_CONFIG"] = self._coverage.config.serialize()
        self._coverage.switch_context(item.nodeid)
        began = time.monotonic()
        result = yield
        self._seconds[item.nodeid] = round(time.monotonic() - began, 2)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed":
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        self._coverage.save()
        seconds = {test: taken for test, taken in self._seconds.items() if test not in self._failed}
        (self._folder / "seconds.json").write_text(json.dumps(seconds))

    def add_to(self, reach: Reach) -> None:
        """Adds what was recorded in another process."""
        if (seconds := self._folder / "seconds.json").is_file():
            reach.seconds.update(json.loads(seconds.read_text()))
        found: dict[tuple[str, str], set[int]] = defaultdict(set)
        for data in self._folder.glob("data.*"):
            for path, context, numbits in _line_bits(data):
                # Without the number of the copy.
                name = os.path.relpath(path, self._work).partition("/")[2]
                found[name, context.split("|")[0]] |= set(numbits_to_nums(numbits))
        for (name, context), lines in found.items():
            if context:
                reach.lines.setdefault(name, {})[context] = sorted(lines)
        shutil.rmtree(self._folder, ignore_errors=True)


def _line_bits(data: Path) -> list[tuple[str, str, bytes]]:
    query = """
        SELECT path, context, numbits FROM line_bits
        JOIN file ON file.id = file_id JOIN context ON context.id = context_id
    """
    try:
        with sqlite3.connect(data) as database:
            return database.execute(query).fetchall()
    except sqlite3.Error:  # of a process that was killed
        return []


@dataclass(frozen=True)
class Reach:
    """The lines that each test reaches, and how long it takes."""

    lines: dict[str, dict[str, list[int]]]
    seconds: dict[str, float]
    modules: list[str]

    def tests(self, mutant: Mutant, budget: float) -> dict[str, float]:
        """The tests that reach a mutant with their seconds, the fastest first, as many as the budget allows."""
        wanted = set(range(mutant.start[0], mutant.end[0] + 1))
        reaching = [
            test
            for test, lines in self.lines.get(mutant.file, {}).items()
            if test in self.seconds and (mutant.always or wanted.intersection(lines))
        ]
        found, left = dict[str, float](), budget
        for test in sorted(reaching, key=lambda test: (self.seconds[test], test)):
            if (left := left - self.seconds[test]) < 0:
                break
            found[test] = self.seconds[test]
        return found


def record(reach: Reach, tests: Sequence[str], arguments: Sequence[str], work: Path, file: Path | None) -> None:
    """Runs the test modules of which nothing is known yet: some at a time, then those of a run that crashed alone."""
    folders = sorted(work.iterdir())
    named = [[folders[0] / each] if each.endswith(".py") else folders[0].glob(f"{each}/**/test_*.py") for each in tests]
    every = {str(each.relative_to(folders[0])) for each in itertools.chain(*named)}
    for most in (40, len(every)):
        modules = sorted(every - {*reach.modules})
        parts = [part for first in range(most) if (part := modules[first::most])]
        recorders = {part[0]: Recorder(work, number) for number, part in enumerate(parts)}
        runs = [Run([*part, *arguments], recorders[part[0]], 1800) for part in parts]
        for number, (run, code, output, taken) in enumerate(ended(runs, folders), 1):
            recorders[run.arguments[0]].add_to(reach)
            if code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
                reach.modules.extend(each for each in run.arguments if each in every)
            if file:
                file.write_text(json.dumps(asdict(reach)))
            said = (output.splitlines() or ["no output"])[-1]
            print(f"recorded {number}/{len(runs)} ({taken:.0f} s, exit {code}): {said}", flush=True)


class Only:
    """Runs some tests alone: those of the module first that is done first, and the fastest of a module first."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Iterator[None]:
        """Comes after what chooses among the values of parameters."""
        yield
        kept = [item for item in items if item.nodeid in self._seconds]
        modules = defaultdict[Path, float](float)
        for item in kept:
            modules[item.path] += self._seconds[item.nodeid]
        items[:] = sorted(kept, key=lambda item: (modules[item.path], item.path, self._seconds[item.nodeid]))


def verdict(code: int | None, output: str) -> str:
    """``"killed: TEST"``, ``"timeout"`` or ``"survived"``."""
    if code is None:
        return "timeout"
    if code in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
        return "survived"
    lines = output.splitlines()
    first = next((line for line in lines if line.startswith(("FAILED", "ERROR"))), (lines or ["no output"])[-1])
    return f"killed: {first[:200]}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Says which small changes of the product no test notices.")
    parser.add_argument("rooms", nargs="*", default=list(ROOMS), help="folders or files (default: all rooms)")
    parser.add_argument("--count", type=int, default=20, help="mutants to draw, beside all guards (default 20)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=Path, help="run the mutants of an earlier report, whatever became of them")
    parser.add_argument("--tests", type=Path, default=ROOT / "tests", help="the tests to run (default: those here)")
    parser.add_argument("--among", nargs="+", default=["tests"], help="folders or files of tests (default: all)")
    parser.add_argument(
        "--reach", type=Path, help="a file for which test reaches what; recorded as far as it is not there"
    )
    parser.add_argument("--seconds", type=float, default=60, help="of tests that a mutant is tried with (default 60)")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--report", type=Path, default=Path("mutants.json"))
    parser.add_argument("--complete", action="store_true", help="also the tests that `make test` leaves out")
    given = parser.parse_args()
    if given.only:
        listed = json.loads(given.only.read_text())
        mutants = [
            Mutant(**{**each["mutant"], "start": tuple(each["mutant"]["start"]), "end": tuple(each["mutant"]["end"])})
            for each in listed
        ]
    else:
        mutants = chosen(given.rooms, given.count, given.seed)
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    for name in IMPORTED:
        import_module(name)
    complete = ["--complete"] if given.complete else []
    results: list[dict[str, object]] = []
    # Not with `TemporaryDirectory`, which any fork might remove.
    work = Path(tempfile.mkdtemp())
    folders = [tree(work / str(number), given.tests.resolve()) for number in range(given.processes)]
    reach = Reach({}, {}, [])
    if given.reach and given.reach.is_file():
        reach = Reach(**json.loads(given.reach.read_text()))
    record(reach, given.among, complete, work, given.reach)

    def tried(mutant: Mutant, result: str, seconds: float, tests: int) -> None:
        results.append({"mutant": asdict(mutant), "result": result, "seconds": round(seconds, 1), "tests": tests})
        given.report.write_text(json.dumps(results, indent=1))
        print(f"{len(results)}/{len(mutants)} {mutant}\n    {result} ({tests} tests, {seconds:.0f} s)", flush=True)

    runs = []
    for mutant in mutants:
        if tests := reach.tests(mutant, given.seconds):
            modules = sorted({test.partition("::")[0] for test in tests})
            limit = 60 + 3 * sum(tests.values())
            runs.append(Run(["-x", *modules, *complete], Only(tests), limit, len(tests), mutant))
        else:
            tried(mutant, "survived", 0, 0)
    for run, code, output, seconds in ended(runs, folders):
        assert run.mutant is not None
        tried(run.mutant, verdict(code, output), seconds, run.tests)
    shutil.rmtree(work)
    survived = [each for each in results if each["result"] == "survived"]
    print(f"{len(mutants)} mutants, {len(mutants) - len(survived)} killed, {len(survived)} survived: {given.report}")


if __name__ == "__main__":
    main()
