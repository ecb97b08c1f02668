"""The process that a cluster's nodes belong to. It does what it is asked for on standard input, until that ends."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from typing import Any

from helpers.ray_cluster import LOOPBACK, stay_on_loopback


class Nodes:
    """A cluster's nodes, each named by the process id of its raylet."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._head = self._start(0)

    def _start(self, cpus: int) -> Any:
        return self._cluster.add_node(num_cpus=cpus, node_ip_address=LOOPBACK, include_dashboard=False)

    @property
    def _nodes(self) -> dict[int, Any]:
        return {node.all_processes["raylet"][0].process.pid: node for node in self._cluster.worker_nodes}

    def address(self) -> str:
        """The address at which drivers reach the cluster."""
        address: str = self._cluster.address
        return address

    def add(self, cpus: int) -> int:
        """Starts a node."""
        started = self._start(cpus)
        return next(number for number, node in self._nodes.items() if node is started)

    def kill(self, number: int) -> None:
        """Kills a node."""
        self._cluster.remove_node(self._nodes[number], allow_graceful=False)

    def nodes(self) -> list[int]:
        """All nodes but the head."""
        return list(self._nodes)


def main() -> None:
    """Starts the head, answers a line with a line, and ends the cluster."""
    # Whatever Ray prints is no answer.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    stay_on_loopback()
    cluster = import_module("ray.cluster_utils").Cluster()
    try:
        nodes = Nodes(cluster)
        for line in sys.stdin:
            name, *arguments = json.loads(line)
            print(json.dumps(getattr(nodes, name)(*arguments)), file=answers)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
