"""Laws of the commands that install what is missing."""

from __future__ import annotations

import json
import shlex
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from packtrain._core import installing


def installed_from(monkeypatch: pytest.MonkeyPatch, origin: dict[str, object] | None) -> None:
    text = None if origin is None else json.dumps(origin)
    monkeypatch.setattr(metadata, "distribution", lambda name: SimpleNamespace(read_text=lambda file: text))


def test_what_is_missing_for_compiling(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(installing, "HEADERS", {"libnone-dev": "surely/not/there.h", "python3-dev": "mine.h"})
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path))
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "mine.h").touch()
    assert list(installing.missing_packages()) == ["gcc", "libnone-dev"]


AGAIN = ["--force-reinstall", "--no-deps"]
ANEW = [*AGAIN, "--no-binary", "packtrain", "packtrain"]


@pytest.mark.parametrize(
    ("origin", "built", "extra"),
    [
        (
            {"url": "file:///home/me/pack%20train", "dir_info": {"editable": True}},
            ["--no-deps", "--editable", "/home/me/pack train"],
            ["-e", "/home/me/pack train[dali]"],
        ),
        (
            {"url": "file:///home/me/packtrain", "dir_info": {}},
            [*AGAIN, "file:///home/me/packtrain"],
            ["/home/me/packtrain[dali]"],
        ),
        (
            {"url": "https://git.example/p", "vcs_info": {"vcs": "git", "commit_id": "0a1b"}},
            [*AGAIN, "git+https://git.example/p@0a1b"],
            ["packtrain[dali] @ git+https://git.example/p@0a1b"],
        ),
        ({"url": "file:///tmp/p-py3-none-any.whl", "archive_info": {}}, ANEW, ["/tmp/p-py3-none-any.whl[dali]"]),
        (None, ANEW, ["packtrain[dali]"]),
    ],
)
def test_packtrain_and_its_extras_are_installed_from_where_it_came_from(
    monkeypatch: pytest.MonkeyPatch, origin: dict[str, object] | None, built: list[str], extra: list[str]
) -> None:
    installed_from(monkeypatch, origin)
    assert shlex.split(installing.build_command([]))[3:] == ["install", *built]
    assert shlex.split(installing.extra_command("dali")) == ["pip", "install", *extra]
