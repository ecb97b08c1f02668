"""Every benchmark can be run by name, and measures what its table says."""

from __future__ import annotations

from contextlib import closing
from inspect import signature
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.effects import EFFECTS
from helpers.support import picture, with_modules
from PIL import Image

from benchmarks import effects, floors, growing, indexing, masks, recipes, views, webdataset
from benchmarks.contestants import PACKTRAIN
from benchmarks.measure import RESULTS, NotInstalled, child
from benchmarks.peers.common import BATCH, PACKED, SIDE
from benchmarks.recipes import RECIPES, SIDES
from benchmarks.run import BENCHMARKS, BY_DEFAULT, COMPARISONS, GROUPS, _benchmark
from benchmarks.workloads import WORKLOADS, prepare
from packtrain import open_dataset
from packtrain._codec.effects.filters import GaussianBlur

LINES = 640
"""Enough lines that some images are timed, though only one in 32 is, and more than two batches."""


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A list of images that are large enough for every crop."""
    folder = tmp_path_factory.mktemp("listed")
    for number in range(4):
        picture(number, 400, 300).save(folder / f"{number}.jpg")
    (folder / "train.txt").write_text("".join(f"{number}.jpg {number}\n" for number in range(4)))
    return folder / "train.txt"


@pytest.fixture(scope="module")
def jpegs(listed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data that contestants read at the workload jpeg."""
    folder = tmp_path_factory.mktemp("jpegs") / "data"
    prepare(WORKLOADS["jpeg"], listed, folder, LINES)
    return folder


@pytest.mark.parametrize("name", [*BENCHMARKS, *COMPARISONS])
def test_every_benchmark_can_be_run_by_name(name: str) -> None:
    benchmark = _benchmark(name)
    assert list(signature(benchmark.measure).parameters) == ["quick"]
    assert list(signature(benchmark.show).parameters) == ["result"]


def test_groups_consist_of_benchmarks() -> None:
    assert {name for group in (BY_DEFAULT, *GROUPS.values()) for name in group} <= {*BENCHMARKS, *COMPARISONS}


def test_every_kept_result_is_one_of_a_benchmark() -> None:
    kept = {path.stem for path in RESULTS.glob("*.json")}
    variants = ("simd", "pillow", "gpu", "part", "warm", "wheel", "before-one-of-each", "imports", "store-forms")
    for suffix in (f"-{variant}" for variant in variants):
        kept = {name.removesuffix(suffix) for name in kept}
    # `versions` is a command of its own: it needs a second environment.
    assert kept <= {*BENCHMARKS, *COMPARISONS, "versions"}


@pytest.mark.complete
def test_decoding_and_resizing_have_a_time_in_packtrain_as_they_have_in_ffcv(jpegs: Path) -> None:
    times = floors.stage_times(jpegs, LINES)
    assert {"check", "cut", "decode", "resize", floors.REST} <= set(times)
    assert min(times.values()) >= 0


@pytest.mark.complete
def test_raw_records_are_made_into_batches_in_one_stage(listed: Path, tmp_path: Path) -> None:
    prepare(WORKLOADS["raw256-rrc"], listed, tmp_path / "data", LINES)
    # Where this process is slow, sending the last batch of the pass before counts with the pass that is timed.
    assert set(floors.stage_times(tmp_path / "data", LINES)) - {"handoff"} == {"copy", floors.REST}


@pytest.mark.complete
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_makes_images_of_the_type_that_it_names(name: str, torchvision: Any) -> None:
    if name == "timm":
        pytest.importorskip("timm")
    image = torchvision.transforms.Compose(RECIPES[name].transform(torchvision.transforms))(picture(0, 300, 260))
    # Where a recipe makes no tensor, both sides stack the bytes.
    assert isinstance(image, torch.Tensor) == (RECIPES[name].dtype == "float32")
    if isinstance(image, torch.Tensor):
        assert image.dtype == torch.float32
        assert image.shape == (3, SIDE, SIDE)


@pytest.mark.complete
@pytest.mark.parametrize("side", [SIDES[0], *(pytest.param(side, marks=pytest.mark.stress) for side in SIDES[1:])])
def test_one_core_is_measured_in_a_process_that_keeps_to_it(jpegs: Path, side: str) -> None:
    found = child("recipes", "one_core", side, "bytes", jpegs, 0.05)
    assert found["images_per_second"] > 0 and found["seconds"] >= 0.05


@pytest.mark.complete
def test_a_recipe_of_a_library_that_is_missing_is_left_out(
    jpegs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "timm.py").write_text("raise ModuleNotFoundError('no timm', name='timm')")
    monkeypatch.setenv("PYTHONPATH", with_modules(tmp_path)["PYTHONPATH"])
    with pytest.raises(NotInstalled, match="timm"):
        child("recipes", "one_core", PACKTRAIN, "timm", jpegs, 0.05)


@pytest.mark.complete
@pytest.mark.parametrize("name", effects.CASES)
def test_both_sides_of_an_effect_give_the_same_pixels(name: str, torchvision: Any) -> None:
    case = effects.CASES[name]
    # torch does not say in which order torchvision's blur adds up.
    most = 1 if isinstance(case.effect, GaussianBlur) else 0
    assert effects.deviation(case, picture(1, 97, 83)) <= most


def test_every_effect_is_measured() -> None:
    assert {type(case.effect) for case in effects.CASES.values()} == set(EFFECTS)


@pytest.mark.complete
@pytest.mark.parametrize(
    ("name", "side"), [(name, SIDES[number % 2]) for number, name in enumerate(RECIPES) if name != "timm"]
)
def test_both_sides_of_a_recipe_make_the_same_kind_of_batch(
    jpegs: Path, name: str, side: str, torchvision: Any
) -> None:
    images, labels = next(recipes.batches(side, RECIPES[name], jpegs))
    assert str(images.dtype) == f"torch.{RECIPES[name].dtype}"
    assert sorted(images.shape) == sorted((BATCH, 3, SIDE, SIDE))
    assert labels.shape == (BATCH,)


@pytest.mark.complete
@pytest.mark.parametrize("side", views.SIDES)
def test_both_sides_make_the_same_views(jpegs: Path, side: str, torchvision: Any) -> None:
    images, labels = next(views.first_views(views.batches(side, jpegs)))
    assert images.dtype == torch.uint8 and sorted(images.shape) == sorted((BATCH, 3, SIDE, SIDE))
    assert labels.shape == (BATCH,)


@pytest.fixture(scope="module")
def masked(listed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data that contestants read at the benchmark masks."""
    folder = tmp_path_factory.mktemp("masked") / "data"
    masks.prepare(listed, folder, LINES)
    return folder


def test_a_mask_is_as_large_as_its_image_and_has_several_classes(listed: Path) -> None:
    with Image.open(BytesIO(masks.label_map(3, str(listed.parent / "0.jpg")))) as mask:
        assert (mask.mode, mask.size) == ("P", (400, 300))
        values = np.unique(np.asarray(mask))
    assert 0 in values and 3 < len(values) <= values.max() + 1 <= masks.CLASSES


@pytest.mark.complete
@pytest.mark.parametrize("side", masks.SIDES)
def test_all_sides_make_the_same_masks(masked: Path, side: str, torchvision: Any) -> None:
    images, mask, labels = next(masks.batches(side, masked))
    assert images.dtype == torch.uint8 and sorted(images.shape) == sorted((BATCH, 3, SIDE, SIDE))
    assert (mask is None) == (side == masks.UNMASKED)
    if mask is not None:
        assert mask.dtype == torch.uint8 and mask.shape == (BATCH, SIDE, SIDE)
        assert set(mask.unique().tolist()) > {0, 1} and mask.max() < masks.CLASSES
    assert labels.shape == (BATCH,)


@pytest.mark.complete
def test_both_commands_read_the_shards_that_are_written(listed: Path, tmp_path: Path) -> None:
    written = indexing.write_shards(listed, tmp_path / "shards", 2 * indexing.SHARDS)
    assert len(list((tmp_path / "shards").iterdir())) == indexing.SHARDS
    assert written > 2 * indexing.SHARDS * (listed.parent / "0.jpg").stat().st_size // 2
    webdataset.index(tmp_path / "shards", tmp_path / "out")
    dataset = open_dataset(tmp_path / "out")
    assert dataset.targets.tolist() == [0, 1, 2, 3] * (len(dataset) // 4)
    assert np.array_equal(np.asarray(dataset.image(5)), np.asarray(Image.open(listed.parent / "1.jpg")))


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The caches that the sides of the benchmark growing read back."""
    folder = tmp_path_factory.mktemp("grown")
    growing.prepare(folder, 40)
    return folder


@pytest.mark.parametrize("side", growing.EPOCHS)
@pytest.mark.complete
def test_all_sides_read_all_records_in_every_epoch(grown: Path, side: str) -> None:
    with closing(growing.EPOCHS[side](grown)) as epochs:
        assert [sum(next(epochs)) for _ in range(2)] == [40, 40]


@pytest.mark.complete
def test_a_cache_is_filled_and_read_at_the_same_time(tmp_path: Path) -> None:
    found = child("growing", "train", tmp_path / "cache", growing.QUICK_BUDGET, 0.1)
    assert found["epochs"] > 0
    assert min(found["mb_per_second_in"], found["mb_per_second_out"]) > 0
    assert min(found["training_percent"], found["workers_percent"]) > 0


@pytest.mark.complete
def test_the_generation_changes_where_it_should(tmp_path: Path) -> None:
    found = child("growing", "change", tmp_path / "cache", 20, 2)
    assert found["shards"] >= 20
    # One epoch is the same as the one before it, the next one is not.
    steps = np.diff(found["generations"]) > 0
    assert steps.tolist() == [False, False, False, True, False, True]
    assert len(found["same_ms"]) == len(found["changed_ms"]) == 2


@pytest.mark.complete
def test_webdataset_s_own_shards_are_indexed(listed: Path, tmp_path: Path) -> None:
    pytest.importorskip("webdataset")
    described = webdataset.prepare(listed, tmp_path / "data", LINES)
    dataset = open_dataset(tmp_path / "data" / PACKED)
    assert len(dataset) == described["lines"] and described["shards"] == len(dataset.store.manifest.shards)
    assert dataset.targets.tolist() == [row % 4 for row in range(len(dataset))]


@pytest.mark.complete
def test_both_sides_of_a_recipe_validate_on_the_same_pixels(jpegs: Path, torchvision: Any) -> None:
    ours, theirs = (
        {
            int(label): (image if image.shape[0] == 3 else image.permute(2, 0, 1)).to(torch.int16)
            for image, label in zip(*next(recipes.batches(side, RECIPES["validation"], jpegs)), strict=True)
        }
        for side in SIDES
    )
    assert set(ours) == set(theirs) == set(range(4))
    # The JPEGs of both sides have the same coefficients.
    assert all(torch.equal(ours[label], theirs[label]) for label in ours)
