"""The object stores that tests run against: they answer, leave nothing behind, and end whatever becomes of the test."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.objects.programs import HOST, NotReadyError, find, free_ports, running
from helpers.objects.servers import SECRET, SERVERS, Server, _sweep
from helpers.processes import children

# What the tests of packtrain stand on, and what they would show by failing.
pytestmark = pytest.mark.complete

# Those that start at once, and those that take seconds.
EACH = [pytest.param(name, marks=pytest.mark.complete if name in ("azurite", "seaweedfs") else ()) for name in SERVERS]


def listening(port: int) -> bool:
    """Whether somebody listens on a port of this machine."""
    sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(place.endswith(f":{port:04X}") and state == "0A" for _, place, _, state, *_ in sockets)


def test_a_server_gives_what_was_put(object_server: Server) -> None:
    data = bytes(range(256)) * 5000
    for name in ("plain.bin", "deep/er/with blanks + ä %20.bin"):
        key = object_server.key(object_server.fresh()) + "/" + name
        assert object_server.get(key) is None
        object_server.put(key, data)
        assert object_server.get(key) == data


def test_addresses_behind_a_proxy_name_its_port(object_server: Server) -> None:
    through = object_server.through(1)
    said = f"{through.url} {through.environment}"
    assert "127.0.0.1:1" in said
    assert str(object_server.port) not in said


def test_the_environment_of_one_store_hides_the_others(moto_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "a person's")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "a person's")
    with moto_server.in_environment():
        assert "a person's" not in os.environ.values()
        assert os.environ["AWS_SECRET_ACCESS_KEY"] == SECRET
    assert os.environ["AWS_PROFILE"] == "a person's"
    assert "AWS_SECRET_ACCESS_KEY" not in os.environ


@pytest.mark.parametrize("name", EACH)
def test_a_server_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    before, sockets = children(), set(Path("/tmp").glob("*.sock"))
    with SERVERS[name](tmp_path) as server:
        assert children() > before
        assert listening(server.port)
    assert children() == before
    assert not listening(server.port)
    assert set(Path("/tmp").glob("*.sock")) <= sockets


@pytest.mark.parametrize("name", EACH)
def test_a_server_dies_with_the_process_that_started_it(name: str, tmp_path: Path) -> None:
    program = (
        f"import sys, time; sys.path[:] = {sys.path!r}\n"
        "from pathlib import Path\n"
        "from helpers.objects.servers import SERVERS\n"
        f"with SERVERS[{name!r}](Path({str(tmp_path)!r})) as server:\n"
        "    print(server.port, flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        line = child.stdout.readline()
        if not line:
            pytest.skip(f"{name} is not installed")
        assert listening(int(line))
        child.send_signal(signal.SIGKILL)
    end = time.monotonic() + 20
    while listening(int(line)):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_program_that_ends_at_once_is_reported_with_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no such option')"]
    wanted = pytest.raises(NotReadyError, match=r"ended with 1:\nno such option")
    with wanted, running(command, tmp_path / "log", lambda: False):
        pass


def test_a_program_that_is_never_ready_is_ended(tmp_path: Path) -> None:
    before = children()
    wanted = pytest.raises(NotReadyError, match="is not ready")
    with wanted, running(["sleep", "600"], tmp_path / "log", lambda: False, seconds=0.1):
        pass
    assert children() == before


@pytest.mark.parametrize(("required", "outcome"), [(True, pytest.fail.Exception), (False, pytest.skip.Exception)])
def test_a_missing_program_skips_the_test_or_fails_it(
    required: bool, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACKTRAIN_REQUIRE_TOOLS", "1")
    with pytest.raises(outcome, match="no-such-program is not installed: build it"):
        find("no-such-program", "build it", required=required)
    monkeypatch.delenv("PACKTRAIN_REQUIRE_TOOLS")
    with pytest.raises(pytest.skip.Exception):
        find("no-such-program", "build it", required=required)


def test_a_server_whose_port_was_taken_meanwhile_takes_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        offered = iter([[taken.getsockname()[1]], free_ports(1)])
        monkeypatch.setattr("helpers.objects.servers.free_ports", lambda count: next(offered))
        with SERVERS["nginx"](tmp_path) as server:
            assert server.port != taken.getsockname()[1]


def test_sockets_that_a_killed_test_left_are_removed(seaweed_server: Server) -> None:
    left = Path(f"/tmp/seaweedfs-test-grpc-{os.getpid()}.sock")
    with socket.socket(socket.AF_UNIX) as used:
        used.bind(str(left))
        used.listen()
        os.utime(left, (1, 1))
        _sweep()
        assert left.exists()
    _sweep()
    assert not left.exists()
    seaweed_server.put("still/there", b"data")
    assert seaweed_server.get("still/there") == b"data"
