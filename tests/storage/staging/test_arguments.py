"""Wrong calls are refused at once, in words that fit Python as well as the command line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from helpers.staging.laws import root_of

from packtrain import StageOptions, open_dataset, stage, staging
from packtrain.errors import NoRoom, StagingError, UsageError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("to", 5),
        ("to", ""),
        ("to", None),
        ("budget", -1),
        ("budget", "much"),
        ("budget", "-1GiB"),
        ("budget", True),
        ("budget", 1.5),
        ("reserve", -1),
        ("reserve", "x"),
        ("grace", -1),
        ("grace", float("nan")),
        ("grace", float("inf")),
        ("grace", 1e300),
        ("grace", "1h"),
        ("partial", 1),
        ("warm", "yes"),
        ("threads", 0),
        ("threads", -3),
        ("threads", 2.0),
    ],
)
def test_options_are_checked(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"^{name}={re.escape(repr(value))}: expected "):
        StageOptions(**{name: value})


def test_sizes_may_be_texts(datasets: tuple[Path, ...], place: Path) -> None:
    options = StageOptions(place, budget="9KiB", reserve="1.5 GB")
    assert (options.budget_bytes, options.reserve_bytes) == (9216, 1_500_000_000)
    assert (StageOptions().budget_bytes, StageOptions(reserve="0").reserve_bytes) == (None, 0)
    with pytest.raises(NoRoom, match=r"the budget of 9.0 KiB has only"):
        stage(datasets[0], options)


@pytest.mark.parametrize("kind", [str, Path])
def test_a_folder_stands_for_options(dataset: Path, place: Path, kind: Any) -> None:
    for to in (kind(place), StageOptions(kind(place))):
        assert stage(kind(dataset), to).path.parent == root_of(place)
        with open_dataset(kind(dataset), stage=to).store:
            pass
    (entry,) = staging.entries(kind(place))
    assert staging.lease_on(kind(entry.path)) is not None
    assert staging.pin(kind(place), entry.path).pinned
    assert not staging.pin(kind(place), str(entry.path), False).pinned
    assert staging.repair(kind(place), entry.path).files == ()
    assert [gone.path for gone in staging.evict(kind(place), [entry.path])] == [entry.path]


def test_what_is_neither_a_folder_nor_options(dataset: Path) -> None:
    to: Any = 5
    with pytest.raises(UsageError, match=r"^to=5: expected a path"):
        stage(dataset, to)
    with pytest.raises(UsageError, match=r"^stage=5: expected a folder"):
        open_dataset(dataset, stage=to)


def test_one_id_is_not_a_list_of_ids(place: Path) -> None:
    with pytest.raises(UsageError, match="ids='birds': expected a list"):
        staging.evict(place, "birds")


def test_messages_fit_both_worlds(datasets: tuple[Path, ...], place: Path) -> None:
    """They name options as both Python and the command line call them."""
    messages = []
    for to in (
        StageOptions(place / "nowhere"),
        StageOptions(place, budget=10_000),
        StageOptions(place, reserve=1 << 60),
    ):
        with pytest.raises((NoRoom, StagingError)) as refused:
            open_dataset(datasets[0], stage=to)
        messages.append(str(refused.value))
    place.chmod(0o777)
    with pytest.raises(StagingError) as refused:
        open_dataset(datasets[0], stage=place)
    messages.append(str(refused.value))
    for message in messages:
        commands = message.split("`")[1::2]
        words = "".join(message.split("`")[::2])
        assert "--" not in words, message
        assert all(word.startswith(("packtrain ", "chmod ")) or word.isidentifier() for word in commands), message
