"""Trains a ResNet on a packed dataset, on any number of processes, and resumes from a checkpoint on any other number.

torchrun --standalone --nproc-per-node 2 examples/resnet_ddp/train.py DATASET --epochs 90 --checkpoint checkpoint
"""

from __future__ import annotations

import argparse
import inspect
import math
import os
import sys
import time
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from packtrain import Loader, PackedDataset, open_dataset
from packtrain.errors import PacktrainError, UsageError
from packtrain.transforms import CenterCrop, RandomHorizontalFlip, RandomResizedCrop, Resize


@dataclass(frozen=True)
class TrainOptions:
    """Options of the training.

    Attributes:
        dataset: Folder that `packtrain pack` wrote, with one integer label per image.
        validation: Dataset on which to measure the accuracy after each epoch; empty for none.
        checkpoint: Folder of the checkpoint; training resumes from it if there is one.
        save_every: Steps between two checkpoints; another one is written at the end.
        epochs: Passes over the dataset.
        max_steps: Step after which to stop, counted over all runs; -1 trains to the end of the last epoch.
        batch_size: Images per step, over all processes.
        size: Height and width of the network's input, in pixels.
        lr: Highest learning rate.
        momentum: Nesterov momentum of SGD.
        weight_decay: L2 penalty.
        width: Channels of the first stage of the network; each stage has twice as many as the one before.
        stages: Stages of the network, of two blocks each; 4 make a ResNet-18.
        seed: Seed of the weights, the order and the crops.
    """

    dataset: str
    validation: str = ""
    checkpoint: str = "checkpoint"
    save_every: int = 1000
    epochs: int = 90
    max_steps: int = -1
    batch_size: int = 256
    size: int = 224
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    width: int = 64
    stages: int = 4
    seed: int = 0


def convolution(inputs: int, outputs: int, kernel_size: int, stride: int = 1) -> nn.Sequential:
    """A convolution and its batch normalisation."""
    padding = kernel_size // 2
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel_size, stride, padding, bias=False), nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """Two convolutions with a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            convolution(inputs, outputs, 3, stride), nn.ReLU(inplace=True), convolution(outputs, outputs, 3)
        )
        self.shortcut = nn.Identity() if (inputs, stride) == (outputs, 1) else convolution(inputs, outputs, 1, stride)

    def forward(self, features: Tensor) -> Tensor:
        return F.relu(self.residual(features) + self.shortcut(features))


def resnet(classes: int, width: int = 64, stages: int = 4) -> nn.Sequential:
    """A ResNet-18, or a smaller one: float32 [N, 3, height, width] in, logits [N, classes] out."""
    widths = [width, *(width << stage for stage in range(stages))]
    blocks = []
    for stage, (inputs, outputs) in enumerate(pairwise(widths)):
        blocks += [Block(inputs, outputs, stride=2 if stage else 1), Block(outputs, outputs, stride=1)]
    return nn.Sequential(
        convolution(3, width, 7, stride=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(widths[-1], classes),
    )


@dataclass
class Run:
    """Everything that a checkpoint holds."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loader: Loader
    step: int = 0

    def save(self, path: Path) -> None:
        """Writes a checkpoint. If this is interrupted, `path` still holds the old checkpoint or already the new one."""
        state = {name: part.state_dict() for name, part in self._parts().items()}
        new = path.with_suffix(".new")
        with new.open("wb") as file:
            torch.save({"step": self.step, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)

    def load(self, path: Path, device: torch.device) -> None:
        """Resumes from a checkpoint, which any number of processes may have written."""
        state = torch.load(path, map_location=device, weights_only=True)
        self.step = state["step"]
        for name, part in self._parts().items():
            part.load_state_dict(state[name])

    def _parts(self) -> dict[str, nn.Module | torch.optim.Optimizer | Loader]:
        return {"model": self.model, "optimizer": self.optimizer, "loader": self.loader}


def learning_rate(highest: float, progress: float) -> float:
    """Rises during the first 5 % of the training, then falls to 0 along a cosine.

    Args:
        highest: Highest learning rate.
        progress: Share of the training that is done, in [0, 1].
    """
    return highest * min(progress / 0.05, (1 + math.cos(math.pi * progress)) / 2)


def require_same_classes(dataset: PackedDataset, validation: PackedDataset) -> None:
    """Makes sure that a label stands for the same class in both datasets, if both know the names of their classes.

    Raises:
        UsageError: It does not.
    """
    for label, names in enumerate(zip(dataset.classes or (), validation.classes or (), strict=False)):
        if names[0] != names[1]:
            raise UsageError(
                f"label {label} is {names[0]!r} in {dataset.store.path}, but {names[1]!r} in {validation.store.path}: "
                "pack both with the same --classes"
            )


def train(options: TrainOptions, device: torch.device) -> None:
    """Trains in each process of the default process group; resumes from the checkpoint if there is one.

    Raises:
        UsageError: The processes cannot share a batch evenly, or the validation images have other classes.
        PacktrainError: A dataset is missing or damaged.
    """
    batch_size, left = divmod(options.batch_size, dist.get_world_size())
    if left:
        raise UsageError(f"batch size {options.batch_size} is not a multiple of {dist.get_world_size()} processes")
    torch.manual_seed(options.seed)
    dataset = open_dataset(options.dataset, transform=[RandomResizedCrop(options.size), RandomHorizontalFlip()])
    if options.validation:
        require_same_classes(dataset, open_dataset(options.validation))
    model = resnet(int(dataset.targets.max()) + 1, options.width, options.stages).to(device)
    # Images are channels_last already. It is the fastest format for convolutions.
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(
        model.parameters(), options.lr, momentum=options.momentum, weight_decay=options.weight_decay, nesterov=True
    )
    path = Path(options.checkpoint) / "last.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    with Loader(dataset, batch_size, shuffle=True, seed=options.seed) as loader:
        run = Run(model, optimizer, loader)
        if path.exists():
            run.load(path, device)
        replica = DistributedDataParallel(model)
        while (epoch := loader.state_dict()["epoch"]) < options.epochs and run.step != options.max_steps:
            report = f"epoch {epoch + 1}: {train_epoch(run, replica, options, path, device)}"
            if options.validation:
                report += f", accuracy {accuracy(replica, options, batch_size, device):.1%}"
            if dist.get_rank() == 0:
                print(report, flush=True)
        if dist.get_rank() == 0:
            run.save(path)


def train_epoch(
    run: Run, replica: DistributedDataParallel, options: TrainOptions, path: Path, device: torch.device
) -> str:
    """Trains to the end of the epoch, or to `max_steps`. Returns a line that says how it went."""
    start = time.perf_counter()
    # Loss and images, kept on the device: calling .item() at every step would make the CPU wait for the GPU.
    sums = torch.zeros(2, device=device)
    run.model.train()
    for images, labels in run.loader:
        # By samples instead of steps, so that it stays right if the run resumes with another batch size.
        state = run.loader.state_dict()
        progress = (state["epoch"] + state["consumed"] / state["length"]) / options.epochs
        for group in run.optimizer.param_groups:
            group["lr"] = learning_rate(options.lr, progress)
        loss = F.cross_entropy(logits(replica, images, device), labels.to(device))
        run.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        run.optimizer.step()
        run.step += 1
        sums += torch.stack([loss.detach(), torch.ones_like(loss)]) * len(images)
        if run.step % options.save_every == 0 and dist.get_rank() == 0:
            run.save(path)
        if run.step == options.max_steps:
            break
    dist.all_reduce(sums)
    loss_sum, count = sums.tolist()
    if not count:
        return "was already finished"
    return f"loss {loss_sum / count:.3f}, {count / (time.perf_counter() - start):,.0f} images/s"


def logits(network: nn.Module, images: Tensor, device: torch.device) -> Tensor:
    """The outputs of the network, float32 [batch, classes]. Images travel as bytes, and become floats on the device."""
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        outputs: Tensor = network(images.to(device).float() / 127.5 - 1)
    return outputs.float()


@torch.no_grad()
def accuracy(replica: DistributedDataParallel, options: TrainOptions, batch_size: int, device: torch.device) -> float:
    """Share of the validation images that are classified correctly.

    If the processes cannot share the images evenly, a few images count twice: fewer than there are processes.
    """
    dataset = open_dataset(options.validation, transform=[Resize(options.size * 8 // 7), CenterCrop(options.size)])
    counts = torch.zeros(2, device=device)
    replica.module.eval()
    with Loader(dataset, batch_size) as loader:
        for images, labels in loader:
            correct = logits(replica, images, device).argmax(1) == labels.to(device)
            counts += torch.stack([correct.sum(), torch.ones_like(correct).sum()])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def parse_options() -> TrainOptions:
    """Reads the command line, which has an option for each attribute of `TrainOptions`."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=inspect.getdoc(TrainOptions), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", metavar="DATASET")
    for option in fields(TrainOptions)[1:]:
        parser.add_argument(f"--{option.name.replace('_', '-')}", type=type(option.default), default=option.default)
    return TrainOptions(**vars(parser.parse_args()))


def main() -> None:
    """Trains in one of the processes that torchrun started."""
    options = parse_options()
    if "LOCAL_RANK" not in os.environ:
        sys.exit("error: start this with torchrun: torchrun --standalone --nproc-per-node 2 " + " ".join(sys.argv))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        train(options, device)
    except PacktrainError as error:
        # The group is not destroyed: other processes may be waiting in it for this one. torchrun ends them.
        sys.exit(f"error: {error}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
