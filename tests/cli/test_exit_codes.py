"""Exit codes are those that docs/reliability.md lists: 0 if it is done, 1 if it failed, 2 if it was typed wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.support import encoded, picture

from packtrain import PackOptions, StoreOptions, pack
from packtrain._cli import merge_cmd, pack_cmd, verify_cmd
from packtrain._growing import source_reader

from .conftest import Run

FILL = "fill helpers.fillers:{} {{new}} --budget 4MiB --shard-size 128KiB"
CODES = {
    "pack {list} {new}": 0,
    "status {set}": 0,
    "pack {damaged} {new}": 1,
    "status {missing}": 1,
    "merge {missing}": 1,
    "": 2,
    "index {tars} {new}": 0,
    "index {missing} {new}": 1,
    "index {tars} {strange}": 1,
    "index {tars} {new} --base {missing}": 2,
    "index {tars} {new} --field x": 2,
    "pack {set} {new}": 0,
    "pack {set} {strange}": 1,
    "pack {set} {set}": 2,
    "pack {set} {new} --quality 7": 2,
    "verify {set}": 0,
    "verify {spoilt}": 1,
    "verify {missing}": 1,
    "verify {set} --journal {list}": 2,
    "info {set}": 0,
    "info {missing}": 1,
    "info {set} x": 2,
    "show {set} --out {new}.png": 0,
    "show {set}": 2,
    "show {missing} --out {new}.png": 1,
    "show {set} --out {new}.png --transform x": 2,
    "stage {set} --to {new}": 1,
    "stage {set} --to {place}": 0,
    "stage {missing} --to {place}": 1,
    "stage {set} --to {place} --budget 1": 1,
    "staged list --to {place}": 0,
    "staged pin abcdef --to {place}": 1,
    "staged evict abcdef --to {place}": 1,
    "staged repair abcdef --to {place}": 1,
    FILL.format("few"): 0,
    FILL.format("none"): 1,
    FILL.format("failing"): 1,
    FILL.format("hopeless"): 1,
    FILL.format("unlike"): 1,
    FILL.format("few").replace("{new}", "{strange}"): 1,
    FILL.format("no_such_function"): 2,
    FILL.format("few").replace("4MiB", "1"): 2,
    "fill --slices {missing} --shape 4 {new} --budget 4MiB": 1,
    "fill --slices {list} --shape 4 {new} --budget 4MiB": 2,
    "tune {missing}": 1,
    "doctor x": 2,
    "nothing": 2,
    "--help": 0,
    "pack -h": 0,
    "--version": 0,
}


@pytest.mark.parametrize("line", list(CODES))
def test_what_a_command_exits_with(run: Run, tmp_path: Path, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_reader, "_FAILURES", 1)
    monkeypatch.setattr(source_reader, "_HOPELESS", 2)
    names = ("list", "damaged", "missing", "new", "strange", "set", "spoilt", "place", "tars")
    paths = {name: tmp_path / name for name in names}
    (tmp_path / "0.jpg").write_bytes(encoded(picture(0)))
    paths["list"].write_text("0.jpg 0\n")
    paths["damaged"].write_text("0.jpg 0\ngone.jpg 0\ngone.jpg 0\n")
    for name in ("strange", "place", "tars"):
        paths[name].mkdir()
    (paths["strange"] / "precious.txt").write_text("x")
    for name in ("set", "spoilt"):
        pack(paths["list"], paths[name], PackOptions(store=StoreOptions("verbatim")))
    (shard,) = paths["spoilt"].glob("*.tar")
    shard.write_bytes(shard.read_bytes()[:-1])
    (shard,) = paths["set"].glob("*.tar")
    (paths["tars"] / "a.tar").write_bytes(shard.read_bytes())
    outcome = run(*line.format(**paths).split())
    assert outcome.code == CODES[line], outcome.err


@pytest.mark.parametrize(
    ("words", "continues"),
    [("pack LIST OUT", True), ("merge OUT", True), ("verify OUT", False), ("verify OUT --journal FILE", True)],
)
def test_ctrl_c_says_whether_the_same_command_continues(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: str, continues: bool
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for command in (pack_cmd, merge_cmd, verify_cmd):
        monkeypatch.setattr(command.command, "callback", stop)
    outcome = run(*words.split())
    expected = "stopped; run the same command to continue" if continues else "stopped"
    assert (outcome.code, outcome.out, outcome.err.strip()) == (130, "", expected)
