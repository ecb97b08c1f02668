"""Two processes change a dataset at the same time: what both do is there, or one of them says clearly why not.

Whoever is refused does the same again, and then it is there as well.
"""

from __future__ import annotations

import random
import secrets
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import combinations_with_replacement
from pathlib import Path

import pytest
from helpers.faults.writers import CHANGES, Writers
from helpers.objects.datasets import objects_of
from helpers.objects.fixtures import Started
from helpers.objects.servers import Server
from helpers.support import packed, tree
from helpers.versions import labels_of, laid_out, listed

from packtrain import append, open_dataset, verify
from packtrain._core.version_files import is_dropped, version_numbers
from packtrain._core.versions import load_version

LABELS = (0, 1, 2, 3, 4, 5, 20, 21)
PAIRS = list(combinations_with_replacement(CHANGES, 2))


@dataclass(frozen=True)
class Place:
    """A place for datasets that two processes change: a folder, or a store.

    Attributes:
        folder: A folder for them, or for copies of them.
        server: The store; None: the folder.
        writers: The processes.
    """

    folder: Path
    server: Server | None
    writers: Writers

    def put(self, dataset: Path) -> str:
        """Puts a copy of a dataset there, and returns its place."""
        if self.server is None:
            return str(shutil.copytree(dataset, self.folder / secrets.token_hex(4)))
        url = self.server.fresh()
        for name, data in tree(dataset).items():
            self.server.put(f"{self.server.key(url)}/{name}", data)
        return url

    def here(self, place: str) -> Path:
        """A folder of this machine with what lies there."""
        if self.server is None:
            return Path(place)
        return laid_out(objects_of(self.server, place), self.folder / f"copy-{place.rpartition('/')[2]}", sound=False)


@pytest.fixture(scope="module", params=["folder", pytest.param("address", marks=pytest.mark.complete)])
def place(
    request: pytest.FixtureRequest, started_server: Started, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    server = started_server("moto") if request.param == "address" else None
    with server.in_environment() if server else nullcontext(), Writers(2) as writers:
        yield Place(tmp_path_factory.mktemp("places"), server, writers)


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """A dataset of three versions, with the labels `LABELS`."""
    out = packed(listed(tmp_path, 0, 4), tmp_path / "before", "tar")
    append(out, listed(tmp_path, 4, 2))
    append(out, listed(tmp_path, 20, 2))
    return out


@pytest.fixture
def given(tmp_path: Path) -> dict[str, tuple[object, object]]:
    """With what each of two processes makes each change."""
    for name in ("caption", "title"):
        # Not of those that go: who is second has a list that names them.
        rows = "".join(f"{number}.jpg,{name} {number}\n" for number in LABELS if number not in range(1, 5))
        (tmp_path / f"{name}.csv").write_text(f"path,{name}\n{rows}")
    other = str(packed(listed(tmp_path, 30, 2), tmp_path / "other", "tar"))
    return {
        "append": (str(listed(tmp_path, 10, 2)), str(listed(tmp_path, 12, 2))),
        "add-field": (str(tmp_path / "caption.csv"), str(tmp_path / "title.csv")),
        "drop-rows": ("label = 1", "label = 2"),
        "compact": (None, None),
        "purge": ("label = 3", "label = 4"),
        "drop-version": (1, 2),
        "merge": (other, other),
    }


def expected(pair: tuple[str, str]) -> tuple[list[int], list[int], set[str]]:
    """The rows that a dataset has after two changes, those that are appended to it, and its fields."""
    gone = {1 + who for who in (0, 1) if pair[who] == "drop-rows"} | {3 + who for who in (0, 1) if pair[who] == "purge"}
    more = [10 + 2 * who + each for who in (0, 1) if pair[who] == "append" for each in (0, 1)]
    fields = {("caption", "title")[who] for who in (0, 1) if pair[who] == "add-field"}
    return [label for label in LABELS if label not in gone], more, {"image", *fields}


def check(place: Place, there: str, pair: tuple[str, str]) -> None:
    """What both did is there."""
    out = place.here(there)
    report = verify(out)
    assert not report.problems
    rows, more, fields = expected(pair)
    found = labels_of(out)
    assert (found[: len(rows)], sorted(found[len(rows) :])) == (rows, more)
    assert set(open_dataset(out).schema.names) == fields
    for who, change in enumerate(pair):
        if change == "drop-version":
            assert is_dropped(out, 1 + who)
        if change == "merge":
            merged = place.here(f"{there}-merged")
            assert not verify(merged).problems
            assert labels_of(merged)[-2:] == [30, 31]
            assert set(labels_of(merged)[:-2]) <= {*LABELS, *more}
    if "compact" in pair and not {*pair} & {"append", "purge"}:
        assert len(load_version(out).segments) == 1


CASES = [
    (("append", "purge"), 1),
    pytest.param(("add-field", "compact"), 1, marks=pytest.mark.complete),
    pytest.param(("drop-rows", "merge"), 1, marks=pytest.mark.complete),
    pytest.param(("purge", "purge"), 4, marks=pytest.mark.complete),
    *(pytest.param(pair, 6, marks=pytest.mark.stress) for pair in PAIRS),
]


@pytest.mark.parametrize(("pair", "rounds"), CASES, ids=str)
def test_two_changes_at_the_same_time(
    place: Place, before: Path, given: dict[str, tuple[object, object]], pair: tuple[str, str], rounds: int
) -> None:
    chance, seconds = random.Random(str(pair)), 0.2
    for _ in range(rounds):
        there = place.put(before)
        late = chance.uniform(-seconds, seconds)
        jobs = [
            (change, there, given[change][who], max(0.0, late if who else -late)) for who, change in enumerate(pair)
        ]
        answers = place.writers.ask(*jobs)
        seconds = max(answer.seconds for answer in answers)
        for job, answer in zip(jobs, answers, strict=True):
            print("PAIR", *pair, job[0], answer)
            if answer.error:
                assert answer.error == "OutputConflict", answer.said
                is_dropped_already = "without rows" in answer.said
                (once_more,) = place.writers.ask((*job[:2], "" if is_dropped_already else job[2], 0.0))
                # The other process may have removed what this one dropped.
                is_done = is_dropped_already and "there is nothing to remove" in once_more.said
                assert is_done or not once_more.error, once_more.said
        check(place, there, pair)


@pytest.mark.complete
@pytest.mark.parametrize("rounds", [4, pytest.param(100, marks=pytest.mark.stress)])
def test_two_appends_again_and_again(place: Place, before: Path, tmp_path: Path, rounds: int) -> None:
    """Each makes a version, in every round."""
    there, more = place.put(before), list[int]()
    for turn in range(rounds):
        firsts = [100 + 10 * (2 * turn + who) for who in (0, 1)]
        answers = place.writers.ask(*(("append", there, str(listed(tmp_path, first, 2)), 0.0) for first in firsts))
        assert not [answer for answer in answers if answer.error]
        more += [first + each for first in firsts for each in (0, 1)]
    out = place.here(there)
    found = labels_of(out)
    assert (found[: len(LABELS)], sorted(found[len(LABELS) :])) == ([*LABELS], more)
    assert version_numbers(out) == list(range(1, 4 + 2 * rounds))
    report = verify(out)
    assert not report.problems and not report.orphans
