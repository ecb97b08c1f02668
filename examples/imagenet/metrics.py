"""Loss and accuracy, added up on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Means:
    """Means over some samples.

    Attributes:
        loss: Mean loss.
        top1: Share of the samples whose class was the network's first choice, in per cent.
        top5: Share of the samples whose class was among the network's first five, in per cent.
        samples: Number of samples.
    """

    loss: float
    top1: float
    top5: float
    samples: int

    def __str__(self) -> str:
        return f"loss: {self.loss:.4f}  acc1: {self.top1:.3f}  acc5: {self.top5:.3f}"


class Sums:
    """Adds up over batches without making the processor wait for the GPU; only `means` does that.

    Attributes:
        values: Sums of loss, first choices, first five choices and samples, float64 [4].
    """

    def __init__(self, device: torch.device) -> None:
        self.values = torch.zeros(4, dtype=torch.float64, device=device)

    def add(self, loss: Tensor, logits: Tensor, target: Tensor) -> None:
        """Adds a batch.

        Args:
            loss: Mean loss, a scalar.
            logits: Outputs of the network, float [N, classes].
            target: Class indices, int64 [N], or class probabilities, float [N, classes], of which the largest counts.
        """
        classes = target.argmax(1) if target.is_floating_point() else target
        choices = logits.detach().topk(min(5, logits.shape[1])).indices
        right = (choices == classes[:, None]).double()
        samples = len(logits)
        counts = torch.stack([right[:, 0].sum(), right.sum(), torch.full_like(right[0, 0], samples)])
        self.values += torch.cat([(loss.detach().double() * samples)[None], counts])

    def take(self) -> Tensor:
        """The sums, which start again from zero."""
        values, self.values = self.values, torch.zeros_like(self.values)
        return values


def means(sums: Tensor) -> Means:
    """The means of sums as `Sums` has them."""
    loss, top1, top5, samples = sums.tolist()
    if not samples:
        return Means(0.0, 0.0, 0.0, 0)
    return Means(loss / samples, 100 * top1 / samples, 100 * top5 / samples, round(samples))
