"""The suites that users get can fail: run as in a project of theirs, each broken extension fails the law it breaks."""

from __future__ import annotations

import shutil
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from helpers import extensions

# The project takes half a minute; the suites themselves run wherever our own tests derive from them.
pytestmark = pytest.mark.complete

SUITES = {name: suite for name, suite in vars(extensions).items() if name.startswith("Test")}
BROKEN = {name: suite.breaks for name, suite in SUITES.items() if hasattr(suite, "breaks")}


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """The failures in the project: messages by class and test. Classes of which nothing failed have none."""
    project = tmp_path_factory.mktemp("project")
    shutil.copy(extensions.__file__, project / "test_extensions.py")
    # Of what is broken, only the law that it breaks.
    suites = (f"{name}::{BROKEN[name][0]}" if name in BROKEN else name for name in SUITES)
    tests = [f"test_extensions.py::{suite}" for suite in suites]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=found.xml", *tests]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    found: dict[str, dict[str, str]] = {}
    for case in ElementTree.parse(project / "found.xml").iter("testcase"):
        failed = found.setdefault(case.attrib["classname"].rpartition(".")[2], {})
        for each in (*case.iter("failure"), *case.iter("error")):
            failed[case.attrib["name"]] = each.attrib["message"]
    return found


def test_what_is_right_keeps_every_law(failures: dict[str, dict[str, str]]) -> None:
    assert {name: failed for name, failed in failures.items() if failed and name not in BROKEN} == {}
    assert {"TestNoise", "TestInverted", "TestOdd", "TestPacked"} <= failures.keys()


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_told_which_law(name: str, failures: dict[str, dict[str, str]]) -> None:
    law, words = BROKEN[name]
    assert law in failures[name], f"{name} keeps the law"
    assert words in failures[name][law]
