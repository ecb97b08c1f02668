"""Trains a LeNet on random 32 x 32 crops of a packed dataset, on CPU or GPU.

python examples/lenet/train.py DATASET --epochs 10
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F
from torch import nn

from packtrain import ImageDataset, Loader, PackedDataset, open_dataset
from packtrain.errors import PacktrainError, UsageError
from packtrain.transforms import RandomCrop

CROP: Final = RandomCrop(32, pad_if_needed=True)


@dataclass(frozen=True)
class TrainOptions:
    """Options of the training.

    Attributes:
        epochs: Passes over the dataset.
        batch_size: Images per step; the last batch of an epoch may be smaller.
        workers: Processes that load images; 0 loads them in this process.
        device: ``"cpu"``, ``"cuda"``, or ``"auto"``, which takes the GPU if there is one.
        seed: Seed of the weights, the order and the crops.
        start_method: Start of the workers: ``"fork"``, ``"forkserver"``, ``"spawn"``, or None for Python's default.
        lr: Learning rate of SGD.
        momentum: Nesterov momentum.
        weight_decay: L2 penalty.
    """

    epochs: int = 1
    batch_size: int = 128
    workers: int = 2
    device: str = "auto"
    seed: int = 0
    start_method: str | None = None
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4


@dataclass(frozen=True)
class EpochResult:
    """One pass over the dataset.

    Attributes:
        number: Number of the epoch, counted from 1.
        loss: Mean cross entropy over the training images, computed during training.
        accuracy: Share of the training images classified correctly during training, in [0, 1].
        images_per_second: Rate of loading and training, with the start of the workers.
    """

    number: int
    loss: float
    accuracy: float
    images_per_second: float

    def __str__(self) -> str:
        return (
            f"epoch {self.number}: loss {self.loss:.3f}, accuracy {self.accuracy:.1%}, "
            f"{self.images_per_second:,.0f} images/s"
        )


@dataclass(frozen=True)
class TrainResult:
    """The trained model and its epochs."""

    model: nn.Module
    epochs: tuple[EpochResult, ...]


def lenet(classes: int) -> nn.Sequential:
    """LeNet-5: float32 [N, 3, 32, 32] in, logits [N, classes] out.

    It uses tanh and average pooling, as in 1998: with ReLU and max pooling, a learning rate of 0.1 is unstable.
    """
    return nn.Sequential(
        nn.Conv2d(3, 6, kernel_size=5),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, kernel_size=5),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 5 * 5, 120),
        nn.Tanh(),
        nn.Linear(120, 84),
        nn.Tanh(),
        nn.Linear(84, classes),
    )


def count_classes(dataset: PackedDataset) -> int:
    """The number of outputs that the labels of `dataset` need, at least 10.

    Raises:
        UsageError: The labels are not one integer per image, from 0 upwards.
    """
    labels = dataset.store.manifest.labels
    if str(labels) != "int":
        raise UsageError(f"the LeNet needs one integer label per image; {dataset.store.path} has labels {labels}")
    targets = dataset.targets
    if targets.min() < 0:
        raise UsageError(f"the LeNet needs labels from 0 upwards; {dataset.store.path} has label {targets.min()}")
    return max(10, int(targets.max()) + 1)


def train(
    dataset: ImageDataset,
    classes: int,
    options: TrainOptions,
    on_epoch: Callable[[EpochResult], None] = lambda _: None,
) -> TrainResult:
    """Trains a new LeNet. On a CPU the same options give the same result, as torch is seeded and uses one thread.

    Args:
        dataset: RGB images with one integer label each.
        classes: Number of outputs of the network.
        options: Options of the training.
        on_epoch: Called after each epoch.

    Raises:
        UsageError: `options` asks for a GPU and there is none.
    """
    torch.manual_seed(options.seed)
    # In so small a network more threads only wait for each other, and the workers need the cores.
    torch.set_num_threads(1)
    device = _device(options.device)
    model = lenet(classes).to(device)
    optimizer = torch.optim.SGD(
        model.parameters(), options.lr, momentum=options.momentum, weight_decay=options.weight_decay, nesterov=True
    )
    epochs = []
    with Loader(
        dataset.with_transform(CROP),
        options.batch_size,
        shuffle=True,
        seed=options.seed,
        num_workers=options.workers,
        multiprocessing_context=options.start_method,
    ) as loader:
        for number in range(1, options.epochs + 1):
            epochs.append(_train_epoch(number, model, optimizer, loader, device))
            on_epoch(epochs[-1])
    return TrainResult(model, tuple(epochs))


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"torch {torch.__version__} finds no CUDA device here; use --device cpu")
    return torch.device(name)


def _train_epoch(
    number: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: Loader,
    device: torch.device,
) -> EpochResult:
    start = time.perf_counter()
    # Kept on the device: calling .item() at every step would make the CPU wait for the GPU.
    loss_sum, correct = torch.zeros((), device=device), torch.zeros((), device=device)
    count = 0
    model.train()
    for images, labels in loader:
        # Images travel as bytes, and become floats from -1 to 1 on the device.
        inputs = images.to(device).float() / 127.5 - 1
        targets = labels.to(device)
        logits = model(inputs)
        loss = F.cross_entropy(logits, targets)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        loss_sum += loss.detach() * len(targets)
        correct += (logits.argmax(1) == targets).sum()
        count += len(targets)
    loss_mean, accuracy = (loss_sum / count).item(), (correct / count).item()
    return EpochResult(number, loss_mean, accuracy, count / (time.perf_counter() - start))


def main() -> None:
    """Reads the command line and trains."""
    defaults = TrainOptions()
    parser = argparse.ArgumentParser(description="Train a LeNet on random 32 x 32 crops of a packed dataset.")
    parser.add_argument("dataset", type=Path, metavar="DATASET", help="folder that `packtrain pack` wrote")
    parser.add_argument("--epochs", type=int, default=defaults.epochs)
    parser.add_argument("--batch-size", type=int, default=defaults.batch_size)
    parser.add_argument("--workers", type=int, default=defaults.workers, help="processes that load images")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default=defaults.device)
    parser.add_argument("--seed", type=int, default=defaults.seed)
    arguments = vars(parser.parse_args())
    path = arguments.pop("dataset")
    options = TrainOptions(**arguments)
    try:
        dataset = open_dataset(path)
        classes = count_classes(dataset)
        print(f"{len(dataset):,} images, {classes} classes, on {_device(options.device)}", flush=True)
        train(dataset, classes, options, on_epoch=lambda epoch: print(epoch, flush=True))
    except PacktrainError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
