"""An export may be killed at any moment: what has its name is whole, and the same call then gives the same bytes."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.faults.campaign import KILLED, Campaign, Program
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
    """Files that nobody may find half written under their names; a part of the list lies elsewhere before."""
    found = tree(out).items()
    return {name: data for name, data in found if not is_temporary(Path(name)) and not name.startswith(".parts/")}


@pytest.mark.complete
@pytest.mark.parametrize("to", ["folder", "webdataset", "parquet"])
@pytest.mark.parametrize(
    "actions",
    [
        (Action.KILL, Action.TEAR),
        (Action.FAIL,),
        (Action.FAIL_FROM,),
    ],
)
def test_killed_or_failed_anywhere_and_run_again_gives_the_same_bytes(
    exporter: FaultServer, dataset: Path, memory_path: Path, campaign: Campaign, to: str, actions: tuple[Action, ...]
) -> None:
    out = memory_path / "out"
    program = Program(exporter, EXPORT, {"dataset": str(dataset), "out": str(out), "to": to}, out)
    calls = program.undisturbed()
    expected = tree(out)
    for trial in campaign(program, calls, *actions, error=errno.ENOSPC, every=4 // len(actions)):
        code, output = trial.outcome.returncode, trial.outcome.output
        if code == KILLED:
            assert whole(out).items() <= expected.items()
        else:
            assert code in (DONE, CLEAN_ERROR), output
            assert code == DONE or ("NoSpace: no space left for" in output and "the same command again" in output)
        export(dataset, out, to=to, shard_size=4000)
        assert tree(out) == expected
        assert not (out / ".parts").exists()
