"""Libraries with random generators of their own keep the loader's promise as well."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from packtrain import Loader
from packtrain._readers.loader.generators import Seeder
from packtrain.testing import LoadingContract

pytestmark = pytest.mark.usefixtures("no_process_left")


class Library:
    """A transform as albumentations has them: it draws from a generator that only its own method seeds."""

    def __init__(self) -> None:
        self._state = iter(np.random.default_rng().integers(256, size=10_000).tolist())

    def set_random_seed(self, seed: int) -> None:
        self._state = iter(np.random.default_rng(seed).integers(256, size=100).tolist())

    def __call__(self, image: Any) -> Any:
        return (image + next(self._state)) % 256


class Holding:
    """A transform with a generator as an attribute."""

    def __init__(self, generator: Any) -> None:
        self.steps = {"noise": [generator]}

    def __call__(self, image: Any) -> Any:
        return (image + drawn(self.steps["noise"][0])) % 256


def drawn(generator: Any) -> int:
    if isinstance(generator, random.Random):
        return generator.randrange(256)
    if isinstance(generator, torch.Generator):
        return int(torch.randint(256, (), generator=generator))
    return int(generator.integers(256) if isinstance(generator, np.random.Generator) else generator.randint(256))


LIBRARY = Library()


def by_name(image: Any) -> Any:
    return LIBRARY(image)


def in_closure() -> Any:
    library = Library()
    return lambda image: library(image)


TRANSFORMS: dict[str, Any] = {
    "itself": Library,
    "in a list": lambda: Holding(random.Random()),
    "by name": lambda: by_name,
    "closure": in_closure,
    "partial": lambda: functools.partial(lambda library, image: library(image), Library()),
    "method": lambda: Library().__call__,
    "numpy": lambda: Holding(np.random.default_rng()),
    "old numpy": lambda: Holding(np.random.RandomState()),
    "torch": lambda: Holding(torch.Generator()),
}


class Augmented(Dataset[Any]):
    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 24

    def __getitem__(self, row: int) -> Any:
        return self.transform(torch.zeros(4, dtype=torch.int64)), row


class TestAGeneratorIsSeeded(LoadingContract):
    start_methods = ("fork",)

    @pytest.fixture
    def dataset(self) -> Augmented:
        return Augmented(Library())


@pytest.mark.parametrize("where", TRANSFORMS)
def test_it_is_seeded_wherever_it_is(where: str) -> None:
    loader = Loader(Augmented(TRANSFORMS[where]()), 4, num_workers=0, seed=0)
    first, second = ([images.tolist() for images, _ in loader] for _ in range(2))
    loader.set_epoch(0)
    assert first == [images.tolist() for images, _ in loader] != second


def test_each_generator_gets_a_seed_of_its_own() -> None:
    generators = [np.random.default_rng() for _ in range(3)]
    Seeder(generators).seed(1, 2)
    assert len({drawn(generator) for generator in generators}) == 3


def test_a_transform_that_takes_the_place_of_another_is_seeded_from_the_next_pass_on() -> None:
    dataset = Augmented(Library())
    loader = Loader(dataset, 4, num_workers=0, seed=0)
    before = [images.tolist() for images, _ in loader]
    dataset.transform = Library()
    loader.set_epoch(0)
    assert [images.tolist() for images, _ in loader] == before


def test_global_generators_keep_their_seeds() -> None:
    """Found again by name, they must not be seeded a second time: that would change every sample drawn so far."""
    draw = random.random
    Seeder().seed(1, 2)
    expected = random.random(), np.random.rand(), float(torch.rand(()))
    Seeder(draw, np.random.rand, lambda: draw, torch.default_generator).seed(1, 2)
    assert (random.random(), np.random.rand(), float(torch.rand(()))) == expected


def test_what_cannot_be_seeded_is_warned_of() -> None:
    with pytest.warns(RuntimeWarning, match=r"random\.SystemRandom draws random numbers that cannot be seeded"):
        Loader(Augmented(Holding(random.SystemRandom())), 4)


class TestAlbumentations(LoadingContract):
    start_methods = ("fork",)

    @pytest.fixture
    def dataset(self) -> Augmented:
        library = pytest.importorskip("albumentations")
        augment = library.Compose([library.GaussNoise(p=1), library.OneOf([library.Blur(), library.MedianBlur()])])
        grey = np.full((8, 8, 3), 128, np.uint8)
        return Augmented(lambda image: torch.from_numpy(augment(image=grey)["image"]).flatten())
