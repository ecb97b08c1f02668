"""Pillow or pillow-simd: two distributions of the package PIL. A user installs exactly one of them."""

from __future__ import annotations

import functools
from importlib import metadata
from types import ModuleType

from packtrain._core.errors import MissingDependency

_INSTALL = (
    "install one of the two: `pip install 'packtrain[pillow]'` (a wheel), or the faster "
    "`CC=\"cc -mavx2\" pip install 'packtrain[simd]'` (compiled here; needs a C compiler and zlib and libjpeg headers)"
)


@functools.cache
def require_pillow() -> ModuleType:
    """The module `PIL.Image`.

    Raises:
        MissingDependency: Neither Pillow nor pillow-simd is installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingDependency(f"neither Pillow nor pillow-simd can be imported ({error}): {_INSTALL}") from error
    return Image


def pillow_version() -> str:
    """Which of the two is installed, and its libjpeg, for example ``"Pillow 12.1.1, libjpeg-turbo 3.1.0"``."""
    require_pillow()
    import PIL
    from PIL import features

    name = "pillow-simd" if "post" in PIL.__version__ else "Pillow"
    turbo = features.version("libjpeg_turbo")
    return (
        f"{name} {PIL.__version__}, {f'libjpeg-turbo {turbo}' if turbo else 'libjpeg ' + str(features.version('jpg'))}"
    )


def pillow_conflict() -> str | None:
    """A warning if Pillow and pillow-simd are both installed, since they overwrite each other's files; None if not."""
    found = [name for name in ("pillow", "pillow-simd") if _is_installed(name)]
    if len(found) < 2:
        return None
    return (
        "Pillow and pillow-simd are both installed and have overwritten each other's files. Keep one: "
        "`pip uninstall -y pillow pillow-simd`, then " + _INSTALL
    )


def _is_installed(distribution: str) -> bool:
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True
