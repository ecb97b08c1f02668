"""An export may be killed at any moment: what has its name is whole, and the same call then gives the same bytes."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.faults.campaign import Campaign, Program
from helpers.faults.cases import CLEAN_ERROR, DONE
from helpers.faults.harness import Action, FaultServer
from helpers.fields import COLUMNS, field_set
from helpers.support import tree

from packtrain import PackOptions, export, pack
from packtrain._core.files import is_temporary

EXPORT = f"""
from packtrain import export
from packtrain._core.errors import PacktrainError
try:
    export(args["dataset"], args["out"], to=args["to"], shard_size=4000)
except PacktrainError as error:
    print(f"{{type(error).__name__}}: {{error}}")
    raise SystemExit({CLEAN_ERROR}) from error
"""
WARM_UP = f"""
import tempfile
for to in ("folder", "webdataset", "parquet"):
    with tempfile.TemporaryDirectory() as folder:
        exec({EXPORT!r}, {{"args": {{**args, "to": to, "out": folder}}}})
"""
FORMS = pytest.mark.parametrize("to", ["folder", "webdataset", "parquet"])


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three samples with a further image, a text and boxes."""
    folder = tmp_path_factory.mktemp("exported")
    names = ("side", "caption", "boxes")
    columns = replace(COLUMNS, fields=tuple(field for field in COLUMNS.fields if field.name in names))
    pack(field_set(folder / "list", 5, bad=False), folder / "packed", PackOptions(columns=columns))
    return folder / "packed"


@pytest.fixture(scope="module")
def exporter(fault_library: Path, dataset: Path) -> Iterator[FaultServer]:
    """Processes that have exported once already and fork from there."""
    with FaultServer(fault_library, WARM_UP, {"dataset": str(dataset)}) as server:
        yield server


def whole(out: Path) -> dict[str, bytes]:
    """What has its name, of the files that nobody may find half written."""
    return {name: data for name, data in tree(out).items() if not is_temporary(Path(name))}


def program_of(server: FaultServer, dataset: Path, out: Path, to: str) -> Program:
    args: dict[str, Any] = {"dataset": str(dataset), "out": str(out), "to": to}
    return Program(server, EXPORT, args, out)


@FORMS
def test_killed_anywhere_and_run_again_gives_the_same_bytes(
    exporter: FaultServer, dataset: Path, memory_path: Path, campaign: Campaign, to: str
) -> None:
    out = memory_path / "out"
    program = program_of(exporter, dataset, out, to)
    calls = program.undisturbed()
    expected = tree(out)
    for _ in campaign(program, calls, Action.KILL, Action.TEAR, every=2):
        # A part of the list lies elsewhere until the list is there.
        found = {name: data for name, data in whole(out).items() if not name.startswith(".parts/")}
        assert found.items() <= expected.items()
        export(dataset, out, to=to, shard_size=4000)
        assert tree(out) == expected
        assert not any(path.is_dir() and path.name == ".parts" for path in out.iterdir())


@pytest.mark.complete
@FORMS
@pytest.mark.parametrize("action", [Action.FAIL, Action.FAIL_FROM])
def test_a_disk_that_is_full_or_fails_is_told(
    exporter: FaultServer, dataset: Path, memory_path: Path, campaign: Campaign, to: str, action: Action
) -> None:
    out = memory_path / "out"
    program = program_of(exporter, dataset, out, to)
    calls = program.undisturbed()
    expected = tree(out)
    for trial in campaign(program, calls, action, error=errno.ENOSPC, every=4):
        assert trial.outcome.returncode in (DONE, CLEAN_ERROR), trial.outcome.output
        if trial.outcome.returncode == CLEAN_ERROR:
            assert "NoSpace: no space left for" in trial.outcome.output
            assert "run the same command again" in trial.outcome.output
        export(dataset, out, to=to, shard_size=4000)
        assert tree(out) == expected
