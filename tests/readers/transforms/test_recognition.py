"""Laws of recognition: torchvision's pipelines are taken apart as far as they are known, and mean what they meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.dice import dice
from helpers.fusing import numbers
from helpers.pixels import assert_same, noise
from helpers.support import image_set, packed
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import packtrain.transforms as ours_all
from packtrain import Loader, StoreOptions, open_dataset
from packtrain._codec.geometry import apply
from packtrain._codec.masks import map_mask
from packtrain._readers.transforms.compose import compose
from packtrain._readers.transforms.recognition import recognised
from packtrain.testing import TransformContract
from packtrain.transforms import Views


@pytest.fixture(params=[1, 2])
def package(torchvision: Any, request: pytest.FixtureRequest) -> Any:
    from torchvision.transforms import v2

    return torchvision.transforms if request.param == 1 else v2


def simclr(package: Any) -> Any:
    jitter = package.ColorJitter(0.8, 0.8, 0.8, 0.2)
    return package.Compose(
        [
            package.RandomResizedCrop(24),
            package.RandomHorizontalFlip(),
            package.RandomApply([jitter], p=0.8),
            package.RandomGrayscale(p=0.2),
            package.RandomApply([package.GaussianBlur(3)], p=0.5),
            package.RandomSolarize(128, p=0.2),
        ]
    )


# What is recognised


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    padding=st.none() | st.integers(0, 5) | st.sampled_from([(1, 2), (1, 2, 3, 4)]),
    needed=st.booleans(),
    mode=st.sampled_from(["constant", "edge", "reflect", "symmetric"]),
    fill=st.sampled_from([0, 9, (1, 2, 3)]),
    place=st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)),
)
def test_random_crops_are_torchvisions(
    package: Any, size: Any, padding: Any, needed: bool, mode: str, fill: Any, place: tuple[float, float]
) -> None:
    theirs = package.RandomCrop(size, padding, needed, fill, mode)
    image, known = noise(1, 30, 25), recognised(theirs)
    if known is None:
        assert package.__name__.endswith("v2") and padding and needed and mode in ("reflect", "symmetric")
        return
    (ours,) = known
    left, top, right, bottom = (
        ((padding,) * 4 if isinstance(padding, int) else (*padding, *padding)[:4]) if padding else [0] * 4
    )
    wide, high = left + right + 30, top + bottom + 25
    assume(needed or (size[1] <= wide and size[0] <= high))
    wide, high = wide + 2 * max(0, size[1] - wide) * needed, high + 2 * max(0, size[0] - high) * needed
    x, y = place
    # torchvision draws the top first, and v2 draws nothing where there is no choice.
    v2 = package.__name__.endswith("v2")
    feed = [*([y] if high > size[0] or not v2 else []), *([x] if wide > size[1] or not v2 else [])]
    with dice(feed):
        expected = theirs(image)
    assert_same(apply(image, ours.operations(30, 25, [x, y])), expected)  # type: ignore[union-attr]


def test_identities_are_nothing(torchvision: Any) -> None:
    from torchvision.transforms import v2

    assert recognised(v2.Identity()) == recognised(torch.nn.Identity()) == ()
    flip = ours_all.RandomHorizontalFlip()
    assert compose([v2.Identity(), flip, torch.nn.Identity()]).fused == (flip,)
    choice = compose(v2.RandomChoice([v2.Identity(), flip])).fused[0]
    assert choice.operations(5, 5, [0.2, 0.0]) == () != choice.operations(5, 5, [0.7, 0.0])


def test_packtrains_own_are_themselves(package: Any) -> None:
    flip = ours_all.RandomHorizontalFlip()
    assert recognised(flip) == (flip,)
    (both,) = compose(package.RandomApply([flip, package.RandomInvert()])).fused
    assert repr(both) == "RandomApply([RandomHorizontalFlip(p=0.5), RandomInvert(p=0.5)], p=0.5)"


def test_what_is_not_the_same_stays_foreign(torchvision: Any, package: Any) -> None:
    from torchvision import tv_tensors
    from torchvision.transforms import InterpolationMode, v2

    class Mine(package.RandomHorizontalFlip):  # type: ignore[misc]
        pass

    foreign: list[Any] = [
        Mine(),
        package.AugMix(),
        package.ElasticTransform(),
        package.Lambda(repr),
        package.RandomRotation(9, InterpolationMode.LANCZOS),
        package.RandomAffine(9, fill=300),
        package.RandAugment(magnitude=-1),
        package.RandomPosterize(0),
        package.Pad(-3),
        package.RandomApply([package.RandomInvert(), repr]),
        package.RandomChoice([package.RandomInvert(), package.Compose([package.AugMix()])]),
        package.RandomOrder([package.AugMix()]),
        v2.RandomAffine(9, fill={tv_tensors.Image: 3}),
        v2.Resize(None, max_size=30),
        repr,
    ]
    for theirs in foreign:
        assert recognised(theirs) is None, theirs
        made = compose([ours_all.CenterCrop(9), theirs, ours_all.RandomInvert()])
        assert len(made.fused) == 1
        assert made.foreign[0] is theirs


def test_a_pipeline_that_begins_with_a_tensor_stays_as_it_is(torchvision: Any) -> None:
    """What v2 makes of tensors has other pixels."""
    from torchvision.transforms import v2

    steps = [v2.ToImage(), v2.RandomResizedCrop(9), v2.RandAugment()]
    assert compose(v2.Compose(steps)).foreign == tuple(steps)
    moved = compose(v2.Compose([*steps[1:], v2.ToImage()]))
    assert [type(each).__name__ for each in moved.fused] == ["RandomResizedCrop", "RandAugment"]


# In use


@pytest.fixture(scope="module")
def dataset_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recognised")
    return packed(image_set(folder / "images", 8), folder / "out", "tar")


def test_a_pasted_pipeline_is_that_of_packtrains_names(package: Any, dataset_folder: Path) -> None:
    theirs, ours = open_dataset(dataset_folder, simclr(package)), open_dataset(dataset_folder, simclr(ours_all))
    plain = open_dataset(dataset_folder)
    for row in range(len(plain)):
        torch.manual_seed(row)
        found, label = theirs[row]
        torch.manual_seed(row)
        assert torch.equal(found, ours[row][0])
        torch.manual_seed(row)
        # On the whole decoded image.
        image = simclr(ours_all)(plain[row][0].convert("RGB"))
        assert torch.equal(found, torch.from_numpy(np.array(image)).permute(2, 0, 1))
        assert label == plain[row][1]


class TestRecognisedPipelinesTravelToWorkers(TransformContract):
    start_methods = ("spawn",)

    @pytest.fixture
    def transform(self, torchvision: Any) -> Views:
        package = torchvision.transforms
        return Views([simclr(package), [package.Resize((9, 8)), package.RandAugment(), package.RandomRotation(9)]])


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("store", ["crop-ready", "raw"])
def test_conversions_to_rgb_are_fused(torchvision: Any, tmp_path: Path, store: str, mode: str) -> None:
    """They change nothing if the stored images have colours, and what stands behind them is planned all the same."""
    from torchvision.transforms import v2

    listing = image_set(tmp_path / "images", 6)
    folder = packed(listing, tmp_path / "out", "tar", store=StoreOptions(store, mode=mode))
    plain = open_dataset(folder)
    for steps in (
        [v2.RGB(), v2.Resize(19), v2.CenterCrop(13), v2.RandomHorizontalFlip(1.0)],
        [v2.ToPILImage(), v2.CenterCrop(13), v2.RGB(), v2.RandomInvert(1.0)],
        [v2.CenterCrop(13), v2.Grayscale(1), v2.RGB(), v2.RGB()],
        [v2.RandomChoice([v2.RGB()]), v2.RandomRotation((90, 90)), v2.Resize((13, 13))],
    ):
        dataset = open_dataset(folder, steps)
        assert str(dataset.transform).count("\n    fused ") == len(steps)
        for row in range(len(dataset)):
            expected = v2.Compose([*steps, v2.PILToTensor()])(plain[row][0])
            assert torch.equal(dataset[row][0], expected)
    plan = compose([v2.RGB(), v2.Resize(19), v2.CenterCrop(13)]).plan(400, 200, [])
    assert plan.resize is not None and plan.window is not None


def test_conversions_behind_tensors_are_called(torchvision: Any) -> None:
    """There they do something else."""
    from torchvision.transforms import v2

    for later in (v2.ToPILImage(), v2.RGB()):
        made = compose([v2.CenterCrop(9), v2.ToImage(), later])
        assert len(made.fused) == 1 and len(made.foreign) == 2


def test_what_is_shown_is_what_runs(package: Any, dataset_folder: Path) -> None:
    steps = [package.RandomCrop(20), package.PILToTensor()]
    dataset = open_dataset(dataset_folder, steps)
    shown = str(dataset.transform)
    steps[0].size = (9, 9)
    steps.pop()
    assert dataset[0][0].shape == (3, 20, 20)
    assert str(dataset.transform) == shown
    dataset.transform = steps
    assert dataset[0][0].shape == (3, 9, 9)
    assert "(9, 9)" in str(dataset.transform) and "PILToTensor" not in str(dataset.transform)


def test_an_object_with_methods_or_hooks_of_its_own_stays_foreign(package: Any) -> None:
    hooked, patched = package.CenterCrop(8), package.CenterCrop(8)
    hooked.register_forward_hook(lambda module, given, image: image.rotate(90))
    patched.forward = lambda image: image.resize((5, 5))
    for each in (hooked, patched, package.RandomApply([hooked]), package.Compose([patched])):
        assert compose(each).foreign
    assert compose(package.CenterCrop(8)).fused


def test_grey_pictures_come_out_with_one_channel_or_three(package: Any, dataset_folder: Path) -> None:
    for count, asked in ((1, (1,)), (3, (3,))):
        dataset = open_dataset(dataset_folder, [package.CenterCrop(20), package.Grayscale(*asked)])
        image = dataset[0][0]
        assert image.shape == (count, 20, 20)
        grey = open_dataset(dataset_folder)[0][0].convert("RGB")
        expected = package.Grayscale()(package.CenterCrop(20)(grey))
        np.testing.assert_array_equal(image[-1].numpy(), np.asarray(expected))
        with Loader(dataset, 4, num_workers=0) as loader:
            assert next(iter(loader))[0].shape == (4, count, 20, 20)


# Masks


def test_a_mask_goes_where_a_picture_of_it_goes(package: Any) -> None:
    """With the nearest filter, whose result torchvision gives for a picture that holds the mask's values."""
    picture = noise(5, 40, 31, "L")
    for seed in range(30):
        for theirs in (package.RandomRotation(50, fill=3), package.RandomAffine(20, (0.2, 0.2), (0.5, 2), fill=3)):
            (ours,) = recognised(theirs) or ()
            random = numbers(seed, ours.draws)
            with dice(random[:4] if ours.draws > 1 else random):
                expected = np.asarray(theirs(picture))
            operations = ours.operations(40, 31, random)  # type: ignore[union-attr]
            np.testing.assert_array_equal(map_mask(np.asarray(picture), operations), expected)
