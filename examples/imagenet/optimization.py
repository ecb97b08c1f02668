"""Learning rate, optimizer, and running average of the weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from packtrain.errors import UsageError


def learning_rate(highest: float, done: float, warm_up: float) -> float:
    """Rises linearly while the training warms up, then falls to 0 along a cosine.

    Args:
        highest: Highest learning rate.
        done: Share of the training that is done, in [0, 1].
        warm_up: Share of the training that warms up, in [0, 1).
    """
    if done < warm_up:
        return highest * done / warm_up
    return highest * (1 + math.cos(math.pi * (done - warm_up) / (1 - warm_up))) / 2


def optimizer_of(model: nn.Module, name: str, lr: float, momentum: float, weight_decay: float) -> torch.optim.Optimizer:
    """An optimizer that decays weights, but neither biases nor what normalisation layers multiply with.

    Raises:
        UsageError: `name` is neither ``"sgd"`` nor ``"adamw"``.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in trained if parameter.ndim > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in trained if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
    if name == "sgd":
        return torch.optim.SGD(groups, lr, momentum=momentum, nesterov=momentum > 0)
    if name == "adamw":
        return torch.optim.AdamW(groups, lr)
    raise UsageError(f"--opt {name}: expected sgd or adamw")


class Average:
    """An exponential moving average (EMA) of a model's weights and statistics, itself a model.

    Args:
        model: The model.
        decay: Share of the average that an update keeps. The share of the first updates is less: it grows as
            (1 + n) / (10 + n), so that the random weights of the beginning are soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(requires_grad=False)
        self.decay = decay
        self.updates = 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Takes in the present weights of the model."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for mine, present in zip(self.model.state_dict().values(), model.state_dict().values(), strict=True):
            if mine.is_floating_point():
                mine.lerp_(present, 1 - decay)
            else:
                mine.copy_(present)

    def state_dict(self) -> dict[str, Any]:
        """The average, for a checkpoint."""
        return {"updates": self.updates, "model": self.model.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a `state_dict`."""
        self.updates = state["updates"]
        self.model.load_state_dict(state["model"])
