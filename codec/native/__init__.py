"""The C extension, if it was built: that takes a C compiler and libjpeg-turbo's headers when packtrain is installed."""

from __future__ import annotations

from types import ModuleType
from typing import Final

from packtrain._core.errors import MissingDependency

extension: ModuleType | None
try:
    from . import _extension as extension
except ImportError:
    extension = None

BUILD_COMMAND: Final = (
    "apt-get install gcc libjpeg-dev python3-dev && "
    "pip install --force-reinstall --no-deps --no-binary packtrain packtrain"
)
"""Builds it on a system with Debian's packages."""


def require_extension(purpose: str) -> ModuleType:
    """The extension `packtrain._codec.native._extension`.

    Args:
        purpose: What it is needed for, as the beginning of a sentence.

    Raises:
        MissingDependency: It was not built.
    """
    if extension is None:
        raise MissingDependency(
            f"{purpose} needs packtrain's C extension, which was not built when packtrain was installed, for want of a "
            f"C compiler or of libjpeg-turbo's headers (`packtrain doctor` says which): `{BUILD_COMMAND}`"
        )
    return extension
