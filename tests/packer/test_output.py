"""Laws of a folder that several machines share: what one has written, another sees, or says that it does not."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.packing import TWO_A_SHARD as OPTIONS
from helpers.support import image_set, tree

from packtrain import pack
from packtrain._packer import output
from packtrain._packer.engine import run_tasks
from packtrain._packer.output import wait_for_notes
from packtrain.errors import PackError, UsageError


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_PLAN_SECONDS", 0.0)
    monkeypatch.setattr(output, "_NOTE_SECONDS", 0.0)


def engine(function: Any, tasks: Any, *, workers: int, on_progress: Any, **changes: Any) -> Any:
    """An engine whose workers have the tasks with these changes."""
    return run_tasks(function, (replace(task, **changes) for task in tasks), workers=1, on_progress=on_progress)


def test_what_an_engine_packs_has_the_bytes_of_a_local_run(tmp_path: Path) -> None:
    listing = image_set(tmp_path / "images", 9)
    pack(listing, tmp_path / "local", OPTIONS)
    pack(listing, tmp_path / "out", OPTIONS, engine=engine)
    assert tree(tmp_path / "out") == tree(tmp_path / "local")


@pytest.mark.parametrize(("there", "message"), [(None, "there is no .*plan.json there"), (b"{}", "is another file")])
def test_a_machine_that_does_not_see_the_plan_says_so(tmp_path: Path, there: bytes | None, message: str) -> None:
    listing = image_set(tmp_path / "images", 3)
    elsewhere = tmp_path / "elsewhere"
    if there is not None:
        elsewhere.mkdir()
        (elsewhere / "plan.json").write_bytes(there)

    def misled(function: Any, tasks: Any, *, workers: int, on_progress: Any) -> Any:
        moved = (replace(task, output=output.Output(elsewhere)) for task in tasks)
        return run_tasks(function, moved, workers=1, on_progress=on_progress)

    with pytest.raises(UsageError, match=f"does not see the folder .*{message}.*under the same path"):
        pack(listing, tmp_path / "out", OPTIONS, engine=misled)
    assert list(tmp_path.glob("elsewhere/*.tar")) == []


def test_shards_that_do_not_appear_here_are_named(tmp_path: Path) -> None:
    listing = image_set(tmp_path / "images", 3)

    def unseen(function: Any, tasks: Any, *, workers: int, on_progress: Any) -> Any:
        for task in tasks:
            yield from run_tasks(function, [task], workers=1, on_progress=on_progress)
            (task.folder / "parts" / f"{task.name}.npz").unlink()

    with pytest.raises(PackError, match=r"train-000000\.tar has been packed on another machine, but is not in "):
        pack(listing, tmp_path / "out", OPTIONS, engine=unseen)


def test_shards_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_NOTE_SECONDS", 60.0)
    (tmp_path / "parts").mkdir()
    (tmp_path / "a.tar").touch()

    def appear() -> None:
        time.sleep(0.1)
        (tmp_path / "parts" / "a.tar.npz").touch()

    thread = threading.Thread(target=appear)
    thread.start()
    wait_for_notes(tmp_path, ["a.tar"])
    thread.join()
    assert (tmp_path / "parts" / "a.tar.npz").exists()


def test_the_first_plan_is_that_of_all(tmp_path: Path) -> None:
    for data in (b"first", b"second"):
        output.Output(tmp_path / "out").offer_plan(data)
    assert tree(tmp_path) == {"out/plan.json": b"first"}
