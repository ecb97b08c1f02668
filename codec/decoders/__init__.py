"""The decoders, by name. Each makes a PIL image of a JPEG, with the pixels that Pillow gives.

If another back end refuses an image, Pillow decodes it or raises an exception. The images of a dataset therefore do not
depend on the decoder. Each back end has its own libjpeg, so ``"auto"`` uses one only after it has compared the pixels
with Pillow's on this machine (`packtrain._codec.decoders.selfcheck`).
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from packtrain._core.arguments import choice
from packtrain._core.errors import MissingDependency
from packtrain._core.installing import build_command, extra_command

from ..box import Box
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
_COMMANDS: Final[Mapping[str, Callable[[], str]]] = {
    "extension": build_command,
    "simplejpeg": lambda: extra_command("simplejpeg"),
    "accimage": lambda: "conda install -c conda-forge accimage",
}


class Decoder(Protocol):
    """What a decoder provides. A decoder has no state, so it can be used in any thread or process."""

    @property
    def name(self) -> str:
        """The decoder's name in `DECODERS`."""

    @property
    def version(self) -> str:
        """The library that decodes, and its version."""

    def decode(self, data: Encoded, mode: str, box: Box | None = None, scale: int = 1) -> Image:
        """Decodes a rectangle of an image.

        Args:
            data: A whole JPEG, or a file of any other format that Pillow reads.
            mode: ``"RGB"`` or ``"L"``.
            box: A rectangle inside the image, in pixels of the scaled image; None for the whole image.
            scale: 1, 2, 4 or 8: width and height are divided by it and rounded up. A JPEG is decoded to that size from
                its DCT coefficients; the pixels of any other image are averaged.

        Returns:
            An image of mode `mode`. Its mode may be RGBX in place of RGB; only the first three bands count then.

        Raises:
            ValueError: `box` is not inside the image.
            Exception: Whatever Pillow raises on an image it refuses.
        """

    def pixels(self, data: Encoded, box: Box | None = None) -> npt.NDArray[np.uint8] | None:
        """Decodes a rectangle of an image to the pixels that `decode` gives in mode RGB.

        Args:
            data: A whole JPEG, or a file of any other format that Pillow reads.
            box: A rectangle inside the image, in pixels; None for the whole image.

        Returns:
            Pixels, uint8 [height, width, 3]; there may be gaps between rows. None if only `decode` can decode `data`.
        """


class Candidate(NamedTuple):
    """A decoder that ``"auto"`` considers.

    Attributes:
        name: Name of the decoder in `DECODERS`.
        decoder: The decoder; None if it is not installed.
        problem: Why ``"auto"`` does not use it; None if it may.
    """

    name: str
    decoder: Decoder | None
    problem: str | None


def decoder(name: str = "auto") -> Decoder:
    """The decoder called `name`.

    ``"auto"`` is the first of the extension, simplejpeg and Pillow that is installed and gives Pillow's pixels on this
    machine. They are in order of speed, fastest first.

    Raises:
        UsageError: There is no decoder with this name.
        MissingDependency: The decoder is not installed.
    """
    if choice("decoder", name, DECODERS) == "auto":
        return _fastest_exact()
    try:
        made: Decoder = importlib.import_module(f"{__name__}.{name}").DECODER
    except ImportError as error:
        raise MissingDependency(f"decoder {name!r} cannot be imported ({error}): `{_COMMANDS[name]()}`") from error
    return made


def candidates() -> Iterator[Candidate]:
    """The decoders that ``"auto"`` considers, in order of preference. It uses the first one without a problem."""
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
