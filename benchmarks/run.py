"""Runs benchmarks, prints a table for each, and keeps the raw figures in benchmarks/results/; see README.md here."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol, cast

# Run as a script, Python looks in this file's folder; the benchmarks import each other as benchmarks.*.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.comparison import Choice, Comparison  # noqa: E402
from benchmarks.contestants import CONTESTANTS  # noqa: E402
from benchmarks.measure import RESULTS, Unmeasurable, machine, print_targets, save, saved  # noqa: E402
from benchmarks.plot import draw  # noqa: E402

BENCHMARKS: Final = {
    "pack": "pack",
    "open": "opening",
    "records": "records",
    "profile": "profile_pack",
    "transcode": "transcoding",
    "decode": "decoding",
    "raw": "raw",
    "photographs": "photographs",
    "stages": "profile_decode",
    "intervals": "intervals",
    "table": "table",
    "loading": "loading",
    "readahead": "readahead",
    "overhead": "overhead",
    "floors": "floors",
    "peers-open": "opening_peers",
    "staging": "staging",
}
COMPARISONS: Final = {
    f"peers-{workload}": workload for workload in ("jpeg", "jpeg500", "raw256-rrc", "raw-crop", "cold")
}
GROUPS: Final = {"peers": (*COMPARISONS, "pack", "open", "peers-open")}
BY_DEFAULT: Final = ("pack", "open", "records", "transcode", "decode", "raw")
OUT: Final = RESULTS.with_name("out")
"""For figures that are not worth keeping."""


class Benchmark(Protocol):
    """What a module of this folder provides."""

    def measure(self) -> dict[str, Any]:
        """Measures. The result lands in the result file, its `targets` on the screen.

        Raises:
            Unmeasurable: This machine cannot run it.
        """

    def show(self, result: dict[str, Any]) -> None:
        """Prints the result as a table."""


def main() -> None:
    names = [*BENCHMARKS, *COMPARISONS, *GROUPS]
    parser = argparse.ArgumentParser(description="Runs benchmarks; their raw figures land in benchmarks/results/.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(names)}")
    parser.add_argument("--table", action="store_true", help="measure nothing: print the tables of the kept figures")
    parser.add_argument("--plot", action="store_true", help="measure nothing: draw the kept figures of the peers")
    parser.add_argument(
        "--contestant", action="append", default=[], metavar="NAME", help="peers: only this one; may be repeated"
    )
    parser.add_argument("--quick", action="store_true", help="peers: one short round, to see that everything works")
    arguments = parser.parse_args()
    for what, known in ((arguments.names, names), (arguments.contestant, CONTESTANTS)):
        for name in set(what).difference(known):
            parser.error(f"{name!r} is not known: expected any of {', '.join(known)}")
    choice = Choice(tuple(arguments.contestant), arguments.quick)
    wanted = [one for name in arguments.names or BY_DEFAULT for one in GROUPS.get(name, (name,))]
    # Figures of a part of the field do not replace those of all.
    partial = bool(choice.contestants) or choice.quick
    folder = OUT if partial else RESULTS
    if partial and (others := [name for name in wanted if name not in COMPARISONS]):
        wanted = [name for name in wanted if name in COMPARISONS]
        print(f"left out, --quick and --contestant being for peers-*: {', '.join(others)}")
    if not arguments.plot:
        for name in wanted:
            _run(name, choice, folder, table=arguments.table)
    if arguments.plot or (not arguments.table and set(wanted) & set(COMPARISONS)):
        print(f"\n{draw(list(COMPARISONS), folder)}")


def _run(name: str, choice: Choice, folder: Path, *, table: bool) -> None:
    benchmark = _benchmark(name, choice)
    if table:
        for result in saved(name):
            _print(benchmark, name, result)
        return
    before = machine()
    try:
        result = benchmark.measure()
    except Unmeasurable as error:
        print(f"\n## {name}: not measured, {error}")
        return
    path = save(name, before, result, command=_command(name, choice), folder=folder)
    _print(benchmark, name, result)
    print(f"\nraw figures: {path.parent.parent.name}/{path.parent.name}/{path.name}")


def _benchmark(name: str, choice: Choice) -> Benchmark:
    if name in COMPARISONS:
        return Comparison(COMPARISONS[name], choice)
    return cast(Benchmark, import_module(f"benchmarks.{BENCHMARKS[name]}"))


def _command(name: str, choice: Choice) -> str:
    options: Sequence[str] = [f"--contestant={contestant}" for contestant in choice.contestants]
    return shlex.join(["python", "benchmarks/run.py", name, *options, *["--quick"] * choice.quick])


def _print(benchmark: Benchmark, name: str, result: dict[str, Any]) -> None:
    print(f"\n## {name}{', ' * ('pillow' in result)}{result.get('pillow', '')}\n")
    benchmark.show(result)
    print_targets(result["targets"])


if __name__ == "__main__":
    main()
