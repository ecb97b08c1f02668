"""Packing Parquet files with images inside, and `load_dataset` of the same files, which writes a cache of its own."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.measure import (
    alternate,
    describe_list,
    kind_of,
    medians,
    print_table,
    ratio,
    real_list,
    scratch,
    target,
)
from benchmarks.pack import pack_once
from benchmarks.packers import FROM_PARQUET

FILES: Final = 10
"""Each has all images of the list once, in groups of 100 rows, as `datasets` writes them."""
GROUP: Final = 100
REPETITIONS: Final = 5
LIBRARY: Final = "datasets, load_dataset"
VERBATIM: Final = "packtrain, verbatim"
LEAST: Final = 5.0


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Processor seconds of packing, by packer; all packers take turns."""
    images, repetitions, files = real_list(), 1 if quick else REPETITIONS, 1 if quick else FILES
    described = describe_list(images)
    lines = described["images"] * files
    with scratch() as folder:
        source = folder / "parquet"
        _write(images, source, files)
        cases = {
            name: partial(pack_once, name, sys.executable, source, folder, described["bytes"] * files)
            for name in FROM_PARQUET
        }
        samples = alternate(cases, repetitions)
        output = kind_of(folder)
    seconds, processor = (
        {name: [sample[what] for sample in figures] for name, figures in samples.items()}
        for what in ("seconds", "cpu_seconds")
    )
    there = LIBRARY in processor
    ratios = {name: ratio(processor[LIBRARY], times) for name, times in processor.items()} if there else {}
    return {
        "input": {**described, "files": files, "group": GROUP, "rows": lines},
        "output": output,
        "settings": {"repetitions": repetitions, "warm_up": 1, "order": "alternating"},
        "missing": [name for name in FROM_PARQUET if name not in samples],
        "seconds": seconds,
        "cpu_seconds": processor,
        "median_images_per_second": {name: lines / value for name, value in medians(seconds).items()},
        "median_images_per_cpu_second": {name: lines / value for name, value in medians(processor).items()},
        "cpu_ratios": ratios,
        "targets": [target(f"{VERBATIM}: images/CPU s over load_dataset", ratios[VERBATIM], least=LEAST)] * there,
    }


def _write(images: Path, folder: Path, files: int) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    rows = [line.rsplit(None, 1) for line in images.read_text().splitlines() if line.strip()]
    struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    features = {"image": {"_type": "Image"}, "label": {"_type": "Value", "dtype": "int64"}}
    values = [{"bytes": (images.parent / path).read_bytes(), "path": path} for path, _ in rows]
    table = pa.table({"image": pa.array(values, struct), "label": [int(label) for _, label in rows]})
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    folder.mkdir()
    for number in range(files):
        name = f"train-{number:05d}-of-{files:05d}.parquet"
        parquet.write_table(table, folder / name, row_group_size=GROUP)


def show(result: dict[str, Any]) -> None:
    rows = []
    for name in result["median_images_per_second"]:
        rates = (result[f"median_images_per_{unit}"][name] for unit in ("second", "cpu_second"))
        rows.append([name, *(f"{rate:,.0f}" for rate in rates), f"{result['cpu_ratios'].get(name, 0):.2f}"])
    rows += [[name, "not installed", "", ""] for name in result["missing"]]
    print_table(["packer", "images/s", "images/CPU s", "times as fast as load_dataset"], rows)
