"""Fixtures for all tests."""

from __future__ import annotations

import fcntl
import gc
import itertools
import logging
import multiprocessing
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from helpers.faults.campaign import Campaign
from helpers.faults.harness import NoCompilerError, build
from helpers.huge_pages import collapse_heap
from helpers.memory import memory_folder, sweep_memory, use_memory
from helpers.sampling import case_of, covering
from helpers.support import FORMATS, image_set, import_torchvision
from hypothesis import settings
from hypothesis.configuration import set_hypothesis_home_dir

pytest_plugins = ["helpers.objects.fixtures"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--complete``, with which `make test-all` runs what `make test` samples, and what `make stress` needs."""
    parser.addoption(
        "--complete", action="store_true", help="run tests marked `complete`, and more points of campaigns of faults"
    )
    parser.addoption(
        "--every-point", action="store_true", help="go through all points of campaigns of faults, and more examples"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Sets Hypothesis up, and frees the tests from their caller's umask and the signals that it ignores.

    A program started under ``nohup`` ignores SIGHUP, and a background job of a shell ignores Ctrl-C. The processes that
    tests start would ignore them too. A handler, unlike "ignore", is not inherited: they start with the default.
    """
    # No deadline: the time that an example takes says nothing about a law.
    examples = 100 if config.getoption("every_point") else 30 if config.getoption("complete") else 10
    settings.register_profile("laws", deadline=None, print_blob=True, max_examples=examples)
    settings.load_profile("laws")
    set_hypothesis_home_dir(config.rootpath / ".hypothesis")  # by default in the current folder, whatever that is
    # Folders that everybody may write to are refused in places, and files that nobody may read cannot be tested.
    os.umask(0o022)
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda number, frame: None)
    receive_ctrl_c()
    sweep_memory()
    use_memory()


def receive_ctrl_c() -> None:
    """Lets this process, and the programs that it starts, receive Ctrl-C and every other signal."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks campaigns of faults, which `make stress` runs at every point."""
    if "campaign" in getattr(item, "fixturenames", ()):
        item.add_marker("campaign")


@pytest.hookimpl(trylast=True)  # of what -k and -m leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out most combinations of several `parametrize`, and without ``--complete`` tests marked `complete`.

    `make test` runs each value of each parameter at least once, `make test-all` each pair of values. Tests marked
    `product` run with all combinations then. A test that several classes inherit has the class for a parameter.
    """
    complete = config.getoption("complete")
    kept = {item for item in items if complete or not item.get_closest_marker("complete")}
    matrices: dict[object, list[pytest.Function]] = {}
    for item in items:
        if complete and item.get_closest_marker("product"):
            continue
        if item in kept and isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            matrices.setdefault(item.function, []).append(item)
    for cases in matrices.values():
        chosen = covering(list(map(case_of, cases)), 2 if complete else 1)
        kept -= {item for number, item in enumerate(cases) if number not in chosen}
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Fails a test that leaves Ctrl-C blocked or handled otherwise: programs started later would never receive it."""
    yield
    handler, mask = signal.getsignal(signal.SIGINT), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    if handler is not signal.default_int_handler or mask:
        receive_ctrl_c()
        pytest.fail(f"{item.nodeid} left these signals blocked: {mask or 'none'}; and SIGINT to {handler}")


def pytest_collection_finish() -> None:
    """Lets the garbage collector look less often, and not through modules and thousands of tests.

    Tests of what is left as garbage call it themselves. Nor need pytest look after each of torch's loggers.
    """
    gc.set_threshold(100_000, 50, 100)
    spare_the_collector()
    collapse_heap()
    # pytest gives handlers, six times per test, to each logger that does not propagate. torch has forty of these.
    for logger in logging.Logger.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.propagate = True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Spares the collector what the tests of a file have imported and kept."""
    result = yield
    if nextitem is None or nextitem.path != item.path:
        spare_the_collector()
    return result


def spare_the_collector() -> None:
    """Removes garbage, and keeps the collector from looking again at what is there now."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says at how many points programs were killed, or calls of them failed."""
    reports = itertools.chain.from_iterable(terminalreporter.stats.values())
    properties = [each for report in reports for each in getattr(report, "user_properties", ()) if each[0] == "faults"]
    if properties:
        counts = sum((Counter(counts) for _, counts in properties), Counter[str]())
        said = ", ".join(f"{count:,} {action}" for action, count in sorted(counts.items()))
        terminalreporter.write_line(f"faults in {len(properties)} campaigns: {said}")


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """An empty folder in /dev/shm if that is writable: thousands of fsyncs take minutes on a disk."""
    with memory_folder(tmp_path) as folder:
        yield folder


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a tmpfs with given options; skips the test if that is not allowed."""
    points: list[Path] = []

    def mount(options: str) -> Path:
        point = tmp_path / f"mount-{len(points)}"
        point.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", point], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"mounting takes privileges: {done.stderr.strip()}")
        points.append(point)
        return point

    yield mount
    for point in points:
        # Lazily, because a failed test may still have files open there.
        subprocess.run(["umount", "--lazy", point], check=True)


@pytest.fixture(scope="session")
def shared(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Callable[[str, Callable[[Path], None]], Path]:
    """Makes a folder once for all processes that run tests."""
    # The folder of a process of pytest-xdist lies in the one of all.
    base = tmp_path_factory.getbasetemp()
    base = base.parent if hasattr(pytestconfig, "workerinput") else base

    def made(name: str, make: Callable[[Path], None]) -> Path:
        folder, done = base / f"shared-{name}", base / f"shared-{name}.done"
        with open(base / f"shared-{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                folder.mkdir()  # fails where it has failed before: once is enough
                make(folder)
                done.touch()
        return folder

    return made


@pytest.fixture(scope="session")
def fault_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes system calls go wrong."""
    try:
        return build(tmp_path_factory.mktemp("faultlib"))
    except NoCompilerError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def complete(pytestconfig: pytest.Config) -> bool:
    """True if all cases are asked for, by ``--complete``; otherwise tests that have many of them take a sample."""
    return bool(pytestconfig.getoption("complete"))


@pytest.fixture
def campaign(
    request: pytest.FixtureRequest, complete: bool, record_property: Callable[[str, object], None]
) -> Iterator[Campaign]:
    """Goes through every point of a program at which something can go wrong, or through a sample of them."""
    every_point = request.config.getoption("every_point")
    campaign = Campaign(*((1, None) if every_point else (10, 12) if complete else (16, 8)))
    yield campaign
    record_property("faults", dict(campaign.counts))


@pytest.fixture(params=FORMATS)
def format_name(request: pytest.FixtureRequest) -> str:
    """Every container format in turn."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A list of twelve JPEGs; tests must not change it."""
    return image_set(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def torchvision() -> Any:
    """torchvision, as an oracle; the test is skipped without it."""
    return import_torchvision()


@pytest.fixture(scope="session")
def timm(torchvision: Any) -> Any:
    """timm, as an oracle; the test is skipped without it."""
    if find_spec("timm") is None:
        pytest.skip("timm is not installed: pip install --no-deps timm")
    return import_module("timm")


@pytest.fixture
def no_process_left() -> Iterator[None]:
    """The test leaves no worker behind, alive or as a zombie."""
    yield
    if multiprocessing.active_children():
        gc.collect()  # a loader in a circle
    assert multiprocessing.active_children() == []


@pytest.fixture(scope="session")
def checkpoint() -> Any:
    """torch.distributed.checkpoint, imported where it is needed: that takes a second and 50 MB, which forks copy."""
    return import_module("torch.distributed.checkpoint")
