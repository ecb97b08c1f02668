"""Runs benchmarks, prints a table for each, and keeps the raw figures in benchmarks/results/; see README.md here."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol, cast

# Run as a script, Python looks in this file's folder; the benchmarks import each other as benchmarks.*.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.measure import machine, print_targets, save, saved  # noqa: E402

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
    "peers": "loading_peers",
    "readahead": "readahead",
}
BY_DEFAULT: Final = ("pack", "open", "records", "transcode", "decode", "raw")


class Benchmark(Protocol):
    """What a module of this folder provides."""

    def measure(self) -> dict[str, Any]:
        """Measures. The result lands in the result file, its `targets` on the screen."""

    def show(self, result: dict[str, Any]) -> None:
        """Prints the result as a table."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs benchmarks; their raw figures land in benchmarks/results/.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(BENCHMARKS)}")
    parser.add_argument("--table", action="store_true", help="measure nothing: print the tables of the kept figures")
    arguments = parser.parse_args()
    names = arguments.names or BY_DEFAULT
    for name in names:
        if name not in BENCHMARKS:
            parser.error(f"no benchmark {name!r}: expected any of {', '.join(BENCHMARKS)}")
    for name in names:
        benchmark = cast(Benchmark, import_module(f"benchmarks.{BENCHMARKS[name]}"))
        if arguments.table:
            for result in saved(name):
                _print(benchmark, name, result)
            continue
        before = machine()
        result = benchmark.measure()
        path = save(name, before, result)
        _print(benchmark, name, result)
        print(f"\nraw figures: {path.parent.parent.name}/{path.parent.name}/{path.name}")


def _print(benchmark: Benchmark, name: str, result: dict[str, Any]) -> None:
    print(f"\n## {name}{', ' * ('pillow' in result)}{result.get('pillow', '')}\n")
    benchmark.show(result)
    print_targets(result["targets"])


if __name__ == "__main__":
    main()
