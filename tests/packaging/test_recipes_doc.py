"""The examples of docs/recipes.md can be pasted: each section runs by itself, and makes the batches that it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from helpers.support import image_set, packed, require_module

from packtrain.transforms import Views

TEXT = (Path(__file__).parents[2] / "docs/recipes.md").read_text()
IMAGES = 128


class Recipe(NamedTuple):
    """The batches of a section: the size of each view, and the number of images."""

    sides: tuple[int, ...]
    batch: int = IMAGES


RECIPES = {
    "torchvision's reference": Recipe((176,)),
    "timm": Recipe((224,)),
    "SimCLR and BYOL": Recipe((224, 224)),
    "DINO": Recipe((224,) * 2 + (96,) * 8, 32),
    "Evaluation": Recipe((224,)),
}


def sections() -> dict[str, str]:
    """The code of each section that has some, by its heading."""
    parts = re.split(r"^## (.+)$", TEXT, flags=re.MULTILINE)
    code = {
        heading: "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
        for heading, text in zip(parts[1::2], parts[2::2], strict=True)
    }
    return {heading: text for heading, text in code.items() if text}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the document's reader works in."""
    folder = tmp_path_factory.mktemp("recipes")
    listing = image_set(folder / "images", 16)
    listing.write_text(listing.read_text() * (IMAGES // 16))
    packed(listing, folder / "out", "tar")
    return folder


def test_every_section_with_code_is_run() -> None:
    assert set(sections()) == set(RECIPES)


@pytest.mark.complete
@pytest.mark.parametrize("heading", RECIPES)
def test_a_section_runs_as_it_is(folder: Path, heading: str, torchvision: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if heading == "timm":
        require_module("timm")
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    exec(compile(sections()[heading], "docs/recipes.md", "exec"), names)
    # The document promises it of all its pipelines.
    transform = names["dataset"].transform
    for part in transform.views if isinstance(transform, Views) else (transform,):
        assert "\n    fused " in str(part) and "through PIL" not in str(part)
    recipe = RECIPES[heading]
    with names["loader"] as loader:
        images, labels = next(iter(loader))
    views = images if isinstance(images, tuple | list) else (images,)
    assert [tuple(view.shape) for view in views] == [(recipe.batch, 3, side, side) for side in recipe.sides]
    assert all(view.dtype == torch.float32 for view in views)
    assert labels.shape == (recipe.batch,)
