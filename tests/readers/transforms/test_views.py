"""Laws of `Views`: each view is what its transform gives alone, and the image is read once and decoded as it pays."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.fusing import numbers, pack_sources, sources
from helpers.support import encoded, picture
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from packtrain import PackedDataset, open_dataset
from packtrain._codec import decode
from packtrain._codec.geometry import Box
from packtrain._core.options import StoreOptions
from packtrain._readers.dataset.records import FieldRecords
from packtrain._readers.transforms.pipeline import shared_box
from packtrain.errors import UsageError
from packtrain.transforms import CenterCrop, Compose, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize, Views

SOURCES = {
    **{name: data for name, data in sources() if name in ("noise 4:2:0.jpg", "grey.jpg", "EXIF.jpg", "clear.png")},
    "photo.jpg": encoded(picture(5, 400, 300)),
}
STORES = {
    "crop-ready": StoreOptions(),
    "crop-ready, grey": StoreOptions(mode="L"),
    "coefficients": StoreOptions("coefficients"),
    "verbatim": StoreOptions("verbatim"),
    "verbatim, grey": StoreOptions("verbatim", mode="L"),
    "raw": StoreOptions("raw"),
    "raw, grey": StoreOptions("raw", mode="L"),
}
GLOBAL, LOCAL = [RandomResizedCrop(64, (0.4, 1)), RandomHorizontalFlip()], RandomResizedCrop(32, (0.02, 0.2))
# Corners that lie far apart, so that cutting each out costs less than decoding all between them.
TINY = RandomResizedCrop(20, (0.005, 0.01))


def inverted(image: Image.Image) -> Image.Image:
    """A foreign transform, which changes the image in place."""
    image.paste(Image.eval(image, lambda value: 255 - value))
    return image


def same(ours: Any, theirs: Any) -> bool:
    """True for two tensors, or two PIL images, with the same pixels."""
    if isinstance(ours, torch.Tensor):
        return torch.equal(ours, theirs)
    return bool(ours.mode == theirs.mode and ours.size == theirs.size and ours.tobytes() == theirs.tobytes())


@pytest.fixture(scope="module", params=STORES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_sources(tmp_path_factory.mktemp("views"), STORES[request.param], SOURCES)


@pytest.fixture(scope="module")
def crop_ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_sources(tmp_path_factory.mktemp("crop ready"), StoreOptions(), SOURCES)


def check(folder: Path, transforms: list[Any], seed: int, **options: Any) -> None:
    """Compares the views of every row with what each transform gives alone with the same random numbers."""
    together = open_dataset(folder, Views(transforms), **options)._samples
    alone = [open_dataset(folder, transform, **options)._samples for transform in transforms]
    assert together.draws == sum(samples.draws for samples in alone)
    for row in range(len(together)):
        random = numbers(seed + row, together.draws)
        try:
            views = together.make(row, random)[0]
        except UsageError:
            views = None
        expected, drawn = [], 0
        for samples in alone:
            try:
                expected.append(samples.make(row, random[drawn : drawn + samples.draws])[0])
            except UsageError:
                assert views is None, row
            drawn += samples.draws
        if views is None:
            assert len(expected) < len(alone), row
            continue
        assert type(views) is tuple and len(views) == len(expected)
        assert all(map(same, views, expected)), (row, transforms)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(
    "transforms", [[GLOBAL, GLOBAL, *[LOCAL] * 4], [TINY] * 3, [GLOBAL, [LOCAL, inverted]], [Resize(9), Resize(40)]]
)
def test_usual_views_are_those_of_their_transforms(folder: Path, transforms: list[Any], scaled: bool) -> None:
    for seed in range(5):
        check(folder, transforms, 100 * seed, scaled=scaled)


@pytest.mark.parametrize("transform", [Views([GLOBAL, LOCAL]), [Views([GLOBAL, LOCAL])], Compose([Views([GLOBAL])])])
def test_a_list_of_nothing_but_views_is_the_views(crop_ready: Path, transform: Any) -> None:
    views, label = open_dataset(crop_ready, transform)[4]
    assert views[0].shape == (3, 64, 64) and views[0].dtype == torch.uint8 and label == 4


def test_views_go_where_they_are_wanted(folder: Path) -> None:
    """Each into its own array, if it has the right shape; other arrays stay as they are."""
    dataset = open_dataset(folder, Views([CenterCrop(8), CenterCrop(9), RandomCrop(10, pad_if_needed=True)]))
    samples, channels = dataset._samples, dataset.store.manifest.store.channels
    into = tuple(torch.zeros(side, side, channels, dtype=torch.uint8).numpy() for side in (8, 7, 10))
    views, _ = samples.make(0, [0.5] * samples.draws, into)
    assert views[0] is into[0] and views[2] is into[2]
    assert views[1].shape == (channels, 9, 9) and not into[1].any() and into[0].any()
    for others in (into[0], into[:2]):
        assert all(isinstance(view, torch.Tensor) for view in samples.make(0, [0.5] * samples.draws, others)[0])
    alone = samples.with_transform(CenterCrop(8))
    assert isinstance(alone.make(0, [], into)[0], torch.Tensor)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes what is read and decoded."""
    found: list[str] = []

    def watch(owner: Any, name: str) -> None:
        call = getattr(owner, name)

        def spy(*arguments: Any) -> Any:
            found.append(name)
            return call(*arguments)

        monkeypatch.setattr(owner, name, spy)

    watch(FieldRecords, "image")
    watch(decode, "cut")
    return found


def test_a_record_is_read_once_and_decoded_as_it_pays(crop_ready: Path, reads: list[str]) -> None:
    def cuts(transforms: list[Any], random: list[float] | None = None) -> int:
        reads.clear()
        open_dataset(crop_ready, Views(transforms))._samples.make(4, random)[0]
        assert reads.count("image") == 1
        return reads.count("cut")

    corners = [0.5] * 20 + [0.0, 0.0] + [0.5] * 20 + [0.999, 0.999]
    assert cuts([TINY, TINY], corners) == 2
    assert cuts([TINY, TINY], [0.5] * 44) == 1
    assert cuts([RandomResizedCrop(64, (0.5, 0.6)), *[LOCAL] * 8]) == 1
    assert cuts([Resize(10), GLOBAL]) == 0, "all of the image is needed, and none of it is cut"


@given(
    boxes=st.lists(
        st.tuples(*[st.integers(0, 4000)] * 2, *[st.integers(1, 2000)] * 2).map(Box._make), min_size=1, max_size=9
    ),
    cuts=st.booleans(),
)
def test_a_shared_rectangle_holds_all_boxes_and_no_more(boxes: list[Box], cuts: bool) -> None:
    found = shared_box(boxes, cuts=cuts)
    if found is None:
        assert len(boxes) == 1 or cuts
        return
    left, top, width, height = found
    assert left == min(box.left for box in boxes) and left + width == max(box.left + box.width for box in boxes)
    assert top == min(box.top for box in boxes) and top + height == max(box.top + box.height for box in boxes)


def test_called_with_an_image_each_transform_is_called(torchvision: Any) -> None:
    image = picture(1, 90, 70)
    views = Views([RandomResizedCrop(20), [CenterCrop(30), inverted], lambda image: image.size])
    torch.manual_seed(3)
    cropped, changed, size = views(image)
    torch.manual_seed(3)
    assert cropped.tobytes() == RandomResizedCrop(20)(image).tobytes()
    assert changed.size == (30, 30) and size == (90, 70)
    assert len(torchvision.transforms.Compose([CenterCrop(40), views])(image)) == 3


def test_behind_other_transforms_it_is_called_like_any_other(crop_ready: Path) -> None:
    small, large = open_dataset(crop_ready, [CenterCrop(50), Views([CenterCrop(10), []])])[0][0]
    assert (small.size, large.size) == ((10, 10), (50, 50))
    sizes, _ = open_dataset(crop_ready, [Views([CenterCrop(10), CenterCrop(20)]), lambda views: len(views)])[0]
    assert sizes == 2


def test_views_survive_pickling(crop_ready: Path) -> None:
    dataset: PackedDataset = pickle.loads(pickle.dumps(open_dataset(crop_ready, Views([GLOBAL, LOCAL]))))
    assert len(dataset[0][0]) == 2
    assert repr(dataset.transform).count("Compose(") == 2
