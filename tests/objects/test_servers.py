"""The object stores that tests run against: they answer, leave nothing behind, and end whatever becomes of the test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.objects.programs import find
from helpers.objects.servers import SECRET, SERVERS, Server

# What the tests of packtrain stand on, and what they would show by failing.
pytestmark = pytest.mark.complete


def listening(port: int) -> bool:
    """True if somebody listens on a port of this machine."""
    sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(place.endswith(f":{port:04X}") and state == "0A" for _, place, _, state, *_ in sockets)


def test_the_environment_of_one_store_hides_the_others(moto_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "a person's")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "a person's")
    with moto_server.in_environment():
        assert "a person's" not in os.environ.values()
        assert os.environ["AWS_SECRET_ACCESS_KEY"] == SECRET
    assert os.environ["AWS_PROFILE"] == "a person's"
    assert "AWS_SECRET_ACCESS_KEY" not in os.environ


@pytest.mark.parametrize("name", SERVERS)
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
