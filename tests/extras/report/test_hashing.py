"""Laws of the hashes that a report compares images by."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from helpers.support import picture, require_module
from PIL import Image

from packtrain._extras.report.alike import ones
from packtrain._extras.report.hashing import SIDE, VIEWS, View, hashes, small_grey, thumbs


@pytest.mark.parametrize("mirrored", [False, True])
def test_a_whole_image_has_the_hash_of_imagehash(mirrored: bool) -> None:
    require_module("imagehash")
    require_module("scipy")
    imagehash = importlib.import_module("imagehash")
    small = [picture(seed, 90, 70, "L").resize((SIDE, SIDE)) for seed in range(40)]
    found = hashes(np.stack([np.asarray(each) for each in small]), View(mirrored=mirrored))
    seen = [each.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else each for each in small]
    assert [f"{number:016x}" for number in found.tolist()] == [str(imagehash.phash(each)) for each in seen]


@pytest.mark.parametrize("size", [(500, 375), (63, 47), (32, 32), (20, 300), (1, 1)])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_it_shrinks_as_pillow_does(size: tuple[int, int], mode: str) -> None:
    image = picture(3, *size, mode)
    expected = np.asarray(image.convert("L").resize((SIDE, SIDE), Image.Resampling.LANCZOS), int)
    found = small_grey(np.asarray(image).reshape(size[1], size[0], -1))
    assert np.abs(found.astype(int) - expected).max() <= 1


def test_a_view_has_nearly_the_hash_of_the_part_it_shows() -> None:
    images = [picture(seed, 400, 400, "L") for seed in range(20)]
    greys = np.stack([np.asarray(image.resize((SIDE, SIDE), Image.Resampling.LANCZOS)) for image in images])
    for view in VIEWS:
        left, top, side = (value / SIDE * 400 for value in view[:3])
        box = (left, top, left + side, top + side)
        parts = [image.resize((SIDE, SIDE), Image.Resampling.LANCZOS, box) for image in images]
        if view.mirrored:
            parts = [part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) for part in parts]
        of_parts = np.stack([np.asarray(part) for part in parts])
        assert ones(hashes(greys, view) ^ hashes(of_parts)).max() <= 6
        assert (thumbs(greys, view) * thumbs(of_parts)).sum(axis=1).min() > 0.97


def test_the_product_of_thumbs_is_their_correlation() -> None:
    greys = np.random.default_rng(0).integers(0, 256, (2, SIDE, SIDE), np.uint8)
    one, other = greys.reshape(2, SIDE // 2, 2, SIDE // 2, 2).mean(axis=(2, 4)).reshape(2, -1)
    assert float(thumbs(greys).prod(axis=0).sum()) == pytest.approx(np.corrcoef(one, other)[0, 1], abs=1e-6)
