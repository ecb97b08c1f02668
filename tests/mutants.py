"""Changes the product in small ways, one at a time, and says which changes no test notices.

    .venv/bin/python tests/mutants.py --count 20 core storage/staging
    .venv/bin/python tests/mutants.py --only mutants.json --tests OTHER/tests

A mutant is killed if a test fails. Tests of the same name as the module run first, then those of its folder, then those
of its room, for a guard also those of all formats and of faults; the run ends with the first failure. A mutant that
survives is a place to look at, not always a missing test: some changes mean the same.

Let nothing else run meanwhile: a test that a busy machine makes fail looks like a killed mutant.

Mutants run in copies of the working tree, which `PYTHONPATH` puts before the installed package, so several at once.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Queue
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
ROOMS: Final = ("core", "codec", "formats", "storage", "readers", "packer", "growing", "extras", "cli")
SECONDS: Final = 300
"""For which the tests of one mutant may run. One that takes longer hangs, which a test would notice as well."""

# Calls without which a crash, a race or damage goes unnoticed: each of them is tried, not a sample.
GUARDS: Final = frozenset(
    ("fsync", "fsync_file", "fsync_folder", "flock", "lockf", "rename", "replace", "publish", "write_file")
)
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
    """

    file: str
    start: tuple[int, int]
    end: tuple[int, int]
    text: str
    guard: bool = False

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
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.arguments):
            continue
        for new, guard in _changes(node):
            assert isinstance(node, ast.expr | ast.stmt)
            assert node.end_lineno is not None and node.end_col_offset is not None
            end = (node.end_lineno, node.end_col_offset)
            yield Mutant(file, (node.lineno, node.col_offset), end, new, guard)


def _changes(node: ast.AST) -> Iterator[tuple[str, bool]]:
    match node:
        case ast.Compare(left, [operator], [right]) if type(operator) in _COMPARED:
            new = ast.Compare(left, [_COMPARED[type(operator)]()], [right])
            yield f"({ast.unparse(new)})", "crc" in ast.unparse(node) or "checksum" in ast.unparse(node)
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


def tests_for(mutant: Mutant, tests: Path) -> list[str]:
    """The tests that know its module best, first."""
    path = Path(mutant.file)
    folder = tests / path.parent
    named = sorted(tests.rglob(f"test_{path.stem.strip('_')}*.py"))
    near = sorted(folder.glob("test_*.py")) if folder.is_dir() else []
    room = [tests / path.parts[0]] if (tests / path.parts[0]).is_dir() else []
    across = [each for name in ("contract", "faults") if mutant.guard and (each := tests / name).is_dir()]
    return [str(each.relative_to(tests.parent)) for each in dict.fromkeys((*named, *near, *room, *across))]


def tree(folder: Path, tests: Path) -> None:
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


def run(mutant: Mutant, folder: Path) -> tuple[str, float]:
    """How it ends, and the seconds that takes: ``"killed: TEST"``, ``"timeout"`` or ``"survived"``."""
    path, began = folder / mutant.file, time.monotonic()
    whole = path.read_bytes()
    environment = {**os.environ, "PYTHONPATH": str(folder / "links"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header"]
    path.write_bytes(mutant.applied(whole))
    try:
        done = subprocess.run(
            [*command, *tests_for(mutant, folder / "tests")],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return "timeout", time.monotonic() - began
    finally:
        path.write_bytes(whole)
    if done.returncode == 0:
        return "survived", time.monotonic() - began
    lines = done.stdout.splitlines()
    first = next((line for line in lines if line.startswith(("FAILED", "ERROR"))), (lines or ["no output"])[-1])
    return f"killed: {first[:200]}", time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description="Says which small changes of the product no test notices.")
    parser.add_argument("rooms", nargs="*", default=list(ROOMS), help="folders or files (default: all rooms)")
    parser.add_argument("--count", type=int, default=20, help="mutants to draw, beside all guards (default 20)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=Path, help="run the mutants of an earlier report, whatever became of them")
    parser.add_argument("--tests", type=Path, default=ROOT / "tests", help="the tests to run (default: those here)")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--report", type=Path, default=Path("mutants.json"))
    given = parser.parse_args()
    if given.only:
        listed = json.loads(given.only.read_text())
        mutants = [
            Mutant(**{**each["mutant"], "start": tuple(each["mutant"]["start"]), "end": tuple(each["mutant"]["end"])})
            for each in listed
        ]
    else:
        mutants = chosen(given.rooms, given.count, given.seed)
    results: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as work, ThreadPoolExecutor(given.processes) as pool:
        folders: Queue[Path] = Queue()
        for number in range(given.processes):
            folder = Path(work) / str(number)
            tree(folder, given.tests.resolve())
            folders.put(folder)

        def tried(mutant: Mutant) -> None:
            folder = folders.get()
            try:
                result, seconds = run(mutant, folder)
            finally:
                folders.put(folder)
            results.append({"mutant": asdict(mutant), "result": result, "seconds": round(seconds, 1)})
            given.report.write_text(json.dumps(results, indent=1))
            print(f"{len(results)}/{len(mutants)} {mutant}\n    {result} ({seconds:.0f} s)", flush=True)

        list(pool.map(tried, mutants))
    survived = [each for each in results if each["result"] == "survived"]
    print(f"{len(mutants)} mutants, {len(mutants) - len(survived)} killed, {len(survived)} survived: {given.report}")


if __name__ == "__main__":
    main()
