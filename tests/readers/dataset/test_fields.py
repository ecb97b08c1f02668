"""Samples of many fields: what was stored comes back, moved alike, and damage never passes for data."""

from __future__ import annotations

import os
import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.datasets import (
    FIELDS,
    LEFT_OUT,
    NO_IMAGE,
    ROWS,
    SCHEMA,
    make_dataset,
    size_of,
    values_of,
    write_dataset,
)
from helpers.fusing import numbers
from helpers.support import FORMATS, encoded, flip

from packtrain import Loader, concat, open_dataset
from packtrain._codec.masks import map_mask
from packtrain._core.manifest import Link, Manifest
from packtrain._core.schema import Schema
from packtrain._readers.dataset.rows import sample_type
from packtrain._readers.transforms.compose import Compose, compose
from packtrain.errors import CorruptFile, CorruptRecord, LoaderError, UnreadableFile, UsageError
from packtrain.transforms import (
    CenterCrop,
    ColorJitter,
    ColoursOnly,
    PILToTensor,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    Views,
)

NAMES = SCHEMA.names
TRANSFORM = (RandomResizedCrop(16), RandomHorizontalFlip())


@pytest.fixture(scope="module", params=FORMATS)
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("fields") / "out", request.param)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("fields") / "out")


def assert_value(name: str, found: Any, expected: Any) -> None:
    if expected is None or isinstance(expected, (str, dict, bytes)):
        assert found == expected
        assert type(found) is type(expected)
    elif name in ("image", "other"):
        assert found.size == expected.size
        # JPEGs.
        assert np.abs(np.asarray(found, np.int16) - np.asarray(expected, np.int16)).mean() < 8
    else:
        assert found.shape == expected.shape
        np.testing.assert_array_equal(np.asarray(found), expected)


# What comes back


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_what_was_stored_comes_back(dataset: Path, io: str) -> None:
    opened = open_dataset(dataset, io=io, fields=(*NAMES, "label"))
    for row in range(ROWS):
        sample, expected = opened[row], values_of(row)
        assert sample._fields == (*NAMES, "label") == opened.field_names
        assert sample.label == 10 * row
        for name, value in expected.items():
            assert_value(name, getattr(sample, name), value)
            assert_value(name, opened.value(row, name), value)
    assert opened[-1].caption == opened[ROWS - 1].caption
    assert opened[0].seg.dtype == torch.uint8
    assert opened[0].depth.dtype == torch.int32


def test_a_sample_is_exactly_what_was_asked_for(one: Path) -> None:
    sample = open_dataset(one, fields=["caption", "label", "image"])[1]
    assert type(sample) is sample_type(("caption", "label", "image"))
    assert sample[:2] == ("picture é 1", 10)
    opened = open_dataset(one)
    pair = opened[LEFT_OUT]
    assert type(pair) is tuple and opened.field_names == ("image", "label")
    assert (pair[0].size, pair[1]) == (size_of(LEFT_OUT), 10 * LEFT_OUT)


@pytest.mark.parametrize("format", FORMATS)
def test_samples_without_an_image(tmp_path: Path, format: str) -> None:
    folder = make_dataset(tmp_path / "out", format, NO_IMAGE)
    with pytest.raises(UsageError, match=r"have no image.*fields=\('seg', 'depth'\)"):
        open_dataset(folder)
    transform = [RandomCrop(8), RandomHorizontalFlip()]
    opened = open_dataset(folder, transform, fields=("pose", "seg", "crop", "label"))
    sample = opened._samples.make(1, [0.5, 0.5, 0.1])
    left, top, width, height, mirrored = sample.crop.tolist()
    assert (width, height, mirrored) == (8, 8, 1)
    expected = values_of(1)["seg"][top : top + 8, left : left + 8][:, ::-1]
    np.testing.assert_array_equal(sample.seg.numpy(), expected)
    assert sample.label == -1
    with pytest.raises(UsageError, match="no field 'image'"):
        opened.image(0)


def test_an_optional_image_may_be_missing(tmp_path: Path) -> None:
    fields = (replace(FIELDS[0], optional=True), FIELDS[6])
    schema = Schema(fields, SCHEMA.labels)
    values = [{**values_of(row, SCHEMA), "image": None if row else values_of(row)["image"]} for row in range(2)]
    folder = write_dataset(tmp_path / "out", "tar", schema, values)
    transforms: list[Any] = [None, CenterCrop(8), [CenterCrop(8), np.asarray]]
    for transform in transforms:
        assert open_dataset(folder, transform)[1] == (None, 10)
        assert open_dataset(folder, transform)[0][0] is not None
        sample = open_dataset(folder, transform, fields=("image", "label"))[1]
        assert sample == (None, 10)
    opened = open_dataset(folder, CenterCrop(8), fields=("crop", "pose"))
    assert opened[1].crop is None
    assert opened.image(1) is None
    with pytest.raises(UsageError, match="has no image"):
        opened.record(1)


# Names


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (("image", "segg"), r"no field 'segg'.*did you mean 'seg'"),
        (("image", "image"), "named twice"),
        ((), "at least one"),
        (("row",), "no field 'row'"),
        ((3,), "no field 3"),
        ("image", "expected a tuple"),
    ],
)
def test_other_fields_are_refused(one: Path, fields: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        open_dataset(one, fields=fields)


def test_what_a_dataset_says_about_its_fields(one: Path) -> None:
    opened = open_dataset(one, fields=("image", "seg"))
    assert opened.schema["seg"].classes == ("sky", "road")
    assert opened.schema.names == NAMES
    assert "fields=('image', 'seg')" in repr(opened)
    assert "caption: text?" in repr(opened)
    assert "fields=" not in repr(open_dataset(one))
    assert opened.subset([1]).field_names == ("image", "seg")
    for wrong in ("sge", "crop", "row"):
        with pytest.raises(UsageError, match="no field"):
            opened.value(0, wrong)
        with pytest.raises(UsageError, match="no field"):
            opened.record(0, wrong)
    assert bytes(opened.record(1, "caption")) == b"picture \xc3\xa9 1"
    with pytest.raises(UsageError, match=r"row 3 \(line 3.*has no caption"):
        opened.record(LEFT_OUT, "caption")


def test_subsets_and_concatenations_pass_fields_on(one: Path, tmp_path: Path) -> None:
    opened = open_dataset(one, fields=("seg", "label"))
    both = concat([opened.subset([4, 2]), opened])
    assert [both[row].label for row in range(len(both))] == [40, 20, 0, 10, 20, 30, 40, 50]
    assert both.with_transform(CenterCrop(4))[0].seg.shape == (4, 4)
    with pytest.raises(UsageError, match="different fields"):
        concat([opened, open_dataset(one)])
    fields = (FIELDS[0], replace(FIELDS[1], dtype="<u2"))
    other = write_dataset(
        tmp_path / "other", "tar", Schema(fields, SCHEMA.labels), [values_of(row) for row in range(2)]
    )
    with pytest.raises(UsageError, match=r"field seg: dtype is '\|u1' in .*, but '<u2' in .*other"):
        concat([opened, open_dataset(other, fields=("seg", "label"))])


# Transforms


@pytest.mark.parametrize(
    "transform",
    [
        TRANSFORM,
        (RandomCrop(20, padding=4, padding_mode="reflect"), RandomVerticalFlip()),
        (Resize(24), CenterCrop(30), RandomHorizontalFlip(1.0)),
        (),
    ],
    ids=str,
)
def test_all_that_has_pixels_is_moved_alike(dataset: Path, transform: Any) -> None:
    made = compose(list(transform))
    opened = open_dataset(dataset, list(transform), fields=("depth", "image", "label", "other", "seg"))
    plain = open_dataset(dataset, list(transform))
    for row in range(ROWS):
        random = numbers(row, made.draws)
        sample, operations = opened._samples.make(row, random), made.operations(*size_of(row), random)
        assert torch.equal(sample.image, plain._samples.make(row, random)[0])
        assert sample.other.shape == sample.image.shape
        values = values_of(row)
        np.testing.assert_array_equal(sample.depth.numpy(), map_mask(values["depth"].astype(np.int32), operations))
        if row != LEFT_OUT:
            np.testing.assert_array_equal(sample.seg.numpy(), map_mask(values["seg"], operations))


def test_random_numbers_are_drawn_once_per_sample(one: Path) -> None:
    opened = open_dataset(one, list(TRANSFORM), fields=("image", "depth", "crop"))
    torch.manual_seed(5)
    sample = opened[1]
    left, top, width, height, mirrored = sample.crop.tolist()
    part = values_of(1)["depth"][top : top + height, left : left + width].astype(np.int32)
    resized = map_mask(part, Resize((16, 16)).operations(width, height))
    np.testing.assert_array_equal(sample.depth.numpy(), resized[:, ::-1] if mirrored else resized)


def test_pixels_go_where_they_are_wanted(one: Path) -> None:
    opened = open_dataset(one, list(TRANSFORM), fields=("other", "image"))
    into, random = np.zeros((16, 16, 3), np.uint8), numbers(1, 23)
    sample = opened._samples.make(1, random, into)
    assert sample.image is into
    assert torch.equal(torch.from_numpy(into).permute(2, 0, 1), opened._samples.make(1, random).image)


def unchanged(image: Any) -> Any:
    return image


def to_tensor(image: Any) -> Any:
    return image


def shrunk(image: Any) -> Any:
    return torch.from_numpy(np.array(image.resize((5, 4)))).permute(2, 0, 1)


def test_what_moves_the_image_alone_or_might_is_refused(torchvision: Any, one: Path) -> None:
    from torchvision import transforms as first
    from torchvision.transforms import v2

    class Jitter(first.ColorJitter):  # type: ignore[misc]
        pass

    color, flip, known = first.ColorJitter(0.1), RandomHorizontalFlip(1.0), ColoursOnly(unchanged)
    movers: list[Any] = [
        [known, flip],
        [v2.RandomApply([known, flip])],
        [known, first.RandomHorizontalFlip()],
        [first.RandomApply([known, first.RandomRotation(9)])],
        [first.ElasticTransform()],
        [known, first.RandAugment()],
        [first.AugMix()],
        [known, Views([flip])],
        ColoursOnly(CenterCrop(8)),
        ColoursOnly(first.RandomRotation(9)),
        ColoursOnly(first.RandomApply([unchanged, first.RandomCrop(3)])),
        # What moves masks, too, where it gets them, does not behind one that gets the image alone.
        first.RandomApply([known, v2.RandomHorizontalFlip(1.0)]),
    ]
    strangers: list[Any] = [
        [CenterCrop(9), unchanged],
        to_tensor,
        [Jitter()],
        [first.Lambda(unchanged)],
        [first.RandomApply([color, unchanged])],
        [torch.nn.Sequential(torch.nn.ReLU())],
    ]
    for steps, said in [(each, "would move the image, but not {}: .*before all others") for each in movers] + [
        (each, "gets the image, but not {}: if it moves no pixels, wrap it: .*ColoursOnly.*v2") for each in strangers
    ]:
        with pytest.raises(UsageError, match=said.format("seg")):
            open_dataset(one, steps, fields=("image", "seg"))
        with pytest.raises(UsageError, match=said.format("other")):
            open_dataset(one, fields=("image", "other", "label")).with_transform(steps)
        open_dataset(one, steps, fields=("image", "caption"))


def test_a_transform_of_timm_behind_a_callable_is_known_to_move(timm: Any, one: Path) -> None:
    trim = timm.data.transforms.TrimBorder(3)
    open_dataset(one, [trim], fields=("image", "seg"))
    with pytest.raises(UsageError, match=r"TrimBorder.* would move the image, but not seg: .* before all others"):
        open_dataset(one, [ColoursOnly(unchanged), trim], fields=("image", "seg"))


def test_what_changes_colours_only_leaves_masks_where_they_are(torchvision: Any, one: Path) -> None:
    from torchvision import transforms as first
    from torchvision.transforms import v2

    fields = ("image", "seg")
    plain = open_dataset(one, fields=fields)[1]
    colours = [first.ColorJitter(0.1), first.GaussianBlur(3), first.ToTensor(), first.Normalize(0.5, 0.5)]
    harmless: list[Any] = [
        [ColoursOnly(unchanged), *colours],
        [first.RandomApply([ColoursOnly(unchanged), *colours[:2]])],
        [np.asarray],
        [first.functional.to_tensor],
        [first.functional.pil_to_tensor],
        [v2.functional.to_image],
        [ColoursOnly(np.asarray), ColoursOnly(lambda pixels: pixels.transpose(2, 0, 1))],
        [ColoursOnly(lambda image: torch.tensor([image.width]))],
        [np.array, torch.from_numpy],
        [np.array, torch.as_tensor],
    ]
    for steps in harmless:
        assert torch.equal(open_dataset(one, steps, fields=fields)[1].seg, plain.seg)
    jitter = ColorJitter(0.4)
    assert Compose([ColoursOnly(jitter)]).fused == (jitter,)
    assert Compose([ColoursOnly(unchanged)]).foreign[0](3) == 3
    with pytest.raises(UsageError, match=r"ColorJitter is a class: give an object of it, ColoursOnly\(ColorJitter"):
        ColoursOnly(ColorJitter)
    with pytest.raises(UsageError, match=r"transform=\[.*\]: expected a callable on an image; wrap each"):
        ColoursOnly([unchanged])  # type: ignore[arg-type]


def test_a_promise_to_change_colours_only_is_kept(one: Path) -> None:
    fields = ("image", "seg")
    opened = open_dataset(one, [CenterCrop(30), ColoursOnly(shrunk)], fields=fields)
    with pytest.raises(
        UsageError, match=r"row 1 .*: shrunk made an image of shape \[3, 4, 5\], but seg still has \[30, 30"
    ):
        opened[1]
    assert opened[LEFT_OUT].seg is None


def test_a_callable_that_takes_no_pil_images_is_told_what_to_put_before_it(one: Path) -> None:
    def halved(image: Any) -> Any:
        return image[:, : image.shape[1] // 2]

    advice = r"halved was called with a PIL image\. .*PILToTensor\(\).*numpy\.array"
    cases: list[tuple[Any, list[Any]]] = [(None, [CenterCrop(8), halved]), (("image", "seg"), [ColoursOnly(halved)])]
    for fields, steps in cases:
        dataset = open_dataset(one, steps, fields=fields)
        with pytest.raises(AttributeError, match="no attribute 'shape'") as caught:
            dataset[0]
        assert re.match(advice, caught.value.__notes__[0])
        # A worker's error has the other one's text in a note.
        loader = Loader(dataset, 2, num_workers=1, multiprocessing_context="fork")
        with loader, pytest.raises(LoaderError) as told:
            next(iter(loader))
        assert re.search(advice, "".join(told.value.__notes__))
    for converted, shape in ((PILToTensor(), (3, 4, 8)), (np.array, (8, 4, 3))):
        image, _ = open_dataset(one, [CenterCrop(8), converted, halved])[0]
        assert tuple(image.shape) == shape
    # What gets something else is not told of PIL images.
    with pytest.raises(TypeError) as other:
        open_dataset(one, [np.array, lambda image: image + "x"])[0]
    assert not hasattr(other.value, "__notes__")


def test_callables_in_a_sequential_take_them_together_if_each_does(torchvision: Any, one: Path) -> None:
    from torchvision.transforms import v2

    steps = [v2.CenterCrop(30), v2.RandomHorizontalFlip(1.0), v2.PILToTensor()]
    fields = ("image", "seg")
    expected = open_dataset(one, steps, fields=fields)[1]
    sample = open_dataset(one, torch.nn.Sequential(*steps), fields=fields)[1]
    assert torch.equal(sample.seg, expected.seg)
    assert torch.equal(sample.image, expected.image)


def test_a_callable_that_would_never_be_called_is_refused(torchvision: Any, one: Path) -> None:
    from torchvision.transforms import v2

    for fields, step in ((("caption",), v2.ElasticTransform()), (("seg",), repr), (("other",), repr)):
        with pytest.raises(UsageError, match=r"is called with images, but fields=.* has none for it"):
            open_dataset(one, step, fields=fields)
    assert open_dataset(one, v2.CenterCrop(9), fields=("seg",))[1].seg.shape == (9, 9)


def test_transforms_of_torchvision_v2_take_them_together(torchvision: Any, one: Path) -> None:
    from torchvision.transforms import v2

    seen: list[Any] = []

    def look(image: Any) -> Any:
        seen.append(image)
        return image

    steps = [CenterCrop(30), ColoursOnly(look), v2.RandomHorizontalFlip(1.0), v2.PILToTensor()]
    opened = open_dataset(one, steps, fields=("seg", "caption", "image", "depth"))
    sample, values = opened[1], values_of(1)
    left, top = (size_of(1)[0] - 30) // 2, (size_of(1)[1] - 30) // 2
    expected = values["seg"][top : top + 30, left : left + 30][:, ::-1]
    np.testing.assert_array_equal(sample.seg.numpy(), expected)
    assert type(sample.seg) is torch.Tensor
    assert type(sample.depth) is torch.Tensor
    assert torch.equal(sample.image, open_dataset(one, steps)[1][0])
    assert [image.size for image in seen] == [(30, 30)] * 2
    assert opened[LEFT_OUT].seg is None


def test_crop_says_what_was_taken(one: Path) -> None:
    opened = open_dataset(one, [CenterCrop(20), RandomHorizontalFlip(1.0)], fields=("crop",))
    width, height = size_of(2)
    crop = opened[2].crop
    assert crop.dtype == np.int64
    assert crop.tolist() == [(width - 20) // 2, (height - 20) // 2, 20, 20, 1]
    assert open_dataset(one, fields=("crop",))[2].crop.tolist() == [0, 0, width, height, 0]
    with pytest.raises(UsageError, match="crop: the transform is not a crop"):
        open_dataset(one, RandomVerticalFlip(1.0), fields=("crop",))[0]
    with pytest.raises(UsageError, match="crop: only packtrain's"):
        open_dataset(one, [CenterCrop(20), np.asarray], fields=("crop",))


def test_target_transform_gets_the_label(one: Path) -> None:
    opened = open_dataset(one, target_transform=lambda label: label + 1, fields=("label", "seg"))
    assert opened[2].label == 21
    opened.target_transform = None
    assert opened[2].label == 20
    opened.transform = CenterCrop(3)
    assert opened[2].seg.shape == (3, 3)


def test_arrays_of_a_sample_are_its_own(dataset: Path) -> None:
    opened = open_dataset(dataset, fields=("boxes", "pose", "depth", "seg"))
    sample = opened[1]
    for value in (sample.boxes, sample.pose, sample.depth, sample.seg):
        value[:] = 0
    np.testing.assert_array_equal(opened[1].pose, values_of(1)["pose"])
    assert not opened.value(1, "pose").flags.writeable


def test_a_dataset_pickles(one: Path) -> None:
    opened = open_dataset(one, list(TRANSFORM), fields=("image", "seg", "label"))
    opened[0]
    again = pickle.loads(pickle.dumps(opened))
    random = numbers(1, 23)
    ours, theirs = opened._samples.make(1, random), again._samples.make(1, random)
    assert type(ours) is type(theirs)
    assert torch.equal(ours.seg, theirs.seg) and torch.equal(ours.image, theirs.image)


# Damage


def test_what_is_not_asked_for_is_not_opened(tmp_path: Path) -> None:
    folder = make_dataset(tmp_path / "out")
    for path in (folder / "index").glob("field.caption.*"):
        path.unlink()
    assert open_dataset(folder, fields=("seg", "label"))[1].label == 10
    assert open_dataset(folder)[1][1] == 10
    with pytest.raises(CorruptFile, match=r"field\.caption"):
        open_dataset(folder, fields=("seg", "caption"))
    with pytest.raises(CorruptFile, match=r"field\.caption"):
        open_dataset(folder).value(0, "caption")


@pytest.mark.parametrize("check", [True, False])
def test_a_shard_that_became_shorter_is_an_error_and_no_shorter_value(tmp_path: Path, check: bool) -> None:
    folder = make_dataset(tmp_path / "out", "tar")
    opened = open_dataset(folder, io="pread", fields=["caption"], check=check)
    assert opened[0].caption is not None
    columns = opened.store.field("caption").columns
    row = int(np.argmax(columns["length"]))
    os.truncate(folder / opened.store.manifest.shards[0].name, int(columns["offset"][row]) + 1)
    with pytest.raises(UnreadableFile, match="shorter"):
        opened[row]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_damage_names_field_row_line_and_shard(tmp_path: Path, format: str, io: str) -> None:
    folder = make_dataset(tmp_path / "out", format)
    sound = open_dataset(folder)
    for name in NAMES:
        records = sound.store.field(name)
        offset = int(records.columns["offset"][4])
        flip(folder / sound.store.manifest.shards[0].name, offset)
        opened = open_dataset(folder, io=io, fields=NAMES)
        with pytest.raises(CorruptRecord, match=r"row 4 \(line 4, 'row 4', in t-000000") as raised:
            opened[4]
        assert (f"field {name} of row 4" in str(raised.value)) == (name != "image")
        assert (raised.value.row, raised.value.line) == (4, 4)
        assert raised.value.file == sound.store.manifest.shards[0].name
        others = tuple(other for other in NAMES if other != name)
        assert open_dataset(folder, io=io, fields=others)[4] is not None
        assert opened[2] is not None
        flip(folder / sound.store.manifest.shards[0].name, offset)


@pytest.mark.parametrize("column", ["offset", "length", "crc32c", "width", "height", "blocks"])
def test_damage_of_a_fields_columns_is_never_data(tmp_path: Path, column: str) -> None:
    folder = make_dataset(tmp_path / "out")
    flip(folder / "index" / f"field.depth.{column}.npy", -3)
    assert open_dataset(folder, fields=("image", "seg"))[1] is not None
    with pytest.raises(CorruptFile, match="depth"):
        open_dataset(folder, fields=("depth",))[1]


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("caption", b"\xff", "can't decode"),
        ("meta", b"{", "JSONDecodeError"),
        ("boxes", b"\x93NUMPY", "no .npy file"),
        ("seg", b"\x89PNG", "no PNG file"),
        ("seg", encoded(values_of(2)["image"], "PNG"), "one channel"),
        ("image", b"\xff\xd8", "cannot be decoded"),
    ],
)
def test_a_record_that_holds_something_else_names_its_field(
    tmp_path: Path, name: str, value: bytes, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_dataset(make_dataset(tmp_path / "out"), fields=(name,))
    monkeypatch.setattr(opened.store.field(name), "_read", {2: memoryview(value)}.get)
    with pytest.raises(CorruptRecord, match=why) as raised:
        opened[2]
    assert "row 2 (line 2" in str(raised.value)
    assert (f"field {name} of" in str(raised.value)) == (name != "image")


def test_a_mask_of_another_size_than_the_image_is_damage(tmp_path: Path) -> None:
    schema = Schema((FIELDS[0], FIELDS[1]), SCHEMA.labels)
    values = [{"image": values_of(row)["image"], "seg": values_of(row + 1)["seg"]} for row in range(2)]
    folder = write_dataset(tmp_path / "out", "tar", schema, values)
    with pytest.raises(CorruptRecord, match=r"field seg of row 0 .* has 43 x 58 pixels, but the image has 40 x 60"):
        open_dataset(folder, fields=("image", "seg"))[0]
    assert open_dataset(folder, fields=("seg",))[0].seg.shape == (58, 43)


def test_a_field_that_must_be_there_may_not_be_missing(tmp_path: Path) -> None:
    folder = make_dataset(tmp_path / "out")
    manifest = Manifest.load(folder)
    fields = tuple(replace(field, optional=False, missing=0) for field in manifest.fields)
    (folder / "manifest.json").write_bytes(replace(manifest, fields=fields).dump())
    for name in ("caption", "seg"):
        opened = open_dataset(folder, fields=(name,))
        assert opened[2] is not None
        with pytest.raises(CorruptRecord, match=f"field {name} of row {LEFT_OUT} .*outside the shard"):
            opened[LEFT_OUT]


# Linked shards


def test_a_linked_shard_is_read_where_it_lies_unless_it_changed(tmp_path: Path) -> None:
    folder = make_dataset(tmp_path / "out")
    manifest = Manifest.load(folder)
    (tmp_path / "elsewhere").mkdir()
    shard = tmp_path / "elsewhere" / "theirs.tar"
    (folder / manifest.shards[0].name).rename(shard)
    link = Link("theirs.tar", shard.stat().st_mtime_ns)
    info = replace(manifest.shards[0], name="theirs.tar", link=link)
    (folder / "manifest.json").write_bytes(replace(manifest, base="../elsewhere", shards=(info,)).dump())
    assert open_dataset(folder, fields=("caption",))[1].caption == "picture é 1"
    os.utime(shard, ns=(1, link.modified_ns + 1))
    with pytest.raises(CorruptFile, match=r"theirs.tar\) was changed after it had been indexed.*index again"):
        open_dataset(folder, fields=("caption",))[1]
    # A staged copy has the shard in its own folder, with a time of its own.
    (folder / "theirs.tar").write_bytes(shard.read_bytes())
    assert open_dataset(folder, fields=("caption",))[1].caption == "picture é 1"
