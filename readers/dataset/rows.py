"""The types of samples and batches of named fields: one class of named tuples for each tuple of names.

Does not import torch.
"""

from __future__ import annotations

import re
from collections import namedtuple
from typing import Any, Final

import numpy as np

_NAMED: Final = re.compile(r"Sample\(([a-z][a-z0-9_]*(?:, [a-z][a-z0-9_]*)*)\)")
# Type checkers want the names to be known beforehand.
_namedtuple: Any = namedtuple
_types: Final[dict[tuple[str, ...], type[Any]]] = {}


def sample_type(names: tuple[str, ...]) -> type[Any]:
    """The class of samples, and of batches, that consist of the fields `names`.

    It is a plain named tuple, whose only base is `tuple`: torch's pytrees take no other for one. So its instances pass
    through torch's collating and pinning, and through what moves batches to a device in Lightning and Accelerate. The
    same names always give the same class, also in another process: class and instances pickle by name.

    Args:
        names: Names of the fields, in order. Each is a Python name that does not begin with ``_``.

    >>> sample_type(("image", "mask"))(1, 2)
    Sample(image=1, mask=2)
    """
    if names not in _types:
        made = _namedtuple("Sample", names, module=__name__)
        made.__qualname__ = f"Sample({', '.join(names)})"
        # Another thread may have been faster, and all must get the same class.
        _types.setdefault(names, made)
    return _types[names]


def owned(sample: Any) -> Any:
    """A sample whose arrays are its own: a read-only one may be a view of a file, which torch would let users write."""
    values = [
        value.copy() if isinstance(value, np.ndarray) and not value.flags.writeable else value for value in sample
    ]
    return type(sample)._make(values)


def is_sample(value: object) -> bool:
    """True for an instance of a class that `sample_type` made."""
    names = getattr(type(value), "_fields", None)
    return isinstance(names, tuple) and type(value) is _types.get(names)


def __getattr__(name: str) -> type[Any]:
    """Finds a class by its qualified name, as unpickling does."""
    if found := _NAMED.fullmatch(name):
        return sample_type(tuple(found[1].split(", ")))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
