"""The decoders, by name. Each makes a PIL image of a JPEG, with the pixels that Pillow gives.

If another back end refuses an image, Pillow decodes it or raises an exception. The images of a dataset therefore do not
depend on the decoder. Each back end has its own libjpeg, so ``"auto"`` uses one only after it has compared the pixels
with Pillow's on this machine (`packtrain._codec.decoders.selfcheck`).
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from packtrain._core.arguments import choice
from packtrain._core.errors import MissingDependency
from packtrain._core.installing import build_command, extra_command

from ..pillow import has_pillow, require_pillow
from .base import PILLOW, BackEnd
from .base import Decoder as Decoder
from .selfcheck import deviation

DECODERS: Final = ("auto", "pillow", "extension", "simplejpeg", "accimage")

# Fastest first; Pillow needs no check.
_PREFERRED: Final = ("extension", "simplejpeg")
_COMMANDS: Final[Mapping[str, Callable[[], str]]] = {
    "extension": build_command,
    "simplejpeg": lambda: extra_command("simplejpeg"),
    "accimage": lambda: "conda install -c conda-forge accimage",
}


class Candidate(NamedTuple):
    """A decoder that ``"auto"`` considers.

    Attributes:
        decoder: None if the decoder is not installed.
        problem: Why ``"auto"`` does not use it; None if it may.
    """

    name: str
    decoder: Decoder | None
    problem: str | None


def decoder(name: str = "auto") -> Decoder:
    """Return the decoder called `name`.

    ``"auto"`` is the first of the extension, simplejpeg and Pillow that is installed and gives Pillow's pixels on this
    machine. They are in order of speed, fastest first.

    Raises:
        UsageError: There is no decoder with this name.
        MissingDependency: The decoder is not installed.
    """
    if choice("decoder", name, DECODERS) == "auto":
        return _fastest_exact()
    if name == PILLOW.name:
        require_pillow("decoder 'pillow'")
        return PILLOW
    try:
        made: Decoder = importlib.import_module(f"{__name__}.{name}").DECODER
    except ImportError as error:
        raise MissingDependency(f"decoder {name!r} cannot be imported ({error}): `{_COMMANDS[name]()}`") from error
    return made


def candidates() -> Iterator[Candidate]:
    """Yield the decoders that ``"auto"`` considers, in order of preference. It uses the first one without a problem."""
    for name in (*_PREFERRED, "pillow"):
        try:
            found = decoder(name)
        except MissingDependency as error:
            yield Candidate(name, None, str(error))
        else:
            # Without Pillow there is nothing to compare with, and the extension has tested itself.
            yield Candidate(name, found, deviation(found) if isinstance(found, BackEnd) and has_pillow() else None)


@functools.cache
def _fastest_exact() -> Decoder:
    exact = (found for _, found, problem in candidates() if found is not None and problem is None)
    # If there is none, this one says what to install as soon as it is to decode.
    return next(exact, PILLOW)
