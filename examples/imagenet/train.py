"""Trains a network on ImageNet from packed datasets, on CPU or GPUs, with any back end of packtrain.

python examples/imagenet/train.py TRAIN VAL --arch resnet50 --amp bf16 --output run
torchrun --standalone --nproc-per-node 8 examples/imagenet/train.py TRAIN VAL --arch resnet50 --amp bf16 --output run
"""

from __future__ import annotations

import argparse
import inspect
import sys
from dataclasses import fields, replace
from pathlib import Path

import torch

# The examples are packages of this folder, also for each other.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from imagenet import checkpoint, processes
from imagenet.data import classes_of, datasets, train_val
from imagenet.engine import AMP, Training, evaluate, profiler, train_epoch
from imagenet.models import network
from imagenet.optimization import Average, optimizer_of
from imagenet.options import TrainOptions
from imagenet.processes import Processes

from packtrain import TrainVal
from packtrain.errors import PacktrainError, UsageError


def train(options: TrainOptions, here: Processes) -> None:
    """Trains in each process, from the beginning or from the checkpoint.

    Raises:
        PacktrainError: An option is wrong, or a dataset or the checkpoint is missing or damaged.
    """
    options.check()
    train_set, val_set = datasets(options)
    classes = classes_of(train_set, val_set)
    with train_val(options, here, train_set, val_set) as data:
        training = begin(options, here, data, classes)
        if options.evaluate:
            evaluate(training)
            return
        here.print(
            f"{options.arch}, {classes} classes, {len(train_set)} + {len(val_set)} images, backend "
            f"{options.backend}, {here.world_size} x {options.batch_size} images per step on {here.device.type}"
        )
        with profiler(training) as after_step:
            while data.get_train_loader().epoch < options.epochs:
                train_epoch(training, after_step)
                evaluate(training)
                training.save()


def begin(options: TrainOptions, here: Processes, data: TrainVal, classes: int) -> Training:
    """A training, at its beginning or where its checkpoint is.

    Raises:
        UsageError: An option is wrong, or the checkpoint is missing, damaged, or that of another training.
    """
    path = options.checkpoint
    if options.evaluate:
        return evaluation(options, here, data, classes)
    if path.exists() and not options.resume:
        raise UsageError(f"{path} exists: add --resume to continue it, or choose another --output")
    if not path.exists():
        training = fresh(options, here, data, classes)
        make_folder(path.parent)
        return training
    kind, states = checkpoint.read(path)
    kind.check(path, checkpoint.Kind(options.arch, options.opt, options.ema, classes))
    training = fresh(options, here, data, classes)
    given = [{**group, "params": None} for group in training.optimizer.param_groups]
    checkpoint.restore(path, states, training.parts)
    # The checkpoint has them, too, but those of the command line count, as for all other options.
    for group, options_of_group in zip(training.optimizer.param_groups, given, strict=True):
        group.update({**options_of_group, "params": group["params"]})
    here.print(f"continues from {path}: epoch {data.get_train_loader().epoch}, step {training.step}")
    return training


def evaluation(options: TrainOptions, here: Processes, data: TrainVal, classes: int) -> Training:
    """The training of a checkpoint, as far as evaluating it takes.

    Raises:
        UsageError: There is no checkpoint, it is damaged, or it does not have all `classes` of the images.
    """
    path = options.checkpoint
    if not path.exists():
        raise UsageError(f"{path}: there is no checkpoint to evaluate")
    kind, states = checkpoint.read(path)
    if kind.classes < classes:
        raise UsageError(f"{path} was written with {kind.classes} classes, but the images have {classes}")
    training = fresh(replace(options, arch=kind.arch, opt=kind.opt, ema=kind.ema), here, data, kind.classes)
    checkpoint.restore(path, states, training.evaluated_parts)
    here.print(f"evaluates {path}: {kind.arch}, {kind.classes} classes, step {training.step}")
    return training


def fresh(options: TrainOptions, here: Processes, data: TrainVal, classes: int) -> Training:
    """A training at its beginning.

    Raises:
        UsageError: An option is wrong.
    """
    torch.manual_seed(options.seed)
    model = network(options.arch, classes, options.size).to(here.device)
    # Images are channels_last already. It is the fastest format for convolutions.
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Training(
        options,
        classes,
        here,
        data,
        model,
        here.replica(model),
        optimizer_of(model, options.opt, options.lr, options.momentum, options.weight_decay),
        torch.amp.GradScaler(here.device.type, enabled=AMP[options.amp] == torch.float16),
        Average(model, options.ema) if options.ema else None,
    )


def make_folder(path: Path) -> None:
    """Makes a folder for the output.

    Raises:
        UsageError: It cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path}: cannot be made a folder: {error.strerror}. Choose another --output") from error


def parse_options() -> TrainOptions:
    """Reads the command line, which has an option for each attribute of `TrainOptions`."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=inspect.getdoc(TrainOptions), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for option in fields(TrainOptions):
        name = f"--{option.name.replace('_', '-')}"
        if option.name in ("train", "val"):
            parser.add_argument(option.name, metavar=option.name.upper())
        elif isinstance(option.default, bool):
            parser.add_argument(name, action="store_true")
        else:
            shown = "" if option.default == "" else f"[default: {option.default}]"
            parser.add_argument(name, type=type(option.default), default=option.default, help=shown)
    return TrainOptions(**vars(parser.parse_args()))


def main() -> None:
    """Trains in this process, or in one of those that torchrun started."""
    options = parse_options()
    try:
        train(options, processes.begin())
    except PacktrainError as error:
        # Other processes may be waiting for this one in their group: torchrun ends them.
        sys.exit(f"error: {error}")
    processes.end()


if __name__ == "__main__":
    main()
