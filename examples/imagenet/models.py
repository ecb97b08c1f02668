"""The networks that can be trained."""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from packtrain.errors import MissingDependency, UsageError

ARCHS: Final = ("resnet18", "resnet50", "shufflenet_v2_x0_5", "vit_s_16")


def network(arch: str, classes: int, size: int) -> nn.Module:
    """A network with random weights: float [N, 3, size, size] in, logits [N, classes] out.

    It is torchvision's where that can be imported. Where not, there is only a ResNet-18, with the same parameters.

    Args:
        arch: One of `ARCHS`.
        classes: Number of classes.
        size: Height and width of the images, in pixels.

    Raises:
        UsageError: `arch` is unknown, or cannot be made for images of this size.
        MissingDependency: `arch` needs torchvision.
    """
    if arch not in ARCHS:
        raise UsageError(f"--arch {arch}: expected {', '.join(ARCHS)}")
    try:
        from torchvision import models
    # A torchvision that was built for another torch raises a RuntimeError.
    except (ImportError, RuntimeError) as error:
        if arch == "resnet18":
            return ResNet18(classes)
        raise MissingDependency(
            f"--arch {arch} needs torchvision, which cannot be imported: {error}. "
            f"Install the one that fits your torch: `{command_for_torchvision()}`; or train --arch resnet18"
        ) from error
    if arch == "vit_s_16":
        if size % 16:
            raise UsageError(f"--arch vit_s_16 --size {size}: expected a multiple of 16")
        return small_transformer(models, classes, size)
    model: nn.Module = models.get_model(arch, num_classes=classes)
    return model


def command_for_torchvision() -> str:
    """Installs the torchvision that was built for the torch that is installed."""
    version = str(torch.__version__)
    command = f"pip install torchvision torch=={version}"
    # A build such as 2.9.0+cpu or 2.9.0+cu126 comes from an index of PyTorch's, and so does its torchvision.
    _, _, build = version.partition("+")
    return f"{command} --index-url https://download.pytorch.org/whl/{build}" if build else command


def small_transformer(models: Any, classes: int, size: int) -> nn.Module:
    """ViT-S/16, which torchvision does not have by name."""
    model: nn.Module = models.VisionTransformer(
        image_size=size, patch_size=16, num_layers=12, num_heads=6, hidden_dim=384, mlp_dim=1536, num_classes=classes
    )
    return model


class Block(nn.Module):
    """Two convolutions with a shortcut around them. All names are torchvision's, so that checkpoints fit both."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if (inputs, stride) != (outputs, 1):
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, features: Tensor) -> Tensor:
        shortcut = features if self.downsample is None else self.downsample(features)
        hidden = F.relu(self.bn1(self.conv1(features)), inplace=True)
        return F.relu(self.bn2(self.conv2(hidden)) + shortcut, inplace=True)


class ResNet18(nn.Module):
    """torchvision's ResNet-18, for where torchvision cannot be imported."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = nn.Sequential(Block(64, 64, 1), Block(64, 64, 1))
        self.layer2 = nn.Sequential(Block(64, 128, 2), Block(128, 128, 1))
        self.layer3 = nn.Sequential(Block(128, 256, 2), Block(256, 256, 1))
        self.layer4 = nn.Sequential(Block(256, 512, 2), Block(512, 512, 1))
        self.fc = nn.Linear(512, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        features = F.max_pool2d(F.relu(self.bn1(self.conv1(images)), inplace=True), 3, 2, 1)
        features = self.layer4(self.layer3(self.layer2(self.layer1(features))))
        logits: Tensor = self.fc(F.adaptive_avg_pool2d(features, 1).flatten(1))
        return logits
