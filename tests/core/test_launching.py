"""Laws of processes that are started as interpreters of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from helpers.processes import children, ended
from helpers.waiting import wait_until

from packtrain._core.launching import Answer, Launched, NotBegun, launch

MAIN = f"{Path(__file__).stem}:answering"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(os.path.dirname(__file__))


def answering(channel: int, job: bytes) -> None:
    """Does what the job says, and answers what this process is like."""
    todo = json.loads(job)
    if todo.get("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(todo.get("sleep", 0))
    held = [os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd") if int(each) > 2]
    Answer(channel).give(pid=os.getpid(), session=os.getsid(0), pipes=sum("pipe:" in each for each in held))
    time.sleep(600)


@pytest.fixture
def launched() -> Iterator[Launched]:
    process, answer = launch(MAIN, b"{}", detached=False)
    assert process is not None and answer["pid"] == process.pid
    yield process
    process.close()


def test_close_ends_it_and_says_how(launched: Launched) -> None:
    assert launched.ended() is None
    launched.close()
    assert launched.ended() == "was killed by SIGKILL"
    assert not os.path.exists(f"/proc/{launched.pid}")


def test_it_ends_with_the_last_reference() -> None:
    process, answer = launch(MAIN, b"{}", detached=False)
    del process
    assert not os.path.exists(f"/proc/{answer['pid']}")


@pytest.mark.parametrize("detached", [False, True])
def test_it_finds_modules_in_the_current_folder_only_if_it_imports_the_users_code(
    detached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('not the one of the standard library')")
    (tmp_path / "users.py").write_text(
        f"import os\nfrom {Answer.__module__} import Answer\n"
        "def main(channel, job):\n    Answer(channel).give(found=__file__)\n"
    )
    # As at Python's prompt, in a notebook, and in the processes of pytest-xdist.
    monkeypatch.setattr(sys, "path", ["", *(each for each in sys.path if each)])
    monkeypatch.chdir(tmp_path)
    with suppress(NotBegun):
        _, answer = launch("users:main", b"", detached=detached)
        pytest.fail(f"found {answer['found']}")
    process, answer = launch(MAIN, b"{}", detached=detached)
    if process is None:
        os.kill(answer["pid"], signal.SIGKILL)
    else:
        process.close()
    (tmp_path / "json.py").unlink()
    process, answer = launch("users:main", b"", detached=detached, users_code=True)
    if process is not None:
        process.close()
    assert answer["found"] == str(tmp_path / "users.py")


def test_a_forked_process_leaves_it_alone(launched: Launched) -> None:
    child = os.fork()
    if not child:
        launched.close()
        os._exit(launched.ended() is not None)
    assert os.waitpid(child, 0)[1] == 0
    assert launched.ended() is None


OWNER = """\
import os, sys, time
sys.path[:] = {path!r}
from packtrain._core.launching import launch
process, answer = launch({main!r}, b"{{}}", detached={detached})
if {fork} and not os.fork():
    time.sleep(600)
print(answer["pid"], answer["session"], flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("fork", [False, True])
@pytest.mark.parametrize("detached", [False, True])
def test_it_ends_with_its_owner_unless_it_is_detached(detached: bool, fork: bool, stopped: bool) -> None:
    program = OWNER.format(path=sys.path, main=MAIN, detached=detached, fork=fork)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True) as owner:
        assert owner.stdout is not None
        pid, session = map(int, owner.stdout.readline().split())
        try:
            assert (session == owner.pid) != detached
            if stopped:
                os.kill(pid, signal.SIGSTOP)
            owner.kill()
            owner.wait()
            if detached:
                assert not ended(pid)
            else:
                wait_until(lambda: ended(pid), "it has ended with its owner")
        finally:
            for kill, number in (os.killpg, owner.pid), (os.kill, pid):
                with suppress(ProcessLookupError):
                    kill(number, signal.SIGKILL)


@pytest.mark.parametrize("detached", [False, True])
def test_it_inherits_nothing_but_its_channel_and_its_lifeline(detached: bool) -> None:
    pipe = os.pipe()
    try:
        for each in pipe:
            os.set_inheritable(each, True)
        process, answer = launch(MAIN, b"{}", detached=detached)
        assert answer["pipes"] == (1 if detached else 2)
        os.kill(answer["pid"], signal.SIGKILL)
        assert (process is None) == detached
    finally:
        for each in pipe:
            os.close(each)


@pytest.mark.parametrize(
    ("detached", "how"), [(False, "its process was killed by SIGKILL"), (True, "its process ended before it began")]
)
def test_one_that_dies_before_it_answers_is_an_error(detached: bool, how: str) -> None:
    with pytest.raises(NotBegun, match=f"^{how}$"):
        launch(MAIN, b'{"die": true}', detached=detached)


def test_one_that_does_not_answer_in_time_is_an_error_and_ended() -> None:
    before = children()
    with pytest.raises(NotBegun, match="said nothing within 0 s"):
        launch(MAIN, b'{"sleep": 600}', detached=False, seconds=0.1)
    assert children() == before


def test_an_answer_is_given_once() -> None:
    ours, theirs = os.pipe()
    answer = Answer(theirs)
    assert answer.give(ok=True)
    assert not answer.give(ok=False)
    with os.fdopen(ours) as told:
        assert json.load(told) == {"ok": True}
