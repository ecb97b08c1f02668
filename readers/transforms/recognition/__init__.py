"""Recognises transforms of other libraries by class and parameters, so that pipelines can be pasted as they are.

Classes are known by module and name, so that no library is imported for this. A subclass may do something else, so only
the class itself is recognised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..base import Transform
from ..finishing import FinishingStep

Recognised = Sequence[Transform | FinishingStep]
"""What does the same; empty for what does nothing."""


def recognised(transform: Any) -> Recognised | None:
    """What does the same as a transform of another library; None if it is not known, or does something of its own."""
    return None
