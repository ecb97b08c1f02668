"""Effects with random parameters, and images to try them on."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from packtrain._codec.effects.colour import Brightness, Contrast, Grey, Hue, Saturation
from packtrain._codec.effects.filters import GaussianBlur, PillowBlur, Sharpness
from packtrain._codec.effects.mixing import Mix, Overlay
from packtrain._codec.effects.operation import PixelOperation
from packtrain._codec.effects.tones import AutoContrast, Equalize, Invert, Posterize, Solarize, SolarizeAdd
from packtrain._codec.effects.warps import Affine, Perspective, Rotate

FACTORS = st.floats(0.0, 3.0, width=32) | st.sampled_from([0.0, 1.0, 0.1, 1.9])
RESAMPLES = st.sampled_from([0, 2, 3])
FILLS = st.sampled_from([(0,), (128,), (1, 2, 255)])
NUMBERS = st.floats(-1.5, 1.5)
OFFSETS = st.floats(-40, 40)

EFFECTS: dict[type[PixelOperation], st.SearchStrategy[Any]] = {
    Brightness: st.builds(Brightness, FACTORS),
    Contrast: st.builds(Contrast, FACTORS),
    Saturation: st.builds(Saturation, FACTORS),
    Hue: st.builds(Hue, st.floats(-0.5, 0.5)),
    Grey: st.just(Grey()),
    Posterize: st.builds(Posterize, st.integers(0, 8)),
    Solarize: st.builds(Solarize, st.floats(0, 256)),
    SolarizeAdd: st.builds(SolarizeAdd, st.integers(0, 255), st.integers(0, 256)),
    Invert: st.just(Invert()),
    AutoContrast: st.just(AutoContrast()),
    Equalize: st.just(Equalize()),
    Sharpness: st.builds(Sharpness, FACTORS),
    GaussianBlur: st.builds(
        GaussianBlur,
        st.tuples(*[st.integers(0, 5).map(lambda half: 2 * half + 1)] * 2),
        st.tuples(*[st.floats(0.1, 4)] * 2),
    ),
    PillowBlur: st.builds(PillowBlur, st.floats(0.0, 5)),
    Affine: st.builds(Affine, st.tuples(NUMBERS, NUMBERS, OFFSETS, NUMBERS, NUMBERS, OFFSETS), RESAMPLES, FILLS),
    Rotate: st.builds(
        Rotate,
        st.floats(-360, 360) | st.sampled_from([0.0, 90.0, 180.0, 270.0]),
        RESAMPLES,
        st.booleans(),
        st.none() | st.tuples(OFFSETS, OFFSETS),
        FILLS,
    ),
    Perspective: st.builds(
        Perspective,
        st.tuples(NUMBERS, NUMBERS, OFFSETS, NUMBERS, NUMBERS, OFFSETS, *[st.floats(-0.01, 0.01)] * 2),
        RESAMPLES,
        FILLS,
    ),
}
"""For each kind of effect, effects with random parameters."""

_PARTS = st.one_of(
    *(EFFECTS[kind] for kind in (Brightness, Saturation, Solarize, Equalize, Sharpness)),
    st.builds(Affine, st.tuples(NUMBERS, NUMBERS, OFFSETS, NUMBERS, NUMBERS, OFFSETS), RESAMPLES),
)
_CHAINS = st.lists(st.lists(_PARTS, max_size=3).map(tuple), min_size=1, max_size=3).map(tuple)
_SHARES = st.floats(0, 1, width=32)


@st.composite
def _mixtures(draw: st.DrawFn, kind: type[Mix | Overlay]) -> Mix | Overlay:
    chains = draw(_CHAINS)
    shares = draw(st.tuples(*[_SHARES] * len(chains)))
    return Mix(chains, shares, draw(_SHARES)) if kind is Mix else Overlay(chains, shares)


EFFECTS |= {kind: _mixtures(kind) for kind in (Mix, Overlay)}


def noise(height: int, width: int, channels: int = 3) -> npt.NDArray[np.uint8]:
    """Independent random bytes, uint8 [height, width, channels]; always the same for one size."""
    return np.random.default_rng(height * width).integers(0, 256, (height, width, channels), np.uint8)


@st.composite
def images(draw: st.DrawFn, most: int = 64) -> npt.NDArray[np.uint8]:
    """Images of noise, of few values, of ramps or of one colour, uint8 [height, width, channels]."""
    height, width = draw(st.integers(1, most)), draw(st.integers(1, most))
    shape = (height, width, draw(st.sampled_from([1, 3])))
    generator = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    match draw(st.sampled_from(["noise", "few", "ramp", "plain"])):
        case "noise":
            return generator.integers(0, 256, shape, np.uint8)
        case "few":
            return generator.choice(np.array([0, 1, 127, 128, 254, 255], np.uint8), shape)
        case "ramp":
            return np.linspace(0, 255, height * width * shape[2]).astype(np.uint8).reshape(shape)
    return np.broadcast_to(generator.integers(0, 256, shape[2], np.uint8), shape).copy()
