"""Notices where Accelerate accumulates gradients over a loader that it does not know.

``accelerator.prepare`` reads nothing of an object whose class is not torch's. So the loader looks at Accelerate's
state, without importing it.
"""

from __future__ import annotations

import sys
from typing import Any, Final

UNPREPARED: Final = (
    "the epoch has ended, and Accelerate holds accumulated gradients that it has not applied, because it does not know "
    "where an epoch of this loader ends. Write `loader = packtrain.accelerate.prepare(loader, accelerator)` before the "
    "first epoch: accelerator.prepare leaves a packtrain Loader as it is"
)


def holds_gradients() -> bool:
    """True if ``accelerator.accumulate`` has applied no gradients in its last step, and is not told to keep them."""
    kind: Any = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
    # An object that is made before the Accelerator would begin the state that all share.
    if not getattr(kind, "_shared_state", None):
        return False
    state = kind()
    return bool(state.num_steps > 1 and state.sync_with_dataloader and not state.sync_gradients)
