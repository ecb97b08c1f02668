"""The words of `print` and the stall report about transforms that are not fused."""

from __future__ import annotations

import pickle
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.support import packed
from PIL.Image import Image

from packtrain import Loader, concat, open_dataset
from packtrain._readers.transforms import compose as module
from packtrain._readers.transforms.recognition import recognised
from packtrain._readers.transforms.tensor_steps import FinishingStep
from packtrain._readers.transforms.views import Unfused, unfused
from packtrain.transforms import CenterCrop, Compose, RandomCrop, RandomHorizontalFlip, Resize, Views


class Slow:
    """A callable that takes longer than all else."""

    def __init__(self, seconds: float = 0.01) -> None:
        self.seconds = seconds

    def __call__(self, image: Image) -> Image:
        time.sleep(self.seconds)
        return image

    def __repr__(self) -> str:
        return f"Slow(\n    seconds={self.seconds}\n)"


class Finish(FinishingStep):
    """A step on tensors."""

    draws = 0

    def finish(self, image: Any, random: Sequence[float]) -> Any:
        return image


class Library:
    """Stands for a transform of another library that is recognised as one of packtrain's."""

    def __repr__(self) -> str:
        return "Library()"

    def __call__(self, image: Image) -> Image:
        return image


@pytest.fixture(scope="module")
def folder(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(images, tmp_path_factory.mktemp("unfused") / "out", "tar")


def test_each_step_is_shown_with_what_becomes_of_it() -> None:
    assert str(Compose([Resize(9), Slow(), [CenterCrop(4), len]])).splitlines() == [
        "Compose(",
        f"    fused        {Resize(9)!r}",
        "    through PIL  Slow( seconds=0.01 )",
        f"    through PIL  {CenterCrop(4)!r}, because it follows Slow",
        "    through PIL  <built-in function len>",
        ")",
    ]


def test_transforms_of_other_libraries_are_shown_as_they_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for made, fate in (CenterCrop(4), "fused        "), (Finish(), "on tensors   "):
        monkeypatch.setattr(
            module, "recognised", lambda each, made=made: (made,) if isinstance(each, Library) else recognised(each)
        )
        assert f"    {fate}Library()\n" in str(Compose([CenterCrop(4), Library()]))
        later = Compose([Slow(), Library()])
        would_be_fused = not isinstance(made, Finish)
        why = ", because it follows Slow" if would_be_fused else ""
        assert f"    through PIL  Library(){why}\n" in str(later)
        assert bool(later.displaced) == would_be_fused


def test_views_show_each_of_theirs() -> None:
    assert str(Views([[CenterCrop(4), Slow()], CenterCrop(3)])).splitlines() == [
        "Views([",
        "    Compose(",
        f"        fused        {CenterCrop(4)!r}",
        "        through PIL  Slow( seconds=0.01 )",
        "    )",
        "    Compose(",
        f"        fused        {CenterCrop(3)!r}",
        "    )",
        "])",
    ]


def test_a_dataset_shows_lists_too(folder: Path) -> None:
    given: list[Any] = [RandomCrop(9), Slow()]
    dataset = open_dataset(folder, given)
    shown = f"Compose(\n    fused        {RandomCrop(9)!r}\n    through PIL  Slow( seconds=0.01 )\n)"
    both = concat([dataset, open_dataset(folder, given)])
    loader = Loader(dataset, 2, seed=0, num_workers=0)
    for transform in (dataset.transform, both.transform, dataset.subset([1]).transform, loader.transform):
        assert str(transform) == shown
        assert str(dataset.with_transform(transform).transform) == shown
    both.transform = given
    assert str(both.transform) == shown
    assert str(pickle.loads(pickle.dumps(dataset)).transform) == shown


@pytest.mark.parametrize(
    ("transform", "steps", "remedy"),
    [
        ([CenterCrop(4), RandomHorizontalFlip()], (), ""),
        ([CenterCrop(4), Slow()], ("Slow",), "a faster Slow"),
        ([Slow(), CenterCrop(4), len, CenterCrop(3)], ("Slow", "CenterCrop", "len"), "CenterCrop in front of Slow"),
        ([type("Resize", (Slow,), {})()], ("Resize",), f"packtrain.transforms.Resize in place of {__name__}'s"),
        (Views([CenterCrop(4), [CenterCrop(3), Slow()]]), ("Slow",), "a faster Slow"),
        (Views([[Slow()]] * 2), ("Slow",), "a faster Slow"),
    ],
    ids=str,
)
def test_what_is_not_fused_is_named_with_what_would_help(transform: Any, steps: tuple[str, ...], remedy: str) -> None:
    given = transform if isinstance(transform, Views) else Compose(transform)
    assert unfused([given]) == unfused([given, given]) == Unfused(steps, remedy)


@pytest.mark.complete
@pytest.mark.parametrize("workers", [0, 2])
def test_the_stall_report_names_them_and_what_they_cost(folder: Path, workers: int) -> None:
    dataset = open_dataset(folder, [CenterCrop(8), Slow(), Resize(6)])
    rows = dataset.subset(list(range(len(dataset))) * 40)
    with Loader(rows, 8, seed=0, num_workers=workers, multiprocessing_context="fork") as loader:
        list(loader)
        assert "us per sample: Slow, Resize not fused" in loader.stats.report()
        assert "Resize in front of Slow would help" in str(loader.stats)
        assert loader.stats.present.stage_shares["transform"] > 0.5
        loader.transform = [CenterCrop(8), Slow()]
        list(loader)
        assert "us per sample: Slow not fused" in loader.stats.report()
        assert "a faster Slow would help" in str(loader.stats)
        loader.transform = CenterCrop(8)
        list(loader)
        assert "not fused" not in loader.stats.report()
