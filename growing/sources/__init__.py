"""Where samples come from: functions of users, by name, and the samplers that packtrain has."""

from __future__ import annotations

import importlib
import os
import sys
from functools import reduce

from packtrain._core.errors import UsageError
from packtrain._core.suggestions import did_you_mean

from ..source_reader import Source

_EXPECTED = "expected MODULE:FUNCTION, as in my_data:samples for the function samples in my_data.py"


def load_source(name: str) -> Source:
    """The source that ``MODULE:FUNCTION`` names: a function that yields samples, or a class or factory of sources.

    As with ``python -m``, modules in the working folder are found.

    Raises:
        UsageError: There is none of this name, or its module cannot be imported.
    """
    module_name, _, path = name.partition(":")
    if not path or not all(part.isidentifier() for part in (*module_name.split("."), *path.split("."))):
        raise UsageError(f"source {name!r}: {_EXPECTED}")
    folder = os.getcwd()
    if not {"", folder} & set(sys.path):
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise UsageError(f"source {name}: {module_name} imports {error.name}, which is not installed") from error
        raise UsageError(
            f"source {name}: there is no module {error.name}, neither in {folder} nor among those that are installed. "
            "Run this in the folder of the module, or name that folder in PYTHONPATH"
        ) from error
    except Exception as error:
        raise UsageError(f"source {name}: {module_name} cannot be imported: {type(error).__name__}: {error}") from error
    try:
        found = reduce(getattr, path.split("."), module)
    except AttributeError as error:
        public = [each for each in vars(module) if not each.startswith("_")]
        raise UsageError(f"source {name}: {module_name} has no {path}{did_you_mean(path, public)}") from error
    if not callable(found):
        raise UsageError(
            f"source {name}: {path} is an object of type {type(found).__name__}, not a function that yields samples"
        )
    return found
