"""Runs benchmarks, prints a table for each, and writes the raw figures to benchmarks/results/; see README.md here."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol, cast

# Run as a script, Python looks in this file's folder; the benchmarks import each other as benchmarks.*.
if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.comparison import Comparison
from benchmarks.contestants import CONTESTANTS
from benchmarks.measure import RESULTS, Unmeasurable, machine, print_targets, save, saved
from benchmarks.plot import draw

BENCHMARKS: Final = (
    "pack",
    "parquet",
    "cluster",
    "open",
    "changing",
    "loading",
    "recipes",
    "effects",
    "views",
    "masks",
    "photographs",
    "stores",
    "webdataset",
    "indexing",
    "report",
    "looking",
    "staging",
    "staging-store",
    "growing",
    "objects",
    "from-store",
    "streams-peers",
    "fetching",
    "dali",
    "backends",
    "largest-batch",
    "pinning",
    "decoders",
    "train-val-memory",
    "floors",
    "peers-open",
    "scale-eviction",
    "scale-randomness",
    "scale-size",
    "scale-paper",
)
"""Each is a module of this folder, or of scale/."""
COMPARISONS: Final = {
    f"peers-{workload}": workload for workload in ("jpeg", "jpeg500", "raw256-rrc", "raw-crop", "cold")
}
GROUPS: Final = {
    "peers": (*COMPARISONS, "pack", "open", "peers-open"),
    "streams": ("streams-peers", "fetching"),
}
BY_DEFAULT: Final = ("pack", "open", "loading", "recipes", "effects", "views", "masks", "photographs")
OUT: Final = RESULTS.with_name("out")
"""Folder of figures that do not replace the kept ones."""


class Benchmark(Protocol):
    """Functions of a module of this folder."""

    def measure(self, *, quick: bool = False) -> dict[str, Any]:
        """Measures.

        Args:
            quick: Measure one short round, which shows that everything works.

        Returns:
            What goes into the result file; its `targets` are printed below the table.

        Raises:
            Unmeasurable: This machine cannot run the benchmark.
        """

    def show(self, result: dict[str, Any]) -> None:
        """Prints the result as tables."""


def main() -> None:
    names = [*BENCHMARKS, *COMPARISONS, *GROUPS]
    parser = argparse.ArgumentParser(description="Runs benchmarks and writes the raw figures to benchmarks/results/.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(names)}")
    parser.add_argument("--table", action="store_true", help="measure nothing: print the tables of the kept figures")
    parser.add_argument("--plot", action="store_true", help="measure nothing: draw the kept figures of the peers")
    parser.add_argument("--quick", action="store_true", help="one short round, to see that everything works")
    parser.add_argument(
        "--contestant", action="append", default=[], metavar="NAME", help="peers-*: only this one; may be repeated"
    )
    arguments = parser.parse_args()
    for given, known in ((arguments.names, names), (arguments.contestant, list(CONTESTANTS))):
        for name in set(given).difference(known):
            parser.error(f"unknown name {name!r}; choose from {', '.join(known)}")
    wanted = [one for name in arguments.names or BY_DEFAULT for one in GROUPS.get(name, (name,))]
    if arguments.contestant and (others := [name for name in wanted if name not in COMPARISONS]):
        wanted = [name for name in wanted if name in COMPARISONS]
        print(f"not run, because --contestant is for peers-*: {', '.join(others)}")
    # Figures of a quick round, or of a part of the field, do not replace the kept ones.
    folder = OUT if arguments.quick or arguments.contestant else RESULTS
    if not arguments.plot:
        for name in wanted:
            if arguments.table:
                _show_saved(name)
            else:
                _run(name, arguments.contestant, folder, quick=arguments.quick)
    if arguments.plot or (not arguments.table and set(wanted) & set(COMPARISONS)):
        print(f"\n{draw(list(COMPARISONS), folder)}")


def _run(name: str, contestants: Collection[str], folder: Path, *, quick: bool) -> None:
    benchmark, before = _benchmark(name, contestants), machine()
    try:
        result = benchmark.measure(quick=quick)
    except Unmeasurable as error:
        print(f"\n## {name}: not measured, {error}")
        return
    options = [f"--contestant={contestant}" for contestant in contestants] + ["--quick"] * quick
    command = shlex.join(["python", "benchmarks/run.py", name, *options])
    path = save(name, before, result, command=command, folder=folder)
    _print(benchmark, name, result)
    print(f"\nraw figures: {path.parent.parent.name}/{path.parent.name}/{path.name}")


def _show_saved(name: str) -> None:
    for result in saved(name):
        _print(_benchmark(name), name, result)


def _benchmark(name: str, contestants: Collection[str] = ()) -> Benchmark:
    if name in COMPARISONS:
        return Comparison(COMPARISONS[name], contestants)
    module = name.replace("scale-", "scale.").replace("-", "_")
    return cast(Benchmark, import_module(f"benchmarks.{module}"))


def _print(benchmark: Benchmark, name: str, result: dict[str, Any]) -> None:
    print(f"\n## {name}{', ' * ('pillow' in result)}{result.get('pillow', '')}\n")
    benchmark.show(result)
    print_targets(result["targets"])


if __name__ == "__main__":
    main()
