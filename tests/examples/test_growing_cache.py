"""The example of a growing cache does what its README says: the cache grows, evicts, and the network improves."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from growing_cache import chart
from growing_cache.store import CLASSES, COUNT, LABEL, SIDE, Store, sample
from PIL import Image

FOLDER = Path(__file__).parents[2] / "examples/growing_cache"


@pytest.fixture
def store() -> Iterator[Store]:
    with Store(rate=1e9) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_a_sample_is_the_same_every_time_and_its_shape_can_be_seen() -> None:
    for number in range(8):
        (picture, label), (again, _) = sample(number), sample(number)
        assert picture.shape == (1, SIDE, SIDE) and picture.dtype == np.float32
        assert np.array_equal(picture, again)
        assert label == number % len(CLASSES)
        # Shapes are brighter than what is around them.
        assert picture.mean() > 0


def test_the_store_sends_the_samples_that_it_is_asked_for(store: Store) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", store.server_port, timeout=10)
    for number in (5, 0, COUNT - 1):
        connection.request("GET", f"/samples/{number}")
        with connection.getresponse() as response:
            picture, label = sample(number)
            assert np.array_equal(np.frombuffer(response.read(), np.float32), picture.ravel())
            assert int(response.headers[LABEL]) == label
    for path in (f"/samples/{COUNT}", "/samples/x", "/other/1", "/"):
        connection.request("GET", path)
        with connection.getresponse() as response:
            response.read()
            assert response.status == 404
    connection.close()


@pytest.mark.complete
def test_the_cache_grows_and_evicts_and_the_network_improves(tmp_path: Path) -> None:
    # Four times as many samples as the cache can have.
    options = ["--budget=1536KiB", "--shard-size=64KiB", "--samples=800", "--rate=1e6", "--every=0.2"]
    paths = ["--figures", str(tmp_path / "figures.json")]
    command = [sys.executable, str(FOLDER / "train.py"), str(tmp_path / "cache"), *options, *paths]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    measured = json.loads((tmp_path / "figures.json").read_text())
    figures = measured["figures"]
    first, last = figures[0], figures[-1]
    assert len(figures) == done.stdout.count("\n")
    assert last["generation"] > first["generation"] and last["epoch"] > first["epoch"]
    assert last["arrived"] >= 800 > last["samples"]
    assert last["evicted_shards"] > 0
    assert max(figure["used_bytes"] for figure in figures) <= 1536 << 10
    assert last["loss"] < first["loss"]
    assert last["loss"] < last["loss_of_first"]
    pytest.importorskip("matplotlib")
    chart.draw(measured, tmp_path / "chart.png")
    with Image.open(tmp_path / "chart.png") as image:
        assert image.format == "PNG"


def test_the_readme_names_the_options_of_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    options = import_module("growing_cache.train").TrainOptions
    text = (FOLDER / "README.md").read_text()
    listed = text[text.index("Other options of") :]
    defaults: dict[str, Any] = {f"--{field.name.replace('_', '-')}": field.default for field in fields(options)}
    assert set(re.findall(r"--[a-z-]+", listed)) == set(defaults)
    for name, value in re.findall(r"`(--[a-z-]+) (\S+)`", listed):
        assert type(defaults[name])(value) == defaults[name]
    for name in re.findall(r"examples/growing_cache/(\w+\.py)", text):
        assert (FOLDER / name).exists()
