"""Decodes undecoded images by Pillow, and makes loaders that have them decoded so."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from packtrain._codec.geometry import apply
from packtrain._readers.dataset.rows import is_sample
from packtrain._readers.loader import loader as loader_module
from packtrain._readers.loader.decoding import UndecodedImages
from packtrain._readers.transforms.undecoded import Undecoded


def pixels(image: Undecoded) -> torch.Tensor:
    """uint8 [height, width, 3]. Whatever of the plan's box is not in the image is black."""
    left, top, width, height = image.plan.box
    canvas = Image.new("RGB", (width, height))
    canvas.paste(Image.open(io.BytesIO(image.data)).convert("RGB"), (-left, -top))
    return torch.from_numpy(np.array(apply(canvas, image.plan.operations)))


def stacked(images: UndecodedImages) -> torch.Tensor:
    """uint8 [samples, 3, height, width] in channels_last memory."""
    made = torch.stack([pixels(image) for image in images.images])
    assert made.shape[1:] == images.shape
    return made.permute(0, 3, 1, 2)


@contextmanager
def decoding(decode: Callable[[UndecodedImages], Any] = stacked) -> Iterator[None]:
    """`Loader(decode="cuda")` needs no GPU, and has images decoded in this way."""

    def decoded(maker: Any, value: Any, batch: Any) -> Any:
        values = [decode(each) if isinstance(each, UndecodedImages) else each for each in value]
        return (type(value)(*values) if is_sample(value) else type(value)(values)), batch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader_module, "decode_of", lambda decode, device: decoded if decode == "cuda" else None)
        yield
