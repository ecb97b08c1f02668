"""Training from an S3 server, side by side with mosaicml-streaming and litdata: the same images, server and network.

Each library has packed the images with its own writer, and reads them through a cache of its own, which is empty at the
start. A proxy counts what it fetches in each epoch.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Any, Final

from benchmarks.contestants import CONTESTANTS, LITDATA, PACKTRAIN, STREAMING
from benchmarks.environments import interpreter
from benchmarks.measure import (
    ROOT,
    NotInstalled,
    alternate,
    kind_of,
    pillow_build,
    print_table,
    ratio,
    real_list,
    scratch,
    target,
)
from benchmarks.peers.common import BATCH, PACKED, WORKERS
from benchmarks.rounds import Field
from benchmarks.servers import Proxy, Server, bucket, proxy
from benchmarks.workloads import QUICK_LINES, WORKLOADS, prepare
from packtrain import PackOptions, pack

LOCAL: Final = "packtrain, local copy"
HDF5: Final = "packtrain, HDF5"
OURS: Final = (LOCAL, HDF5)
"""Kinds of records that only packtrain reads."""
PEERS: Final = (STREAMING, LITDATA)
FOLDERS: Final = {PACKTRAIN: PACKED, HDF5: f"{PACKED}-hdf5", STREAMING: "streaming-{}", LITDATA: "litdata-{}"}
"""Folder of each writer; {} is the kind of records."""
LEAST: Final = 2.0
LEAST_OF_LOCAL: Final = 0.95
MOST_SECONDS: Final = 3.0
LINES: Final = {"jpeg": 2000, "raw256-rrc": 4000}
"""Images of an epoch, by workload: it should take seconds, and fill a few shards of each writer."""
_END_SECONDS: Final = 20.0
_MOST_SECONDS: Final = 90.0
"""Seconds that a process may take."""
_ATTEMPTS: Final = 4
"""Number of times that a peer is tried in a round before a setting is measured without it: now and then
mosaicml-streaming stands still before its first batch, and litdata with a cache of two or three chunks. The results say
how many attempts failed."""


@dataclass(frozen=True)
class Setting:
    """Processes that are measured at once.

    Attributes:
        title: The heading of its table.
        workload: The images, see `workloads.WORKLOADS`.
        epochs: Number of epochs, the first with an empty cache.
        repetitions: Number of rounds.
        rate: Bytes per second of the network; None: as fast as server and proxy are.
        share: Part of the dataset that the cache may hold; None: all of it, without a limit.
        local: True if packtrain also reads a copy on this machine.
        hdf5: True if packtrain also reads HDF5, which has nothing between the records.
    """

    title: str
    workload: str
    epochs: int
    repetitions: int
    rate: float | None = None
    share: float | None = None
    local: bool = False
    hdf5: bool = False


SETTINGS: Final = {
    "jpeg": Setting("JPEG", "jpeg", 3, 5, local=True, hdf5=True),
    "raw": Setting("raw, short=256", "raw256-rrc", 4, 5, local=True),
    "jpeg-500": Setting("JPEG, 500 MB/s", "jpeg", 1, 5, rate=500e6),
    "jpeg-100": Setting("JPEG, 100 MB/s", "jpeg", 2, 5, rate=100e6),
    "raw-half": Setting("raw, cache of half of the dataset", "raw256-rrc", 3, 5, share=0.5),
}


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Runs every setting, all contestants in turn, each round in a fresh process with an empty cache."""
    with ExitStack() as stack:
        folder = stack.enter_context(scratch())
        server = stack.enter_context(bucket(folder))
        between = stack.enter_context(proxy(server.port))
        field = Field((PACKTRAIN, *PEERS), gpu=False)
        inputs: dict[str, Any] = {}
        settings: dict[str, Any] = {}
        for name, setting in SETTINGS.items():
            if quick and setting.share:  # half of a short list is too little for any of the caches
                continue
            if setting.workload not in inputs:
                inputs[setting.workload] = _upload(setting.workload, folder, server, field, quick=quick)
            measured = _Measuring(folder, server, between, setting, inputs[setting.workload]["bytes"])
            sides = [*field.contestants, *([HDF5] if setting.hdf5 else []), *([LOCAL] if setting.local else [])]
            repetitions = 1 if quick else setting.repetitions
            cases = {side: partial(measured.attempted, side) for side in sides}
            figures = alternate(cases, repetitions, warm_up=0)
            settings[name] = {
                "title": setting.title,
                "workload": setting.workload,
                "network_bytes_per_second": setting.rate,
                "cache_share": setting.share,
                "repetitions": repetitions,
                "rounds": figures,
                "left_out": {side: measured.failed.get(side, "not installed") for side in sides if side not in figures},
                "medians": {side: _medians(rounds) for side, rounds in figures.items()},
            }
        return {
            **pillow_build(),
            "inputs": inputs,
            "output": kind_of(folder),
            "settings": {"batch_size": BATCH, "workers": WORKERS, "server": "SeaweedFS", "settings": settings},
            "contestants": field.contestants,
            "missing": field.missing,
            "targets": list(_targets(settings)),
        }


def show(result: dict[str, Any]) -> None:
    """Prints a table for each setting."""
    for setting in result["settings"]["settings"].values():
        print(f"\n{setting['title']}\n")
        rows = [
            [
                side,
                f"{found['first_batch_seconds']:.2f}",
                f"{found['cold']['images_per_second']:,.0f}",
                f"{found['cold']['fetched_bytes'] / 1e6:,.0f}",
                *(
                    (f"{warm['images_per_second']:,.0f}", f"{warm['fetched_bytes'] / 1e6:,.0f}")
                    if (warm := found["warm"])
                    else ("", "")
                ),
            ]
            for side, found in setting["medians"].items()
        ]
        header = ["", "s to the first batch", "images/s, first epoch", "MB fetched", "images/s, later", "MB per epoch"]
        print_table(header, rows)
        for side, reason in setting["left_out"].items():
            print(f"\n{side}: left out, {reason}")
    for name, reason in result["missing"].items():
        print(f"\n{name}: not measured, {reason}")


class _Measuring:
    """Runs a contestant in one setting."""

    def __init__(
        self, folder: Path, server: Server, between: Proxy, setting: Setting, sizes: Mapping[str, int]
    ) -> None:
        self._folder = folder
        self._server = server
        self._between = between
        self._setting = setting
        self._sizes = sizes
        self.failed: dict[str, str] = {}
        """End of the last attempt that failed, by peer."""

    def attempted(self, side: str) -> list[dict[str, float]]:
        """The same as `run`, tried a few times. Each epoch has the number of attempts that failed before.

        Raises:
            NotInstalled: It failed each time, which `failed` says.
            RuntimeError: packtrain failed once.
        """
        for failed in range(_ATTEMPTS):
            try:
                return [{**epoch, "failed_before": failed} for epoch in self.run(side)]
            except RuntimeError as error:
                if side not in PEERS:
                    raise
                self.failed[side] = str(error).strip().splitlines()[-1]
        raise NotInstalled(side)

    def run(self, side: str) -> list[dict[str, float]]:
        """All epochs of one process.

        Raises:
            NotInstalled: It is not installed.
            RuntimeError: It failed.
        """
        setting, name = self._setting, PACKTRAIN if side in OURS else side
        cache, temporary = self._folder / "cache", self._folder / "tmp"
        cache.mkdir()
        temporary.mkdir()
        address = f"{self._server.url}/{setting.workload}/{FOLDERS.get(side, PACKED).format(_kind(setting.workload))}"
        if side == LOCAL:
            address = str(self._folder / setting.workload / PACKED)
        limit = int(self._sizes[name] * setting.share) if setting.share else 0
        stream = WORKLOADS[setting.workload].stream
        arguments = [name, stream, address, cache, limit, setting.epochs]
        self._between.limit(setting.rate)
        self._between.forget()
        try:
            return self._epochs(interpreter(CONTESTANTS[name].environment), [str(each) for each in arguments])
        finally:
            self._between.limit(None)
            shutil.rmtree(cache, ignore_errors=True)
            shutil.rmtree(temporary, ignore_errors=True)

    def _epochs(self, python: str, arguments: list[str]) -> list[dict[str, float]]:
        found: list[dict[str, float]] = []
        seen = 0
        command = [python, "-m", "benchmarks.epochs", *arguments]
        # litdata would ask PyPI for its newest version while the clock runs.
        environment = {
            **os.environ,
            **self._server.through(self._between.port).environment,
            "S3_ENDPOINT_URL": f"http://127.0.0.1:{self._between.port}",
            "LITDATA_DISABLE_VERSION_CHECK": "1",
            # mosaicml-streaming leaves its locks here.
            "TMPDIR": str(self._folder / "tmp"),
        }
        log = self._folder / "log"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
            )
        assert process.stdout is not None
        watch = Timer(_MOST_SECONDS, os.killpg, [process.pid, signal.SIGKILL])
        watch.start()
        try:
            for line in process.stdout:
                if not line.startswith(b"{"):
                    continue
                answer = json.loads(line)
                if "missing" in answer:
                    raise NotInstalled(answer["missing"])
                # The next epoch has begun: what is under way belongs to it.
                now = self._between.traffic(settled=False)
                rate = answer["images"] / answer["seconds"]
                found.append({**answer, "images_per_second": rate, "fetched_bytes": now.bytes - seen})
                seen = now.bytes
                if len(found) == self._setting.epochs:
                    return found
        finally:
            watch.cancel()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        end = f"ended after {len(found)} of {self._setting.epochs} epochs, or was killed after {_MOST_SECONDS:.0f} s"
        words = log.read_text(errors="replace")[-4000:]
        raise RuntimeError(f"{' '.join(command)}:\n{words}\n{self._setting.title}: {end}")


def _medians(rounds: list[list[dict[str, float]]]) -> dict[str, Any]:
    def of(epochs: list[list[dict[str, float]]]) -> dict[str, float]:
        return {
            "images_per_second": statistics.median(map(_rate, epochs)),
            "fetched_bytes": statistics.median(map(_fetched, epochs)),
        }

    return {
        "first_batch_seconds": statistics.median(epochs[0]["first_batch_seconds"] for epochs in rounds),
        "cold": of([epochs[:1] for epochs in rounds]),
        "warm": of([epochs[1:] for epochs in rounds]) if len(rounds[0]) > 1 else None,
    }


def _rate(epochs: list[dict[str, float]]) -> float:
    """Images per second of some epochs of a process, with the time between them."""
    return sum(epoch["images"] for epoch in epochs) / sum(epoch["seconds"] for epoch in epochs)


def _fetched(epochs: list[dict[str, float]]) -> float:
    """Bytes fetched per epoch."""
    return statistics.fmean(epoch["fetched_bytes"] for epoch in epochs)


def _targets(settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for name, setting in settings.items():
        title, rounds = setting["title"], setting["rounds"]
        later = {side: [epochs[1:] for epochs in figures] for side, figures in rounds.items()}
        for side in PEERS:
            if side not in rounds:
                continue
            if setting["cache_share"] is None and SETTINGS[name].epochs > 1:
                faster = ratio([*map(_rate, later[PACKTRAIN])], [*map(_rate, later[side])])
                yield target(f"{title}: images/s of later epochs over {side}'s", faster, least=LEAST)
            fetched = {each: [*map(_fetched, found)] for each, found in rounds.items()}
            for mine in (PACKTRAIN, HDF5):
                if mine in rounds:
                    more = ratio(fetched[mine], fetched[side])
                    yield target(f"{title}: bytes that {mine} fetched over {side}'s", more, most=1.0)
        if LOCAL in rounds:
            speed = ratio([*map(_rate, later[PACKTRAIN])], [*map(_rate, later[LOCAL])])
            yield target(f"{title}: images/s of later epochs over a local copy's", speed, least=LEAST_OF_LOCAL)
        if SETTINGS[name].rate == 500e6:
            seconds = setting["medians"][PACKTRAIN]["first_batch_seconds"]
            yield target(f"{title}: s to the first batch", seconds, most=MOST_SECONDS)


def _upload(workload: str, folder: Path, server: Server, field: Field, *, quick: bool) -> dict[str, Any]:
    """Has the images packed by every contestant, and uploads that. packtrain's stays here, too, for `LOCAL`."""
    place = folder / workload
    described = prepare(WORKLOADS[workload], real_list(), place, QUICK_LINES if quick else LINES[workload])
    field.write(WORKLOADS[workload], place)
    hdf5 = any(setting.hdf5 for setting in SETTINGS.values() if setting.workload == workload)
    if hdf5:
        pack(place / PACKED, place / FOLDERS[HDF5], PackOptions("hdf5", seed=None))
    sizes = {}
    for side in [*field.contestants, *([HDF5] if hdf5 else [])]:
        packed = place / FOLDERS[side].format(_kind(workload))
        files = [path for path in packed.rglob("*") if path.is_file()]
        for path in files:
            server.put(f"{workload}/{path.relative_to(place)}", path.read_bytes())
        sizes[side] = sum(path.stat().st_size for path in files)
    for path in place.iterdir():
        if path.name != PACKED:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return {**described, "bytes": sizes}


def _kind(workload: str) -> str:
    return "raw" if WORKLOADS[workload].raw else "jpeg"
