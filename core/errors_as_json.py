"""Errors that go from one process to another as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from . import errors
from .errors import PacktrainError, RemoteError

_FACTS: Final = ("file", "row", "line")


def error_to_json(error: BaseException) -> dict[str, object]:
    """Return an error as JSON values. An error that is not packtrain's becomes a RemoteError."""
    known = isinstance(error, PacktrainError)
    kind, message = (type(error), str(error)) if known else (RemoteError, f"{type(error).__name__}: {error}")
    facts = {name: getattr(error, name) for name in _FACTS if getattr(error, name, None) is not None} if known else {}
    return {"error": kind.__name__, "message": message, **facts}


def error_from_json(found: Mapping[str, Any]) -> PacktrainError:
    """The error that such a message tells of."""
    kind: type[PacktrainError] = getattr(errors, str(found["error"]), RemoteError)
    return kind(found["message"], **{name: found[name] for name in _FACTS if name in found})
