"""Laws of pictures of rows: what is stored, what a transform makes of it, masks, boxes, texts and damage."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from helpers.fields import COLUMNS, field_set
from helpers.support import encoded, flip, packed, picture
from PIL import Image

from packtrain import Loader, PackOptions, StoreOptions, open_dataset, pack
from packtrain._core.errors import UsageError
from packtrain._extras.looking.looker import Looker, LookOptions
from packtrain._packer.options import Columns, FieldColumn
from packtrain._readers.dataset.drawing import BoxField, as_images, fitted
from packtrain.transforms import Normalize, RandomHorizontalFlip, RandomResizedCrop, ToTensor

WIDE, HIGH = 120, 80
BOXES = {
    "xyxy": [30, 20, 90, 60],
    "xywh": [30, 20, 60, 40],
    "cxcywh": [60, 40, 60, 40],
    "xyxyn": [0.25, 0.25, 0.75, 0.75],
    "xywhn": [0.25, 0.25, 0.5, 0.5],
    "cxcywhn": [0.5, 0.5, 0.5, 0.5],
}
"""One box in all forms."""
RED = (255, 64, 64)
normalising: list[Any] = [RandomResizedCrop(24), RandomHorizontalFlip(), ToTensor(), Normalize([0.5] * 3, [0.25] * 3)]
"""Named on the command line as this module's."""


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of a black and a white image, whose masks have 1 on the left, 0 in the middle and 2 on the right."""
    folder = tmp_path_factory.mktemp("shapes")
    mask = np.zeros((HIGH, WIDE), np.uint8)
    mask[:, : WIDE // 3], mask[:, WIDE * 2 // 3 :] = 1, 2
    Image.fromarray(mask).save(folder / "mask.png")
    with (folder / "train.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "seg", *BOXES])
        for name, grey in (("black", 0), ("white", 255)):
            Image.new("RGB", (WIDE, HIGH), (grey,) * 3).save(folder / f"{name}.png")
            writer.writerow([f"{name}.png", "mask.png", *(json.dumps([box]) for box in BOXES.values())])
    fields = (
        FieldColumn("seg", "mask", "seg", by_path=True),
        *(FieldColumn(form, "array", form, by_path=False, shape=(None, 4)) for form in BOXES),
    )
    pack(
        folder / "train.csv",
        folder / "out",
        PackOptions(store=StoreOptions("raw"), columns=Columns("path", None, fields)),
    )
    return folder / "out"


def pixels(image: Image.Image | None) -> npt.NDArray[np.int64]:
    assert image is not None
    return np.asarray(image).astype(np.int64)


class TestMasks:
    def test_a_value_is_a_colour_laid_half_over_the_image_and_0_is_clear(self, shapes: Path) -> None:
        looker = Looker(shapes, LookOptions())
        black, white = (pixels(looker.stored(row, WIDE).image) for row in (0, 1))
        assert black.shape == (HIGH, WIDE, 3)
        for part, clear in ((slice(0, 40), False), (slice(40, 80), True), (slice(80, 120), False)):
            for image in (black, white):
                assert len(np.unique(image[:, part].reshape(-1, 3), axis=0)) == 1
            assert (white[0, part.start] - black[0, part.start]).tolist() == pytest.approx(
                [255 if clear else 127] * 3, abs=1
            )
        assert black[0, 60].tolist() == [0, 0, 0]
        assert black[0, 0].max() > 60 and black[0, 100].max() > 60
        assert abs(black[0, 0] - black[0, 100]).max() > 60

    def test_they_can_be_left_out(self, shapes: Path) -> None:
        for found in (
            Looker(shapes, LookOptions(masks=False)).stored(1, WIDE),
            Looker(shapes, LookOptions()).stored(1, WIDE, overlays=False),
        ):
            assert (pixels(found.image) == 255).all()


class TestBoxes:
    @pytest.mark.parametrize("form", BOXES)
    def test_a_box_is_an_outline_in_every_form(self, shapes: Path, form: str) -> None:
        looker = Looker(shapes, LookOptions(boxes=f"{form}:{form}", masks=False))
        image = pixels(looker.stored(0, WIDE).image)
        outline = np.zeros((HIGH, WIDE), bool)
        outline[20:61, 30:91] = True
        outline[21:60, 31:90] = False
        assert ((image == RED).all(2) == outline).all()

    def test_they_are_scaled_with_the_picture(self, shapes: Path) -> None:
        looker = Looker(shapes, LookOptions(boxes="xyxy", masks=False))
        red = (pixels(looker.stored(0, WIDE * 2).image) == RED).all(2)
        down, across = np.nonzero(red)
        assert (across.min(), down.min(), across.max(), down.max()) == (60, 40, 180, 120)

    def test_the_numbers_of_drawn_boxes_are_no_text(self, shapes: Path) -> None:
        looker = Looker(shapes, LookOptions(boxes="xyxy"))
        assert set(looker.stored(0, WIDE).texts) == set(BOXES) - {"xyxy"}

    def test_after_a_transform_they_lie_where_it_moved_them(self, shapes: Path) -> None:
        dataset = open_dataset(shapes, [RandomResizedCrop(96), RandomHorizontalFlip()], fields=("image", "crop"))
        looker = Looker(shapes, LookOptions("rrc96", seed=3, boxes="xyxy", masks=False))
        assert looker.note is None
        mirrored = set()
        for epoch in range(12):
            with Loader(dataset, 1, seed=3, num_workers=0) as loader:
                loader.set_epoch(epoch)
                left, top, width, height, flipped = loader.sample(0).crop.tolist()
            mirrored.add(flipped)
            red = (pixels(looker.seen(0, 96, epoch).image) == RED).all(2)
            corner = (30 - left) * 96 / width, (20 - top) * 96 / height
            column = 96 - corner[0] if flipped else corner[0]
            if 1 < column < 95:
                assert red[:, round(column)].any() or red[:, int(column)].any()
            if 1 < corner[1] < 95:
                assert red[int(corner[1])].any() or red[round(corner[1])].any()
        assert mirrored == {0, 1}

    @pytest.mark.parametrize("text", ["seg", "image", "none", "xyxy:xy", ""])
    def test_another_field_or_form_is_refused(self, shapes: Path, text: str) -> None:
        with pytest.raises(UsageError, match="boxes="):
            Looker(shapes, LookOptions(boxes=text))

    @pytest.mark.parametrize(
        "numbers", [[np.nan] * 4, [np.inf, -np.inf, 0, 1], [-1e300, -1e300, 1e300, 1e300], [5, 5, 1, 1]]
    )
    def test_odd_numbers_do_no_harm(self, numbers: list[float]) -> None:
        from packtrain._readers.dataset.drawing import with_boxes

        image = Image.new("RGB", (WIDE, HIGH))
        with np.errstate(over="ignore", invalid="ignore"):
            made = with_boxes(image, BoxField("a").corners([numbers], WIDE, HIGH), WIDE, HIGH)
        assert made.size == image.size


class TestTransforms:
    def test_a_picture_is_what_the_loader_hands_out(self, images: Path, tmp_path: Path) -> None:
        folder = packed(images, tmp_path / "out", "tar")
        looker = Looker(folder, LookOptions("rrc48", seed=7))
        dataset = open_dataset(folder, [RandomResizedCrop(48), RandomHorizontalFlip()])
        with Loader(dataset, 5, shuffle=False, seed=7, num_workers=0) as loader:
            for epoch in range(2):
                batches = np.concatenate([batch.permute(0, 2, 3, 1).numpy() for batch, _ in loader])
                for row, expected in enumerate(batches):
                    assert (pixels(looker.seen(row, 48, epoch).image) == expected).all()
        assert (batches[0] != pixels(looker.seen(0, 48, 0).image)).any()

    def test_numbers_are_stretched_and_the_texts_say_so(self, images: Path, tmp_path: Path) -> None:
        folder = packed(images, tmp_path / "out", "tar")
        looker = Looker(folder, LookOptions(f"{__name__}:normalising"))
        with Loader(open_dataset(folder, normalising), 1, seed=0, num_workers=0) as loader:
            values = loader.sample(3)[0].numpy()
        found = looker.seen(3, 24)
        least, most = min(values.min(), 0), max(values.max(), 1)
        expected = (values - least) / (most - least) * 255
        assert abs(pixels(found.image) - np.moveaxis(expected, 0, -1)).max() <= 0.51
        assert found.texts["image"].startswith("float32, shown from -")

    def test_masks_that_cannot_follow_are_left_out_with_a_note(self, tmp_path: Path) -> None:
        listing = field_set(tmp_path, 4, bad=False)
        pack(listing, tmp_path / "out", PackOptions(columns=COLUMNS))
        looker = Looker(tmp_path / "out", LookOptions(f"{__name__}:inverted", boxes="boxes"))
        assert looker.note is not None and looker.note.startswith("side, seg, depth, boxes: not drawn")
        assert (pixels(looker.seen(0, 48).image)).size

    def test_without_an_image_there_is_nothing_to_transform(self, tmp_path: Path) -> None:
        listing = field_set(tmp_path, 4, bad=False)
        columns = Columns(None, None, tuple(each for each in COLUMNS.fields if each.kind == "text"))
        pack(listing, tmp_path / "out", PackOptions(columns=columns))
        with pytest.raises(UsageError, match=r"transform='rrc24'.*has no images"):
            Looker(tmp_path / "out", LookOptions("rrc24"))
        assert Looker(tmp_path / "out", LookOptions()).stored(0, 48).image is None


def inverted(image: Any) -> Any:
    """A transform that might move pixels, for all that packtrain knows."""
    return Image.eval(image, lambda value: 255 - value)


class TestStored:
    @pytest.mark.parametrize("mode", ["verbatim", "crop-ready", "raw", "coefficients"])
    @pytest.mark.parametrize("side", [20, 64, 300])
    def test_a_picture_is_about_the_image_made_smaller(self, tmp_path: Path, mode: str, side: int) -> None:
        (tmp_path / "0.jpg").write_bytes(encoded(picture(0, 320, 240), quality=95))
        (tmp_path / "list.txt").write_text("0.jpg 0\n")
        packed(tmp_path / "list.txt", tmp_path / "out", "tar", store=StoreOptions(mode))
        image = open_dataset(tmp_path / "out").image(0)
        found = Looker(tmp_path / "out", LookOptions()).stored(0, side).image
        expected = image.resize((side, side * 3 // 4), Image.Resampling.BICUBIC)
        assert abs(pixels(found) - pixels(expected)).mean() < 6

    def test_small_images_are_enlarged_by_whole_pixels(self) -> None:
        small = picture(1, 10, 7)
        large = fitted(small, 49)
        assert large.size == (40, 28)
        assert (pixels(large)[::4, ::4] == pixels(small)).all()
        assert (pixels(large)[3::4, 3::4] == pixels(small)).all()

    def test_damage_is_a_problem_of_its_row_only(self, images: Path, tmp_path: Path) -> None:
        folder = packed(images, tmp_path / "out", "tar")
        where = int(np.load(folder / "index" / "offset.npy")[4])
        (shard,) = folder.glob("*.tar")
        flip(shard, where + 20)
        for looker, look in (
            (Looker(folder, LookOptions()), Looker.stored),
            (Looker(folder, LookOptions("rrc24")), Looker.seen),
        ):
            found = [look(looker, row, 48) for row in range(12)]
            assert [row for row, each in enumerate(found) if each.problem] == [4]
            assert "row 4 (line 4, 'image 4.jpg'" in str(found[4].problem)
            assert found[4].texts == {"label": "1"}

    def test_every_kind_of_field_is_seen_or_told(self, tmp_path: Path) -> None:
        listing = field_set(tmp_path, 5, bad=False)
        pack(listing, tmp_path / "out", PackOptions(columns=COLUMNS))
        looker = Looker(tmp_path / "out", LookOptions())
        found = [looker.stored(row, 200) for row in range(5)]
        assert [set(each.texts) for each in found] == [{"label", "caption", "meta", "boxes", "wave", "blob"}] * 5
        assert found[2].texts["caption"] == "Zoë 図"
        assert found[1].texts["meta"] == '{"id": 1, "tags": ["x"]}'
        assert found[3].texts["wave"] == "(missing)"
        assert found[1].texts["blob"].startswith("1 bytes: ")
        assert found[4].texts["boxes"] == "float64 [0, 4]: "
        # The second image stands beside the first one.
        ratios = [each.image.width / each.image.height for each in found if each.image is not None]
        assert [ratio > 1.6 for ratio in ratios] == [True, False, True, True, True]

    def test_control_characters_of_strangers_are_escaped(self, tmp_path: Path) -> None:
        (tmp_path / "0.jpg").write_bytes(encoded(picture(0)))
        row = {"path": "0.jpg", "label": "cat\x1b[31m", "text": "a\x1b]0;b\x07\u202e"}
        (tmp_path / "list.jsonl").write_text(json.dumps(row))
        columns = Columns("path", "label", (FieldColumn("text", "text", "text", by_path=False),))
        pack(tmp_path / "list.jsonl", tmp_path / "out", PackOptions(columns=columns))
        texts = Looker(tmp_path / "out", LookOptions()).stored(0, 48).texts
        assert texts == {"label": "cat\\x1b[31m (0)", "text": "a\\x1b]0;b\\x07\\u202e"}


def test_arrays_of_other_shapes_are_no_images() -> None:
    assert as_images(None) == []
    assert [image.size for image in as_images((np.zeros((3, 4, 5), np.uint8), np.zeros((4, 5), bool)))] == [(5, 4)] * 2
    for shape in ((2, 4, 5), (4,), (3, 0, 5)):
        with pytest.raises(ValueError, match="is no image"):
            as_images(np.zeros(shape))
