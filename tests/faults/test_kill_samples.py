"""A killed packer of samples from Python code: inputs continue, and a stream starts anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.faults.campaign import Campaign, Program
from helpers.faults.cases import assert_same, assert_survives
from helpers.faults.harness import Action, FaultServer
from helpers.support import ONE_FORMAT, tree

from packtrain.errors import OutputConflict
from packtrain.reports import PackReport

MAKE = """
from packtrain import Columns, FieldColumn, PackOptions, pack

kinds = {"x": "bytes", "text": "text", "score": "number", "source": "string"}
fields = [FieldColumn(name, kind, name, kind == "bytes", optional=kind == "number") for name, kind in kinds.items()]
options = PackOptions(args["format"], shard_size=1000, columns=Columns(None, "label", tuple(fields)))

def function(number):
    sample = {"x": bytes([number]) * 500, "text": str(number), "label": number, "source": "from " + str(number)}
    return None if number == 2 else {**sample, "score": number / 2 if number % 2 else None}
"""
INPUTS = f"{MAKE}\nreport = pack(range(6), args['out'], options, function=function, max_rejects=1)"
STREAM = f"{MAKE}\nreport = pack(iter(range(6)), args['out'], options, function=function, max_rejects=1)"


def run(code: str, args: dict[str, Any]) -> PackReport:
    """Runs the code in this process."""
    names: dict[str, Any] = {"args": args}
    exec(code, names)
    report: PackReport = names["report"]
    return report


@pytest.mark.complete
@ONE_FORMAT
def test_inputs_continue_with_the_same_bytes(
    packer: FaultServer, memory_path: Path, campaign: Campaign, format_name: str
) -> None:
    out = memory_path / "out"
    args = {"out": str(out), "format": format_name}
    # The writers are those of lists, which die at each of their calls elsewhere.
    program = Program(packer, INPUTS, args, out)
    expected = assert_survives(campaign, program, lambda _: run(INPUTS, args), Action.KILL, every=4)
    assert any("-000001." in name for name in expected)


@pytest.mark.complete
@ONE_FORMAT
def test_a_stream_leaves_all_or_nothing(
    packer: FaultServer, memory_path: Path, campaign: Campaign, format_name: str
) -> None:
    """What lies beside the output afterwards is removed by the next run."""
    place = memory_path / "place"
    out = place / "out"
    args = {"out": str(out), "format": format_name}
    program = Program(packer, STREAM, args, place)
    calls = program.undisturbed()
    expected = tree(out)
    for _ in campaign(program, calls, Action.KILL, Action.TEAR, every=2):
        if out.exists():
            assert_same(out, expected)
            with pytest.raises(OutputConflict, match="nothing is continued"):
                run(STREAM, args)
        else:
            run(STREAM, args)
            assert_same(out, expected)
            assert [path.name for path in place.iterdir()] == ["out"]
