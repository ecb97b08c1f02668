"""Commands that change what lies at an address are killed: before and after any request, and at any other moment.

They are processes of their own, and so is the store. Whatever the moment, each version that may be opened reads as it
did, or as that of a run that nobody stopped; the same command then comes to the same end, and nothing is left over.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from helpers.faults.campaign import Campaign
from helpers.faults.harness import Action
from helpers.objects.datasets import behind, objects_of
from helpers.objects.faults import Kill, Rule
from helpers.objects.proxy import Proxy
from helpers.objects.servers import Server
from helpers.support import packed, tree
from helpers.versions import laid_out, listed, rows_of
from helpers.waiting import wait_until

from packtrain import FieldColumn, add_field, append, compact, drop_rows, drop_version, verify
from packtrain._core.version_files import has_versions, is_dropped, version_numbers
from packtrain._packer import removing
from packtrain.errors import NotADataset

A_WEEK_LATER = """
from packtrain._cli.main import main
from packtrain._packer import removing

removing.GRACE_SECONDS = -60.0
main()
"""
"""Runs a command for which all that is to go has waited for a week."""
COMMANDS: dict[str, list[str]] = {
    "compact": ["compact", "{url}", "--workers", "1"],
    "purge": ["purge", "{url}", "--rows", "1", "--workers", "1"],
    "drop-version": ["drop-version", "{url}", "1", "2", "3", "4", "5"],
    "merge": ["merge", "{url}", "{other}", "{out}"],
}


@dataclass(frozen=True)
class Moment:
    """When a command is killed.

    Attributes:
        requests: After so many requests.
        done: True once the next one has been carried out, but not answered; otherwise before it is.
        seconds: In place of all that, so long after the first request; None: not so.
    """

    requests: int = 0
    done: bool = False
    seconds: float | None = None


@dataclass(frozen=True)
class Command:
    """A command that changes what lies at an address.

    Attributes:
        server: The store.
        between: A proxy in front of it.
        places: The addresses: a dataset, and one where nothing is yet.
        words: The command.
        before: The files of the dataset.
        folder: A folder for copies, and for temporary files of the command.
    """

    server: Server
    between: Proxy
    places: tuple[str, str]
    words: list[str]
    before: dict[str, bytes]
    folder: Path

    def anew(self) -> Command:
        """The same command at other addresses."""
        url, out = self.server.fresh(), self.server.fresh()
        for name, data in self.before.items():
            self.server.put(f"{self.server.key(url)}/{name}", data)
        new = dict(zip(self.places, (url, out), strict=True))
        return replace(self, places=(url, out), words=[new.get(word, word) for word in self.words])

    def run(self, moment: Moment | None = None, words: list[str] | None = None) -> tuple[int, str]:
        """Runs it; returns its status, and what it says, once it and all that it has started have ended."""
        self.between.script()
        self.between.forget()
        ours, theirs = os.pipe()
        command = ["/bin/sh", "-c", 'read -r _; exec "$@"', "sh", sys.executable, "-c", A_WEEK_LATER]
        with os.fdopen(theirs, "w") as go, os.fdopen(ours) as gate:
            process = subprocess.Popen(
                [*command, *(self.words if words is None else words)],
                stdin=gate,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, "TMPDIR": str(self.folder / "spools")},
            )
            if moment is not None and moment.seconds is None:
                self.between.script(Rule(Kill(process.pid, moment.done), "", skip=moment.requests))
            go.write("\n")
        with process:
            if moment is not None and moment.seconds is not None:
                wait_until(lambda: self.between.traffic(settled=False).requests, "the command asks the store")
                time.sleep(moment.seconds)
                process.send_signal(signal.SIGKILL)
            said, _ = process.communicate(timeout=120)
        # A request may be under way yet.
        self.between.traffic()
        return process.returncode, said


Rows = list[tuple[Any, ...]]
Versions = dict[int, Rows | None]


def versions_in(folder: Path) -> Versions:
    """The rows of each version, None for one that was dropped. All that is there is sound, or is named as left over."""
    if not has_versions(folder):
        return {}
    report = verify(folder)
    assert not report.problems
    return {
        number: None if is_dropped(folder, number) else rows_of(folder, version=number)
        for number in version_numbers(folder)
    }


def kinds(names: list[str]) -> Counter[str]:
    """Counts the files of each kind. Names of parts are drawn."""
    return Counter(re.sub("[0-9a-f]{16}", "*", name) for name in names)


@pytest.fixture
def command(request: pytest.FixtureRequest, moto_server: Server, tmp_path: Path) -> Iterator[Command]:
    """One of `COMMANDS`, on a dataset of five versions: packed, appended to twice, with captions, without a row."""
    folder = packed(listed(tmp_path, 0, 4), tmp_path / "before", "tar")
    append(folder, listed(tmp_path, 4, 2))
    append(folder, listed(tmp_path, 20, 2))
    captions = "".join(f"{number}.jpg,n{number}\n" for number in (*range(6), 20, 21))
    (tmp_path / "captions.csv").write_text(f"path,caption\n{captions}")
    add_field(folder, tmp_path / "captions.csv", [FieldColumn("caption", "text", "caption", by_path=False)])
    drop_rows(folder, [5])
    if request.param == "drop-version":
        # Only now there is something that goes with them.
        compact(folder)
    (tmp_path / "spools").mkdir()
    url, out = moto_server.fresh(), moto_server.fresh()
    other = packed(listed(tmp_path, 30, 2), tmp_path / "other", "hdf5")
    words = [word.format(url=url, out=out, other=other) for word in COMMANDS[request.param]]
    with behind(moto_server) as between:
        yield Command(moto_server, between, (url, out), words, tree(folder), tmp_path).anew()


@dataclass(frozen=True)
class Seen:
    """The objects at the two addresses.

    Attributes:
        dataset: The versions of the dataset.
        merged: Those of what it is merged to.
        files: How many files there are of each kind.
    """

    dataset: Versions
    merged: Versions
    files: Counter[str]


def look(command: Command) -> Seen:
    """Looks at all that lies there, which has to be sound."""
    found, files = list[Versions](), Counter[str]()
    for url in command.places:
        copy = laid_out(objects_of(command.server, url), command.folder / "copy", sound=False)
        found.append(versions_in(copy))
        files += kinds(list(tree(copy)) if copy.exists() else [])
    return Seen(found[0], found[1], files)


def settled(command: Command) -> Seen:
    """The same when all has gone that no version needs."""
    for url in command.places:
        with suppress(NotADataset):
            drop_version(url)
    assert not list((command.folder / "spools").iterdir()), "the spool of a run that was killed is left"
    return look(command)


def check(found: Seen, old: Seen, new: Seen) -> None:
    """What a run leaves that was killed is what was there, and some of what the whole run makes."""
    newest = new.dataset[max(new.dataset)]
    assert found.dataset.keys() >= old.dataset.keys()
    for number, rows in found.dataset.items():
        if rows is None:
            assert new.dataset[number] is None
        else:
            assert rows == old.dataset.get(number, newest)
    assert found.merged in ({}, new.merged)


def moments(command: Command, count: int, seconds: float) -> Iterator[Moment]:
    """When to kill it: first as a document of a version or a manifest is written, then at random.

    Args:
        command: The command, which has just been run undisturbed.
        count: How many of both kinds.
        seconds: The time from its first request to its last one.
    """
    exchanges = command.between.traffic().exchanges
    documents = [
        number
        for number, each in enumerate(exchanges)
        if each.request.method == "PUT" and re.search(r"versions/|\w/manifest.json$", each.request.path)
    ]
    chance = random.Random(count)
    points = [Moment(number, done) for number in reversed(documents) for done in (True, False)]
    others = [Moment(number, done) for number in range(len(exchanges)) for done in (True, False)]
    yield from [*points, *chance.sample(others, len(others))][: (2 * count + 2) // 3]
    for _ in range(count // 3):
        yield Moment(seconds=chance.uniform(0, seconds))


@pytest.mark.parametrize(
    ("command", "count"),
    [
        *(pytest.param(name, 1, marks=pytest.mark.complete) for name in ("purge", "merge")),
        *(pytest.param(name, 18, marks=pytest.mark.stress) for name in COMMANDS),
    ],
    indirect=["command"],
)
def test_killed_between_requests_and_at_any_moment(
    command: Command,
    count: int,
    monkeypatch: pytest.MonkeyPatch,
    campaign: Campaign,
) -> None:
    monkeypatch.setattr(removing, "GRACE_SECONDS", -60.0)
    monkeypatch.setattr("tempfile.tempdir", str(command.folder / "spools"))
    old = look(command)
    begun = time.monotonic()
    assert command.run()[0] == 0
    chosen = list(moments(command, count, 0.6 * (time.monotonic() - begun)))
    new = settled(command)
    for moment in chosen:
        print(moment)
        command = command.anew()
        status, said = command.run(moment)
        assert status in (0, -signal.SIGKILL), said
        campaign.counts[Action.KILL.name] += status == -signal.SIGKILL
        found = look(command)
        check(found, old, new)
        # What is done cannot be asked for again: other rows would have these numbers.
        is_purged = command.words[0] == "purge" and found.dataset.keys() != old.dataset.keys()
        status, said = command.run(words=["purge", command.places[0]] if is_purged else command.words)
        assert status == 0 or (is_purged and "there is nothing to remove" in said), said
        assert settled(command) == new
    assert campaign.counts.total() > count // 2, "most moments came after the end"
