"""Packing on a cluster so slowly that there is time to kill something; and the command `packtrain` that packs so.

A module of its own, because workers import it by name.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from helpers.ray_cluster import stay_on_loopback

from packtrain._packer import shard
from packtrain._packer.listing import Source
from packtrain._packer.pack_run import pack_elsewhere
from packtrain._packer.shard import ShardProgress, ShardTask


def pack_slowly(source: Source, task: ShardTask, report: Callable[[ShardProgress], None]) -> ShardProgress:
    """Packs a shard, and pauses after each record."""

    def pause(progress: ShardProgress) -> None:
        time.sleep(0.1)
        report(progress)

    shard._REPORT_SECONDS = -1.0  # type: ignore[misc]
    return pack_elsewhere(source, task, pause)


def main() -> None:
    """Runs the command."""
    stay_on_loopback()
    from helpers import ray_packing  # workers know this module by its name

    from packtrain._cli.main import main as packtrain
    from packtrain._packer import pack_run

    pack_run.pack_elsewhere = ray_packing.pack_slowly

    packtrain()


if __name__ == "__main__":
    main()
