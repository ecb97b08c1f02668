"""The options of the training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from packtrain.errors import UsageError


@dataclass(frozen=True)
class TrainOptions:
    """Options of the training.

    Attributes:
        train: Folder that `packtrain pack` wrote, or its address in an object store, with one integer label per image.
        val: Packed dataset on which to evaluate.
        arch: resnet18, resnet50, shufflenet_v2_x0_5 or vit_s_16.
        backend: Loader of the images: packtrain, torch, dali-cpu or dali-gpu.
        decode: Device on which packtrain decodes images: cpu or cuda.
        stage: Folder on a local disk or in memory: both datasets are copied there, or cached there if they are in an
            object store, which needs it.
        budget: Size of the cache of the training images, 200GiB for example, if they are in an object store; by default
            as much as they take.
        batch_size: Images per step and process.
        workers: Worker processes or threads that load images, per process; -1 for all cores.
        size: Height and width of the network's input, in pixels.
        output: Folder of the checkpoint and of the profile.
        resume: Continue from the checkpoint in `output`, if there is one.
        epochs: Passes over the training images.
        warmup_epochs: Epochs in which the learning rate rises.
        opt: sgd or adamw.
        lr: Highest learning rate.
        momentum: Nesterov momentum of SGD.
        weight_decay: Decay of the weights, but not of biases and normalisation layers.
        clip_grad_norm: Largest norm of all gradients together; 0 for any.
        label_smoothing: Share of the labels that is spread over all classes.
        mixup: Both parameters of the beta distribution of mixup's shares; 0 for no mixup.
        cutmix: Both parameters of the beta distribution of cutmix's areas; 0 for no cutmix. With both, each batch
            draws one of them.
        ema: Share of the running average of the weights that a step keeps, 0.9999 for example; 0 for no average.
        amp: Precision of the network: off, bf16 or fp16.
        on_error: Reaction to a damaged image: raise an error, or skip it.
        seed: Seed of the weights, the order, the crops and the mixing.
        print_every: Steps between two lines.
        save_every: Steps between two checkpoints; another one is written after each epoch.
        profile: Write a profile of some steps.
        evaluate: Only evaluate the checkpoint in `output`, which says what `arch` and `ema` are.
    """

    train: str
    val: str
    arch: str = "resnet18"
    backend: str = "packtrain"
    decode: str = "cpu"
    stage: str = ""
    budget: str = ""
    batch_size: int = 256
    workers: int = -1
    size: int = 224
    output: str = "output"
    resume: bool = False
    epochs: int = 90
    warmup_epochs: float = 5.0
    opt: str = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    clip_grad_norm: float = 0.0
    label_smoothing: float = 0.1
    mixup: float = 0.0
    cutmix: float = 0.0
    ema: float = 0.0
    amp: str = "off"
    on_error: str = "raise"
    seed: int = 0
    print_every: int = 10
    save_every: int = 1000
    profile: bool = False
    evaluate: bool = False

    @property
    def checkpoint(self) -> Path:
        """Path of the checkpoint."""
        return Path(self.output) / "checkpoint.pt"

    def check(self) -> None:
        """Checks what no other part checks.

        Raises:
            UsageError: An option is out of its range.
        """
        for path in (self.train, self.val):
            if "://" in path and not self.stage:
                raise UsageError(
                    f"{path} is in an object store, and is cached on this machine while it trains: give --stage FOLDER "
                    "on a local disk, and --budget 200GiB, for example, to bound the cache of the training images"
                )
        for name in ("batch_size", "size", "epochs", "print_every", "save_every"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name.replace('_', '-')} {getattr(self, name)}: expected at least 1")
        if self.workers < -1:
            raise UsageError(f"--workers {self.workers}: expected at least 0, or -1 for all cores")
        if self.amp not in ("off", "bf16", "fp16"):
            raise UsageError(f"--amp {self.amp}: expected off, bf16 or fp16")
        if not 0 <= self.warmup_epochs < self.epochs:
            raise UsageError(
                f"--warmup-epochs {self.warmup_epochs:g}: expected at least 0, and fewer than --epochs {self.epochs}"
            )
        for name in ("ema", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(f"--{name.replace('_', '-')} {getattr(self, name):g}: expected at least 0, below 1")
        for name in ("mixup", "cutmix", "clip_grad_norm", "lr", "momentum", "weight_decay"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"--{name.replace('_', '-')} {getattr(self, name):g}: expected at least 0")
