"""One epoch of training, and one of evaluation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F
from imagenet import checkpoint
from imagenet.metrics import Means, Sums, means
from imagenet.optimization import Average, learning_rate
from imagenet.options import TrainOptions
from imagenet.processes import Processes
from torch import Tensor, nn

from packtrain import TrainVal
from packtrain.errors import PacktrainError

AMP: Final = {"off": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

REMEDY: Final = "try a lower --lr, --clip-grad-norm 1, or --amp bf16"


class Diverged(PacktrainError):
    """The loss or the weights are no numbers any more."""


@dataclass
class Training:
    """Everything that training goes on with.

    Attributes:
        options: Options of the training.
        classes: Number of classes of the network.
        processes: This process among all.
        data: The loaders.
        model: The network.
        replica: The network with the gradients of all processes; the model itself if there is one process.
        optimizer: The optimizer of the weights.
        scaler: Keeps gradients in the range of float16; does nothing with other dtypes.
        average: Running average of the weights; None for none.
        step: Number of steps taken, over all runs.
    """

    options: TrainOptions
    classes: int
    processes: Processes
    data: TrainVal
    model: nn.Module
    replica: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    average: Average | None
    step: int = 0

    def state_dict(self) -> dict[str, int]:
        """Return the state that belongs to no part."""
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continues from a `state_dict`."""
        self.step = state["step"]

    @property
    def path(self) -> Path:
        """Path of the checkpoint."""
        return self.options.checkpoint

    @property
    def kind(self) -> checkpoint.Kind:
        """Properties that must stay when a checkpoint is continued."""
        options = self.options
        return checkpoint.Kind(options.arch, options.opt, options.ema, self.classes)

    @property
    def parts(self) -> dict[str, checkpoint.Stateful]:
        """Parts of a checkpoint."""
        return {"data": self.data, "optimizer": self.optimizer, "scaler": self.scaler, **self.evaluated_parts}

    @property
    def evaluated_parts(self) -> dict[str, checkpoint.Stateful]:
        """Parts of a checkpoint that an evaluation needs."""
        found: dict[str, checkpoint.Stateful] = {"training": self, "model": self.model}
        return found if self.average is None else {**found, "ema": self.average}

    def save(self) -> None:
        """Writes a checkpoint, in the first process.

        Raises:
            Diverged: The weights are no numbers any more. The last checkpoint stays.
        """
        if self.processes.first:
            if not all(bool(weights.isfinite().all()) for weights in self.model.parameters()):
                raise Diverged(f"the weights are no numbers any more at step {self.step}: {REMEDY}")
            checkpoint.save(self.path, self.kind, self.parts)


def train_epoch(training: Training, after_step: Callable[[], None]) -> None:
    """Trains to the end of the present epoch, and prints how it goes.

    Args:
        training: The training.
        after_step: Called after each step.

    Raises:
        Diverged: The loss is no number any more.
        PacktrainError: The images cannot be read.
    """
    options, processes, loader = training.options, training.processes, training.data.get_train_loader()
    epoch, steps = loader.epoch, len(loader)
    training.model.train()
    window, total = Sums(processes.device), torch.zeros(4, dtype=torch.float64, device=processes.device)
    start = since = time.perf_counter()
    for images, target in loader:
        lr = set_learning_rate(training)
        loss, logits = learn(training, images, target)
        window.add(loss, logits, target)
        training.step += 1
        after_step()
        done = steps - loader.remaining
        saves = training.step % options.save_every == 0
        if done % options.print_every == 0 or done == steps or saves:
            sums = window.take()
            total += sums
            seen = finite(means(sums), f"epoch {epoch}, step {done}")
            now = time.perf_counter()
            speed = seen.samples * processes.world_size / (now - since)
            since = now
            processes.print(
                f"Epoch: [{epoch}]  [{done:{len(str(steps))}}/{steps}]  lr: {lr:.6f}  img/s: {speed:.1f}  {seen}  "
                f"wait: {loader.stats.present.wait_share:.1%}  max mem: {processes.peak_memory() / 2**20:.0f} MiB"
            )
        if saves:
            training.save()
    seconds = time.perf_counter() - start
    seen = means(processes.add_up(total))
    processes.print(
        f"Epoch: [{epoch}]  train  img/s: {seen.samples / seconds:.1f}  {seen}  "
        f"wait: {loader.stats.present.wait_share:.1%}  time: {seconds:.1f} s"
    )


def set_learning_rate(training: Training) -> float:
    """The learning rate of this step, which the optimizer has from now on."""
    options = training.options
    # By samples instead of steps, so that it stays right if the training continues with other batches.
    state = training.data.state_dict()
    done = (state["epoch"] + state["consumed"] / state["length"]) / options.epochs
    lr = learning_rate(options.lr, done, options.warmup_epochs / options.epochs)
    for group in training.optimizer.param_groups:
        group["lr"] = lr
    return lr


def learn(training: Training, images: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """One step. Returns the loss and the outputs of the network."""
    options, scaler = training.options, training.scaler
    logits = outputs(training.replica, images, options.amp)
    # torchvision's mixup makes class probabilities of the images' dtype.
    target = target.float() if target.is_floating_point() else target
    loss = F.cross_entropy(logits, target, label_smoothing=options.label_smoothing)
    training.optimizer.zero_grad()
    scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
    if options.clip_grad_norm:
        scaler.unscale_(training.optimizer)
        nn.utils.clip_grad_norm_(training.model.parameters(), options.clip_grad_norm)
    scaler.step(training.optimizer)
    scaler.update()
    if training.average is not None:
        training.average.update(training.model)
    return loss, logits


def outputs(model: nn.Module, images: Tensor, amp: str) -> Tensor:
    """The outputs of the network, float32 [N, classes]."""
    with torch.autocast(images.device.type, AMP[amp], enabled=amp != "off"):
        logits: Tensor = model(images)
    return logits.float()


def finite(seen: Means, where: str) -> Means:
    """The same means.

    Raises:
        Diverged: The loss is no number any more.
    """
    if not math.isfinite(seen.loss):
        raise Diverged(f"the loss is {seen.loss} at {where}: {REMEDY}")
    return seen


def evaluate(training: Training) -> None:
    """Prints loss and accuracy on the validation images, of the model and of the average of its weights."""
    data, processes = training.data, training.processes
    data.prep_for_val()
    models = {"Test:": training.model}
    if training.average is not None:
        models["Test: EMA"] = training.average.model
    start = time.perf_counter()
    # All models in one pass, because reading the images may take longer than the networks.
    found = evaluated(list(models.values()), training)
    seconds = time.perf_counter() - start
    for name, sums in zip(models, found, strict=True):
        seen = means(processes.add_up(sums))
        processes.print(f"{name}  {seen}  images: {seen.samples}  time: {seconds:.1f} s")
    data.reset()


@torch.inference_mode()
def evaluated(models: list[nn.Module], training: Training) -> list[Tensor]:
    """The sums of this process's validation images, for each model."""
    sums = [Sums(training.processes.device) for _ in models]
    for model in models:
        training.processes.share_statistics(model)
        model.eval()
    for images, labels in training.data.get_val_loader():
        for model, each in zip(models, sums, strict=True):
            logits = outputs(model, images, training.options.amp)
            each.add(F.cross_entropy(logits, labels), logits, labels)
    return [each.take() for each in sums]


@contextmanager
def profiler(training: Training) -> Iterator[Callable[[], None]]:
    """Profiles the third to seventh step, in the first process: a trace and a table in the folder of the output.

    Yields:
        What is to be called after each step.
    """
    if not (training.options.profile and training.processes.first):
        yield lambda: None
        return
    activities = [torch.profiler.ProfilerActivity.CPU]
    cuda = training.processes.device.type == "cuda"
    if cuda:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    folder = Path(training.options.output)

    def write(profile: torch.profiler.profile) -> None:
        profile.export_chrome_trace(str(folder / "trace.json"))
        order = "self_cuda_time_total" if cuda else "self_cpu_time_total"
        (folder / "profile.txt").write_text(profile.key_averages().table(sort_by=order, row_limit=40))
        training.processes.print(f"Profile: {folder / 'profile.txt'}, {folder / 'trace.json'}")

    plan = torch.profiler.schedule(wait=1, warmup=1, active=5, repeat=1)
    with torch.profiler.profile(activities=activities, schedule=plan, on_trace_ready=write) as profile:
        yield profile.step
