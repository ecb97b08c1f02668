"""Trains a ResNet on a packed dataset, on any number of processes, and goes on from a checkpoint on any other number.

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

from packtrain import Loader, open_dataset
from packtrain.errors import PacktrainError, UsageError
from packtrain.transforms import CenterCrop, RandomHorizontalFlip, RandomResizedCrop, Resize


@dataclass(frozen=True)
class TrainOptions:
    """How to train.

    Attributes:
        dataset: The folder that `packtrain pack` wrote, with one integer label for each image.
        validation: Another one, to measure the accuracy on after each epoch; empty: none.
        checkpoint: Folder of the checkpoint, from which training goes on if there is one.
        save_every: Steps from one checkpoint to the next; the last one is written at the end.
        epochs: Passes over the dataset.
        max_steps: Stop after so many steps, counted from the very beginning; -1: at the end of the last epoch.
        batch_size: Images per step, of all processes together.
        size: Pixels of each side of the network's input.
        lr: Highest learning rate.
        momentum: Of SGD.
        weight_decay: L2 penalty.
        width: Channels of the network's first stage; each stage has twice as many as the one before.
        stages: Of the network; each has two blocks, so that 4 make a ResNet-18.
        seed: Of the weights, the order and the crops.
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
    """All that a checkpoint holds."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loader: Loader
    step: int = 0

    def save(self, path: Path) -> None:
        """Writes a checkpoint. Whenever this is interrupted, `path` is the old one or the new one."""
        state = {name: part.state_dict() for name, part in self._parts().items()}
        new = path.with_suffix(".new")
        with new.open("wb") as file:
            torch.save({"step": self.step, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)

    def load(self, path: Path, device: torch.device) -> None:
        """Goes on from a checkpoint, whatever number of processes wrote it."""
        state = torch.load(path, map_location=device, weights_only=True)
        self.step = state["step"]
        for name, part in self._parts().items():
            part.load_state_dict(state[name])

    def _parts(self) -> dict[str, nn.Module | torch.optim.Optimizer | Loader]:
        return {"model": self.model, "optimizer": self.optimizer, "loader": self.loader}


def learning_rate(highest: float, progress: float) -> float:
    """Rises during the first 5 % of the training, then falls along a cosine to 0."""
    return highest * min(progress / 0.05, (1 + math.cos(math.pi * progress)) / 2)


def train(options: TrainOptions, device: torch.device) -> None:
    """Trains in each process of the default process group, from the checkpoint if there is one.

    Raises:
        UsageError: The processes cannot share a batch evenly.
        PacktrainError: There is something wrong with a dataset.
    """
    batch_size, left = divmod(options.batch_size, dist.get_world_size())
    if left:
        raise UsageError(f"batch size {options.batch_size} is no multiple of {dist.get_world_size()} processes")
    torch.manual_seed(options.seed)
    dataset = open_dataset(options.dataset, transform=[RandomResizedCrop(options.size), RandomHorizontalFlip()])
    model = resnet(int(dataset.targets.max()) + 1, options.width, options.stages).to(device)
    # As the images are: the fastest format for convolutions.
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(
        model.parameters(), options.lr, momentum=options.momentum, weight_decay=options.weight_decay, nesterov=True
    )
    path = Path(options.checkpoint) / "last.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    with Loader(dataset, batch_size, seed=options.seed) as loader:
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
    """Trains to the end of the epoch, or to the last step. Says how it went."""
    start = time.perf_counter()
    # Summed where it is computed: reading it at every step would make the CPU wait for the GPU.
    sums = torch.zeros(2, device=device)
    run.model.train()
    for images, labels in run.loader:
        # By samples and not by steps, so that it is right after a restart with another batch size too.
        at = run.loader.state_dict()
        progress = (at["epoch"] + at["consumed"] / at["length"]) / options.epochs
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
        return "was finished already"
    return f"loss {loss_sum / count:.3f}, {count / (time.perf_counter() - start):,.0f} images/s"


def logits(network: nn.Module, images: Tensor, device: torch.device) -> Tensor:
    """What the network says to images of bytes, which become floats from -1 to 1 on the device."""
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        outputs: Tensor = network(images.to(device).float() / 127.5 - 1)
    return outputs.float()


@torch.no_grad()
def accuracy(replica: DistributedDataParallel, options: TrainOptions, batch_size: int, device: torch.device) -> float:
    """Share of the validation images whose label comes first.

    Where they do not go up among the processes, a few count twice, fewer than there are processes.
    """
    dataset = open_dataset(options.validation, transform=[Resize(options.size * 8 // 7), CenterCrop(options.size)])
    counts = torch.zeros(2, device=device)
    replica.module.eval()
    with Loader(dataset, batch_size, shuffle=False) as loader:
        for images, labels in loader:
            correct = logits(replica, images, device).argmax(1) == labels.to(device)
            counts += torch.stack([correct.sum(), torch.ones_like(correct).sum()])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def parsed() -> TrainOptions:
    """The command line: an option for each attribute of `TrainOptions`."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=inspect.getdoc(TrainOptions), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", metavar="DATASET")
    for option in fields(TrainOptions)[1:]:
        parser.add_argument(f"--{option.name.replace('_', '-')}", type=type(option.default), default=option.default)
    return TrainOptions(**vars(parser.parse_args()))


def main() -> None:
    """Trains in one of the processes that torchrun has started."""
    options = parsed()
    if "LOCAL_RANK" not in os.environ:
        sys.exit("error: torchrun starts this: torchrun --standalone --nproc-per-node 2 " + " ".join(sys.argv))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        train(options, device)
    except PacktrainError as error:
        # Leaves the group as it is: the others may be waiting for this process, until torchrun ends them.
        sys.exit(f"error: {error}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
