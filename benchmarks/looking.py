"""`packtrain show` over photographs, and `packtrain view` of 10 million rows: how long a person waits.

The 10 million rows are those of `open`, with photographs of 500 x 375 pixels as their records.
"""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from PIL import Image

from benchmarks.measure import (
    alternate,
    describe_list,
    kind_of,
    medians,
    pillow_build,
    print_table,
    real_list,
    scratch,
    target,
)
from benchmarks.open import QUICK_RECORDS, QUICK_SHARDS, RECORDS, SHARDS, make_dataset
from packtrain import PackOptions, pack

SIZE: Final = (500, 375)
REPETITIONS: Final = 5
ROWS: Final = 24
"""Rows on a page of `view`, whose pictures a browser fetches at most six at a time."""
CONNECTIONS: Final = 6
SIDE: Final = 192
SHOWN: Final = {"show": (), "show --transform rrc224": ("--transform", "rrc224")}
MOST: Final = {"show": 2.0, "view, open": 1.0, "view, page with pictures": 0.3}


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Seconds of `show` and of what `view` does."""
    listed = real_list()
    records, shards, repetitions = (QUICK_RECORDS, QUICK_SHARDS, 1) if quick else (RECORDS, SHARDS, REPETITIONS)
    with scratch() as folder:
        pack(listed, folder / "photographs", PackOptions(root=listed.parent), num_workers=2)
        files = [listed.parent / line.rsplit(None, 1)[0] for line in listed.read_text().splitlines()]
        (folder / "rows").mkdir()
        make_dataset(folder / "rows", records, shards, [_resized(path) for path in files])
        shown: dict[str, Callable[[], float]] = {
            name: partial(_show, folder / "photographs", *words) for name, words in SHOWN.items()
        }
        seconds = alternate(shown, repetitions)
        views = alternate({"view": partial(_view, folder / "rows", records)}, repetitions)["view"]
        kind = kind_of(folder)
    seconds |= {name: [each[name] for each in views] for name in views[0]}
    middle = medians(seconds)
    return {
        **pillow_build(),
        "input": describe_list(listed) | {"rows": records, "output": kind},
        "settings": {"repetitions": repetitions, "warm_up": 1, "rows_on_a_page": ROWS, "connections": CONNECTIONS},
        "seconds": seconds,
        "median_seconds": middle,
        "targets": [target(f"{name}, seconds", middle[name], most=most) for name, most in MOST.items()],
    }


def show(result: dict[str, Any]) -> None:
    rows = [[name, f"{1000 * value:,.1f} ms"] for name, value in result["median_seconds"].items()]
    print_table([f"show: 64 photographs; view: {result['input']['rows']:,} rows", "median"], rows)


def _resized(path: Path) -> bytes:
    file = io.BytesIO()
    Image.open(path).convert("RGB").resize(SIZE).save(file, "JPEG", quality=90)
    return file.getvalue()


def _show(dataset: Path, *words: str) -> float:
    """Seconds of the whole command."""
    command = [sys.executable, "-m", "packtrain", "show", str(dataset), *words, "--out", f"{dataset}.png"]
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started


def _view(dataset: Path, records: int) -> dict[str, float]:
    """Seconds until the address is printed, of the first page, and of the page in the middle."""
    command = [sys.executable, "-m", "packtrain", "view", str(dataset), "--no-browser"]
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        opened = time.perf_counter() - started
        try:
            _page(address, 0)
            texts, everything = _page(address, records // 2)
        finally:
            process.send_signal(signal.SIGINT)
    return {"view, open": opened, "view, page without pictures": texts, "view, page with pictures": everything}


def _page(address: str, place: int) -> tuple[float, float]:
    """Seconds until the rows of a page are there, and until their pictures are."""
    started = time.perf_counter()
    rows = json.loads(_fetched(f"{address}rows?place={place}&size={ROWS}"))["rows"]
    texts = time.perf_counter() - started
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        pictures = list(pool.map(_fetched, [f"{address}image?row={row['row']}&side={SIDE}" for row in rows]))
    seconds = time.perf_counter() - started
    assert len(pictures) == ROWS and not any(row["problem"] for row in rows)
    return texts, seconds


def _fetched(address: str) -> bytes:
    with urlopen(address) as answer:
        content: bytes = answer.read()
    return content
