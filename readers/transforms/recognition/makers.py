"""Types of the functions that recognise transforms of one class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..base import Transform
from ..tensor_steps import FinishingStep

Recognised = Sequence[Transform | FinishingStep]
"""Makes what does the same as a transform of another library; empty for what does nothing."""

Recognise = Callable[[Any], Recognised | None]
"""Recognises any transform; None if it is not known."""

Maker = Callable[[Any, Recognise], Recognised | None]
"""Recognises transforms of one class. The second argument is for the transforms in them.

None, and a `UsageError` too, say that one of the parameters means something else, or nothing here.
"""

Makers = dict[tuple[str, str], Maker]
"""By module and name of the class."""
