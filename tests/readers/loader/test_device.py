"""Laws of the transfer to a device: what the consumer gets is right, whenever the device does its work."""

from __future__ import annotations

import os
import random
import re
from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from helpers.batching import Fixed, assert_same, through_json
from helpers.hazards import Numbered
from helpers.lazily import consumed, lazy
from helpers.named import NAMES, dataset, tensors_in
from helpers.streams import Choice
from helpers.support import soon
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import default_collate

from packtrain import Loader
from packtrain._core.keys import mixed
from packtrain._readers.loader import device as device_module
from packtrain._readers.loader.postprocess import Postprocess, mapped
from packtrain._readers.loader.randomness import seed_all
from packtrain.errors import LoaderError, UsageError

ROWS, BATCH = 22, 4
NORMALISED: dict[str, Any] = {"mean": (0.2, 0.4, 0.6), "std": (0.5, 0.25, 0.2)}


def swapped(images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch transform that draws random numbers."""
    order = torch.randperm(len(images))
    return images + images[order] * 0.5, labels[order].mul_(2)


def loader_on(device: str, **options: Any) -> Loader:
    options = {"num_workers": 1, "prefetch_factor": 1, "shuffle": True, "seed": 0, **NORMALISED, **options}
    options.setdefault("batch_transform", swapped)
    dataset = options.pop("dataset", Numbered(ROWS))
    return Loader(dataset, BATCH, device=device, multiprocessing_context="fork", **options)


def wanted(epochs: int, **options: Any) -> list[Any]:
    with loader_on("cpu", **{**options, "num_workers": 0}) as loader:
        return [batch for _ in range(epochs) for batch in loader]


def never(count: int) -> int:
    return 0


def always(count: int) -> int:
    return count - 1


POLICIES: dict[str, Choice] = {
    "when it must, side stream first": never,
    "at once, side stream first": lambda count: 0 if count == 2 else count - 1,
    "at once, consumer's stream first": always,
    **{f"by chance {seed}": random.Random(seed).randrange for seed in range(2)},
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_batches_are_those_of_the_cpu(policy: str, workers: int) -> None:
    choose = POLICIES[policy]
    with lazy(choose) as device, loader_on("cuda", num_workers=workers) as loader:
        assert_same(consumed(device, loader, 3, choose), wanted(3), strides=True)
    assert not device.registered


@pytest.mark.complete
@given(st.randoms(use_true_random=False))
def test_batches_are_those_of_the_cpu_in_any_order_of_the_work(chance: random.Random) -> None:
    with lazy(chance.randrange) as device, loader_on("cuda") as loader:
        assert_same(consumed(device, loader, 1, chance.randrange), wanted(1), strides=True)


def test_batches_are_those_of_the_cpu_from_worker_processes() -> None:
    choose = random.Random(7).randrange
    with soon(30), lazy(choose, processes=True) as device, loader_on("cuda", num_workers=2) as loader:
        assert_same(consumed(device, loader, 3, choose), wanted(3), strides=True)


# --- ahead of the consumer ---


def test_batches_are_begun_before_the_consumer_works_on_the_one_before() -> None:
    with lazy(never, inline=always) as device, loader_on("cuda", num_workers=4, fields=("row",)) as loader:
        begun = [device.copies // 3 for _ in loader]
        assert begun == [3, 4, 5, 6, 6, 6]


def test_the_consumer_does_not_wait_for_batches_it_has_not_asked_for() -> None:
    with lazy(never) as device, loader_on("cuda", num_workers=4) as loader:
        begun = [device.copies // 2 for _ in loader]
        assert begun == [1, 2, 3, 4, 5, 6]


def test_what_was_written_before_a_pass_is_there_for_the_batch_transform() -> None:
    offset = torch.zeros((), dtype=torch.int64)
    options: dict[str, Any] = {"batch_transform": lambda images, labels: (images, labels + offset), "shuffle": False}
    with lazy(never) as device, loader_on("cuda", **options) as loader:
        device.write(offset, 100)
        found = consumed(device, loader, 1, never)
    assert [label for batch in found for label in batch[1].tolist()] == list(range(100, 100 + ROWS))


def test_slots_are_copied_from_where_they_lie_and_all_else_by_way_of_pinned_memory() -> None:
    ragged = {"dataset": dataset(ROWS, ("image", "label", "steps", "caption")), "batch_transform": None}
    cases: list[tuple[dict[str, Any], int, int]] = [({"fields": ("row", "position")}, 4, 0), (ragged, 5, 2)]
    for options, copies, stagings in cases:
        with lazy(always) as device, loader_on("cuda", **options) as loader:
            steps = sum(1 for _ in loader)
            assert (device.copies, device.stagings) == (copies * steps, stagings * steps)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("workers", [0, 2])
def test_every_field_is_that_of_the_cpu(policy: str, workers: int) -> None:
    # The fake device has no tensors without elements.
    names = tuple(name for name in NAMES if name not in ("nothing", "boxes"))
    options: dict[str, Any] = {"dataset": dataset(ROWS, names), "batch_transform": None, "fields": ("row", "path")}
    choose = POLICIES[policy]
    with lazy(choose) as device, loader_on("cuda", num_workers=workers, **options) as loader:
        read = [(batch, [device.read(tensor) for tensor in tensors_in(batch)]) for batch in loader]
        device.finish()
    expected = wanted(1, **options)
    assert len(read) == len(expected)
    for (batch, found), one in zip(read, expected, strict=True):
        assert type(batch) is type(one) and batch.path == one.path and batch.meta == one.meta
        for left, right in zip((each.pop() for each in found), tensors_in(one), strict=True):
            assert left.dtype == right.dtype and torch.equal(left, right)


@pytest.mark.parametrize("policy", [*POLICIES][:4])
def test_memory_that_cannot_be_registered_costs_a_copy_and_a_warning(policy: str) -> None:
    choose = POLICIES[policy]
    with lazy(choose) as device, loader_on("cuda") as loader:
        device.refuses = True
        with pytest.warns(RuntimeWarning, match=r"cannot be copied from directly \(not today\)"):
            found = consumed(device, loader, 2, choose)
        assert device.stagings == device.copies
    assert_same(found, wanted(2), strides=True)


def test_nothing_accumulates_over_20_epochs() -> None:
    with lazy(always) as device, loader_on("cuda", num_workers=2) as loader:
        sizes = []
        for _ in range(20):
            for batch in loader:
                del batch
                device.finish()
            engine: Any = loader._pipeline._engine
            events = sum(map(len, engine._slots._events))
            assert events <= engine._arena.slots
            assert len(engine._slots) == engine._arena.slots
            sizes.append(len(device.blocks))
        assert len(set(sizes)) == 1


# --- ends ---


@pytest.mark.parametrize("end", ["close", "forget"])
def test_memory_is_let_go_of_when_nothing_reads_it_any_more(end: str) -> None:
    with lazy(never) as device:
        loader = loader_on("cuda")
        batches = iter(loader)
        kept = [next(batches) for _ in range(2)]
        assert len(device.registered) == 1 and device.side
        if end == "close":
            loader.close()
            with pytest.raises(UsageError, match="this pass has ended"):
                next(batches)
        else:
            del loader, batches
        assert not device.registered
        found = [device.read(tensor) for batch in kept for tensor in batch]
        device.finish()
    assert_same([[one.pop() for one in found]], [[tensor for batch in wanted(1)[:2] for tensor in batch]], strides=True)


def test_a_forked_process_leaves_it_alone() -> None:
    with lazy(never) as device, loader_on("cuda") as loader:
        next(iter(loader))
        child = os.fork()
        if not child:
            try:
                loader.close()
            finally:
                os._exit(len(device.registered))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_another_pass_after_close_or_a_break() -> None:
    choose = random.Random(5).randrange
    with lazy(choose) as device, loader_on("cuda") as loader:
        next(iter(loader))
        loader.close()
        batches = iter(loader)
        next(batches)
        loader.set_epoch(0)
        assert_same(consumed(device, loader, 2, choose), wanted(2), strides=True)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_the_state_counts_what_was_handed_out(workers: int) -> None:
    expected = wanted(1)
    for steps in range(1, len(expected)):
        with lazy(always) as device, loader_on("cuda", num_workers=workers) as loader:
            batches = iter(loader)
            for _ in range(steps):
                next(batches)
            state = through_json(loader.state_dict())
            assert state["consumed"] == steps * BATCH
            with loader_on("cuda", num_workers=1) as other:
                other.load_state_dict(state)
                assert_same(consumed(device, other, 1, always), expected[steps:], strides=True)


@pytest.mark.parametrize("policy", [never, always], ids=["never", "always"])
def test_an_error_comes_at_its_batch(policy: Choice) -> None:
    deeds = {2 * BATCH + 1: "fail"}
    with lazy(policy) as device:
        loader = loader_on("cuda", num_workers=3, shuffle=False, dataset=Numbered(ROWS, deeds), batch_transform=None)
        batches = iter(loader)
        found = [device.read(next(batches)[1]) for _ in range(2)]
        with pytest.raises(LoaderError, match="no such luck"):
            next(batches)
        device.finish()
        assert [labels.pop().tolist() for labels in found] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert loader.state_dict()["consumed"] == 2 * BATCH
        assert not device.registered


@pytest.mark.parametrize("device_name", ["cpu", "cuda"])
def test_a_batch_transform_that_fails_fails_at_its_batch(device_name: str) -> None:
    calls = []

    def failing(images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        calls.append(0)
        if len(calls) == 3:
            raise ZeroDivisionError("as it were")
        return images, labels

    choose = random.Random(1).randrange
    with lazy(choose, inline=always) as device:
        loader = loader_on(device_name, num_workers=2, batch_transform=failing)
        batches = iter(loader)
        for _ in range(2):
            next(batches)
        with pytest.raises(ZeroDivisionError):
            next(batches)
        assert not device.registered
        loader.set_epoch(0)
        found = consumed(device, loader, 1, choose) if device_name == "cuda" else list(loader)
    assert_same(found, wanted(1, batch_transform=None), strides=True)


def test_interrupts_are_not_put_off() -> None:
    def interrupted(images: torch.Tensor, labels: torch.Tensor) -> Any:
        raise KeyboardInterrupt

    with lazy(never, inline=always) as device, loader_on("cuda", batch_transform=interrupted) as loader:
        with pytest.raises(KeyboardInterrupt):
            next(iter(loader))
        assert not device.registered


# --- the numbers ---

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


@given(st.data(), st.sampled_from(DTYPES), st.integers(1, 5), st.integers(1, 5))
def test_normalised_images_are_torchvisions(data: Any, dtype: torch.dtype, height: int, width: int) -> None:
    """Within the precision of float32, and then within one unit in the last place of the dtype."""
    channels = data.draw(st.integers(1, 4))
    # A number is for all channels, also beside one for each.
    mean, std = (
        data.draw(one | st.lists(one, min_size=channels, max_size=channels))
        for one in (st.floats(-1, 1), st.floats(0.01, 1))
    )
    seed = data.draw(st.integers(0, 99))
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (2, channels, height, width), dtype=torch.uint8, generator=generator)
    images = images.contiguous(memory_format=data.draw(st.sampled_from([torch.contiguous_format, torch.channels_last])))
    found, labels = Postprocess(mean, std, dtype)((images, torch.tensor([0, 1])), JOB)
    means, stds = (torch.tensor(one, dtype=torch.float64).view(-1, 1, 1) for one in (mean, std))
    exact = (images.double() / 255 - means) / stds
    assert found.dtype == dtype and found.is_contiguous(memory_format=torch.channels_last)
    tolerance = 2**-22 * (1 + means.abs()) / stds + exact.abs() * torch.finfo(dtype).eps
    if dtype == torch.float16:
        tolerance += torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    assert ((found.double() - exact).abs() <= tolerance).all()
    theirs = ((images.float() / 255) - means.float()) / stds.float()
    assert ((found.double() - theirs.double()).abs() <= 2 * tolerance).all()
    assert labels.tolist() == [0, 1]


class Job(NamedTuple):
    key: int
    positions: Any


JOB: Any = Job(5, np.arange(3))


@pytest.mark.parametrize("workers", [0, 2])
def test_bytes_stay_bytes_unless_something_else_is_asked_for(workers: int) -> None:
    options: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": "fork", "shuffle": False}
    for device in ("cpu", None):
        for dtype in (None, torch.uint8, torch.float16):
            with Loader(Numbered(6), 3, device=device, dtype=dtype, **options) as loader:
                for images, labels in loader:
                    assert images.dtype == (dtype or torch.uint8)
                    assert torch.equal(images[:, 0, 0, 0].long(), labels)
    with Loader(Numbered(6), 3, mean=0.5, std=0.5, **options) as loader:
        assert {batch[0].dtype for batch in loader} == {torch.float32}


def test_batches_may_differ_in_size_and_shape() -> None:
    postprocess = Postprocess((0.5, 0.25), (1, 0.5))
    for width in (5, 7, 5):
        images = torch.full((2, 2, 3, width), 51, dtype=torch.uint8)
        found, _ = postprocess((images, None), JOB)
        assert found.shape == images.shape
        torch.testing.assert_close(found[:, 0], torch.full((2, 3, width), -0.3))
        torch.testing.assert_close(found[:, 1], torch.full((2, 3, width), -0.1))


def test_finished_batches_keep_no_slot() -> None:
    with loader_on("cpu", num_workers=1) as loader:
        kept = []
        for _ in range(2):
            for images, labels in loader:
                kept.append((images, labels))
                engine: Any = loader._pipeline._engine
                del images
                assert engine._arena.slots == len(engine._slots) + len(engine._out) + len(engine._results)
    assert_same(kept, wanted(2), strides=True)


def states() -> Any:
    """The states of the three generators."""
    return random.getstate(), repr(np.random.get_state(legacy=False)), torch.get_rng_state().tolist()


def test_a_batch_transform_draws_the_same_for_any_workers_and_leaves_the_generators_alone() -> None:
    expected = wanted(2)
    seed_all(1, 2)
    before = states()
    with loader_on("cpu", num_workers=2) as loader:
        assert_same([batch for _ in range(2) for batch in loader], expected, strides=True)
    assert states() == before
    assert not all(torch.equal(one[0], other[0]) for one, other in zip(wanted(1, seed=1), expected, strict=False))


def test_the_numbers_of_a_batch_transform_are_those_of_seed_epoch_and_first_position() -> None:
    """Written out, because resumed runs rely on it."""
    drawn = []

    def draw(images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        drawn.append((random.random(), float(np.random.random()), float(torch.rand(()))))
        return images, labels

    with loader_on("cpu", num_workers=0, seed=9, batch_transform=draw) as loader:
        for _ in range(2):
            list(loader)
    expected = []
    for epoch in range(2):
        for first in range(0, ROWS, BATCH):
            seed_all(mixed(mixed(9, epoch, 1), int.from_bytes(b"transfor")), first)
            expected.append((random.random(), float(np.random.random()), float(torch.rand(()))))
    assert drawn == expected


# --- batches of a collate function ---


class Pair(NamedTuple):
    images: torch.Tensor
    labels: torch.Tensor


def test_tensors_in_whatever_a_batch_is_made_of() -> None:
    numbers: Any = defaultdict(list, {"a": [torch.tensor(1), "x"], "b": (torch.tensor(2),)})
    batch: Any = [Pair(torch.tensor(3), torch.tensor(4)), numbers, None, 5, "text", {"c": torch.tensor(6)}]
    found = mapped(torch.neg, batch)
    assert found == [
        Pair(torch.tensor(-3), torch.tensor(-4)),
        {"a": [torch.tensor(-1), "x"], "b": (torch.tensor(-2),)},
        None,
        5,
        "text",
        {"c": torch.tensor(-6)},
    ]
    assert [type(one) for one in found] == [type(one) for one in batch]
    assert found[1].default_factory is list and int(numbers["a"][0]) == 1


def collated(samples: list[Any]) -> Any:
    return {"pair": Pair(*default_collate(samples)), "names": [str(label) for _, label in samples]}


def in_pairs(samples: list[Any]) -> Any:
    return Pair(*default_collate(samples))


@pytest.mark.parametrize("policy", [*POLICIES][:4])
def test_collated_batches_go_over_too(policy: str) -> None:
    choose = POLICIES[policy]
    options: dict[str, Any] = {"collate_fn": collated, "mean": None, "std": None, "batch_transform": None}
    with lazy(choose) as device, loader_on("cuda", **options) as loader:
        found = [(mapped(lambda one: Read(device.read(one)), batch), batch["names"]) for batch in loader]  # type: ignore[arg-type,return-value]
        device.finish()
    for (batch, names), other in zip(found, wanted(1, **options), strict=True):
        assert names == other["names"]
        assert_same([[one.found.pop() for one in batch["pair"]]], [other["pair"]], strides=True)


class Read:
    def __init__(self, found: list[torch.Tensor]) -> None:
        self.found = found


def test_collated_pairs_are_finished() -> None:
    with loader_on("cpu", collate_fn=in_pairs, num_workers=0) as loader:
        found = list(loader)
    assert all(type(batch) is Pair for batch in found)
    assert_same(found, wanted(1), strides=True)
    with (
        loader_on("cpu", collate_fn=collated, num_workers=0) as loader,
        pytest.raises(UsageError, match="need batches"),
    ):
        next(iter(loader))


# --- arguments ---


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mean": 0.5}, "both mean and std, or neither"),
        ({"mean": 0.5, "std": 0}, "std greater than 0"),
        ({"mean": [0.5], "std": [1, 1]}, "equally many of both"),
        ({"mean": 0.5, "std": []}, "equally many of both"),
        ({"mean": [], "std": []}, "equally many of both"),
        ({"mean": "half", "std": "1"}, "expected numbers"),
        ({"mean": float("nan"), "std": 1}, "finite"),
        ({"mean": 0.5, "std": 1, "dtype": torch.uint8}, "floating point"),
        ({"dtype": "half"}, "a torch.dtype"),
        ({"batch_transform": 3}, "expected a function"),
        ({"device": "meta"}, "expected 'cpu', 'cuda' or 'cuda:N'"),
        ({"device": "gpu"}, "expected 'cpu', 'cuda' or 'cuda:N'"),
        ({"device": 1.5}, "expected 'cpu', 'cuda' or 'cuda:N'"),
        # Statistics of bytes.
        (
            {"mean": (123.675, 116.28, 103.53), "std": (58.395, 57.12, 57.375)},
            "mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375): images are scaled to [0, 1] before they are "
            "normalised: pass mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)",
        ),
        ({"mean": 0.5, "std": 63.75}, "pass mean=0.5, std=0.25"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        Loader(Numbered(4), 2, **options)


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="device='cuda': torch sees no CUDA device; device='cpu' gives"):
        Loader(Numbered(4), 2, device=torch.device("cuda"))
    # Without its decoder, device='cpu' would be refused as well.
    with pytest.raises(UsageError, match="device='cpu' with decode='cpu' gives"):
        Loader(Numbered(4), 2, device="cuda", decode="cuda")


@pytest.mark.parametrize(
    "image", [torch.zeros(3, 4, 5), torch.zeros(2, 4, 5, dtype=torch.uint8), torch.zeros(4, 5, dtype=torch.uint8)]
)
def test_images_that_cannot_be_normalised_are_refused(image: torch.Tensor) -> None:
    loader = Loader(Fixed((image, 1)), 1, num_workers=0, mean=(0.5, 0.5, 0.5), std=(1, 1, 1))
    with pytest.raises(UsageError, match="normalise in the transforms or in the loader, not in both"):
        next(iter(loader))


def test_a_batch_transform_returns_both() -> None:
    loader = Loader(Numbered(4), 2, num_workers=0, batch_transform=lambda images, labels: images)
    with pytest.raises(
        UsageError, match="batch_transform returned an object of type Tensor: expected images and labels"
    ):
        next(iter(loader))


def test_pinned_memory_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.warns(UserWarning, match="memory is not pinned"):
        loader = Loader(Numbered(4), 2, num_workers=0, pin_memory=True)
    assert len(list(loader)) == 2


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_handed_out_in_pinned_memory(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a batch: a copy that does not wait may read it after its slot is written again."""
    pinned: list[torch.Tensor] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor.clone())
        return pinned[-1]

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    with loader_on("cpu", num_workers=workers, pin_memory=True, fields=("row",)) as loader:
        for batch in loader:
            assert all(any(tensor is one for one in pinned) for tensor in batch)


# --- a GPU ---

needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")]


class TestOnAGpu:
    pytestmark = needs_gpu

    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
    def test_batches_are_those_of_the_cpu(self, workers: int, dtype: torch.dtype) -> None:
        with loader_on("cuda", num_workers=workers, dtype=dtype) as loader:
            found = [batch for _ in range(3) for batch in loader]
        for (images, labels), other in zip(found, wanted(3, dtype=dtype), strict=True):
            assert images.is_cuda and images.dtype == dtype
            torch.testing.assert_close(images.cpu(), other[0], rtol=2 * torch.finfo(dtype).eps, atol=1e-5)
            assert torch.equal(labels.cpu(), other[1])

    def test_the_arena_is_registered_once_and_let_go_of(self) -> None:
        with loader_on("cuda", num_workers=2, batch_transform=None) as loader:
            images, _ = next(iter(loader))
            assert images.is_contiguous(memory_format=torch.channels_last)
            transfer: Any = loader._pipeline._transfer
            assert len(transfer._registered) > 0
        assert len(transfer._registered) == 0
        assert torch.ones(1, device="cuda").item() == 1

    def test_the_next_batch_is_ready_before_work_on_this_one_is_done(self) -> None:
        with loader_on("cuda", num_workers=2, prefetch_factor=4) as loader:
            batches = iter(loader)
            for _ in range(2):
                next(batches)
            transfer, done = loader._pipeline._transfer, torch.cuda.Event()  # type: ignore[no-untyped-call]
            torch.cuda._sleep(2_000_000_000)  # type: ignore[no-untyped-call]
            done.record()
            next(batches)
            assert isinstance(transfer, device_module.DeviceTransfer)
            transfer._accelerator.synchronize()
            assert not done.query()  # type: ignore[no-untyped-call]
            done.synchronize()

    def test_memory_is_flat(self) -> None:
        with loader_on("cuda", num_workers=2) as loader:
            sizes = []
            for _ in range(20):
                for images, _ in loader:
                    images.float().sum()
                del images
                torch.cuda.synchronize()
                sizes.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
        assert max(sizes[10:]) <= max(sizes[:10])
