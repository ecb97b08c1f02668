"""Laws of the extension as a module: it has what its Protocol declares, and nothing else."""

from __future__ import annotations

import inspect

import pytest
from typing_extensions import get_protocol_members

from packtrain._codec.native import Extension, extension

if extension is None:
    pytest.skip("packtrain's C extension is not built", allow_module_level=True)


def test_it_has_the_functions_of_its_protocol_and_no_others() -> None:
    public = {name for name in dir(extension) if not name.startswith("__")}
    assert public == get_protocol_members(Extension)
    functions = {name for name in public if inspect.isbuiltin(getattr(extension, name))}
    assert functions == public - {"LIBJPEG"}


def test_it_names_its_libjpeg() -> None:
    assert extension is not None
    assert type(extension.LIBJPEG) is str
    assert extension.LIBJPEG.startswith("libjpeg-turbo ")
