"""The decoders, by name: each makes a PIL image of a JPEG, with the pixels that Pillow gives for it.

What another back end refuses goes to Pillow, whose answer, an image or an exception, counts: the images that a dataset
delivers do not depend on the decoder. A back end has a libjpeg of its own, so ``"auto"`` takes one only after its
pixels were compared with Pillow's here (`packtrain._codec.decoders.selfcheck`).
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from packtrain._core.errors import MissingDependency, UsageError
from packtrain._core.suggestions import did_you_mean

from ..geometry import Box
from ..native import BUILD_COMMAND
from .fallback import BackEnd
from .pillow import Encoded
from .selfcheck import deviation

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from PIL.Image import Image

DECODERS: Final = ("auto", "pillow", "extension", "simplejpeg", "accimage")

# Fastest first; Pillow needs no check.
_PREFERRED: Final = ("extension", "simplejpeg")
_COMMANDS: Final = {
    "extension": BUILD_COMMAND,
    "simplejpeg": "pip install 'packtrain[simplejpeg]'",
    "accimage": "conda install -c conda-forge accimage",
}


class Decoder(Protocol):
    """What a decoder provides. It has no state: use one in any thread or process."""

    @property
    def name(self) -> str:
        """Its name in `DECODERS`."""

    @property
    def version(self) -> str:
        """What decodes, and which version of it."""

    def decode(self, data: Encoded, mode: str, box: Box | None = None, scale: int = 1) -> Image:
        """Decodes a rectangle of an image.

        Args:
            data: A whole JPEG, or a file of any other format that Pillow reads.
            mode: ``"RGB"`` or ``"L"``.
            box: A rectangle inside the image, in pixels of the scaled image; None for all of it.
            scale: 1, 2, 4 or 8: every side becomes its `scale`-th part, rounded up. A JPEG is then decoded to that size
                by its DCT coefficients, any other image averaged.

        Returns:
            An image of the mode asked for; instead of RGB also RGBX, whose first three bands count.

        Raises:
            ValueError: `box` is not inside the image.
            Exception: Whatever Pillow raises on an image it refuses.
        """

    def pixels(self, data: Encoded, box: Box | None = None) -> npt.NDArray[np.uint8] | None:
        """A rectangle of an image, uint8 [height, width, 3], as `decode` gives it in mode RGB; its rows may lie apart.

        Returns:
            None where only `decode` knows what becomes of `data`.
        """


class Candidate(NamedTuple):
    """A decoder as it is found here.

    Attributes:
        name: Its name in `DECODERS`.
        decoder: None if it is not installed.
        problem: Why ``"auto"`` does not take it, None if nothing speaks against it.
    """

    name: str
    decoder: Decoder | None
    problem: str | None


def decoder(name: str = "auto") -> Decoder:
    """The decoder called `name`.

    ``"auto"`` is the fastest one that is installed and gives Pillow's pixels here: the extension, simplejpeg, Pillow.

    Raises:
        UsageError: There is none of this name.
        MissingDependency: It is not installed.
    """
    if name not in DECODERS:
        raise UsageError(f"decoder {name!r}: expected one of {', '.join(DECODERS)}{did_you_mean(name, DECODERS)}")
    if name == "auto":
        return _fastest_exact()
    try:
        made: Decoder = importlib.import_module(f"{__name__}.{name}").DECODER
    except ImportError as error:
        raise MissingDependency(f"decoder {name!r} cannot be imported ({error}): `{_COMMANDS[name]}`") from error
    return made


def candidates() -> Iterator[Candidate]:
    """What ``"auto"`` chooses from, in the order of its preference: the first one without a problem."""
    for name in (*_PREFERRED, "pillow"):
        try:
            found = decoder(name)
        except MissingDependency as error:
            yield Candidate(name, None, str(error))
        else:
            yield Candidate(name, found, deviation(found) if isinstance(found, BackEnd) else None)


@functools.cache
def _fastest_exact() -> Decoder:
    return next(found for _, found, problem in candidates() if found is not None and problem is None)
