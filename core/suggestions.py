"""The "did you mean" of error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

_SIMILAR: Final = 0.65
"""The least similarity of a known name, from 0 to 1: `folder` is not meant for `decoder`."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: ``"; did you mean 'tar'?"``, or nothing if no known name is similar.

    >>> did_you_mean("tra", ["tar", "hdf5", "lmdb"])
    "; did you mean 'tar'?"
    """
    similar = difflib.get_close_matches(name, list(known), n=1, cutoff=_SIMILAR)
    return f"; did you mean {similar[0]!r}?" if similar else ""
