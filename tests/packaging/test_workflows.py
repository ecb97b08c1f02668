"""The workflows of the forge name only what there is: verbs of the Makefile, Pythons, files and other workflows."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
each_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=[path.stem for path in WORKFLOWS])


def jobs(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())["jobs"]
    return found


@each_workflow
def test_its_verbs_are_in_the_makefile(path: Path) -> None:
    verbs = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    steps = [step.get("run", "") for job in jobs(path).values() for step in job.get("steps", [])]
    assert {verb for step in steps for verb in re.findall(r"\bmake ([a-z-]+)", step)} <= verbs


@each_workflow
def test_the_jobs_and_workflows_that_it_waits_for_are_there(path: Path) -> None:
    for job in jobs(path).values():
        needs = job.get("needs", [])
        assert set([needs] if isinstance(needs, str) else needs) <= set(jobs(path))
        if (called := job.get("uses", "")).startswith("./"):
            # YAML 1.1 reads the key "on" as true.
            assert "workflow_call" in yaml.safe_load((ROOT / called).read_text())[True]


def test_the_tests_run_on_every_python_that_the_package_is_for() -> None:
    (matrix,) = (
        job["strategy"]["matrix"]["python"]
        for job in jobs(ROOT / ".github/workflows/tests.yml").values()
        if "strategy" in job
    )
    found = [re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", each) for each in PROJECT["classifiers"]]
    assert matrix == [each[1] for each in found if each]
    assert PROJECT["requires-python"] == f">={matrix[0]}"


def test_a_release_waits_for_the_tests_and_holds_no_token() -> None:
    text = (ROOT / ".github/workflows/release.yml").read_text()
    publish = jobs(ROOT / ".github/workflows/release.yml")["publish"]
    assert {"tests", "wheels"} <= set(publish["needs"])
    assert publish["permissions"] == {"id-token": "write"}
    assert "secrets." not in text
