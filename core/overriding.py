"""`typing.override` before Python 3.12, without importing typing_extensions, which half the commands would wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import override as override
else:

    def override(method: Any) -> Any:
        """Marks a method that takes the place of one of a base class, for type checkers."""
        return method
