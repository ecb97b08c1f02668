"""Laws of DaliLoader: what Loader's arguments mean, they mean here; what they cannot mean is refused with advice."""

from __future__ import annotations

import copy
import inspect
import pickle
import random
import re
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.dali import require_dali, succeeds_in_child
from helpers.lazily import consumed, lazy
from helpers.support import FORMATS, flip, image_set, packed, require_module

from packtrain import Loader, open_dataset
from packtrain._core.installing import extra_command
from packtrain.accelerate import prepare
from packtrain.dali import DaliLoader
from packtrain.errors import CorruptRecord, MissingDependency, UsageError
from packtrain.orders import RepeatedAugmentation, Weighted
from packtrain.transforms import ColorJitter, RandomHorizontalFlip, RandomResizedCrop

IMAGES, BATCH, SIDE = 22, 4, 16
NORMALISED: dict[str, Any] = {"mean": (0.2, 0.4, 0.6), "std": (0.5, 0.25, 0.2)}
# Arguments of one of the two loaders only.
WORKERS = {"num_workers", "timeout", "collate_fn", "worker_init_fn", "multiprocessing_context"}
DALI = {
    "num_threads",
    "host_memory_padding",
    "device_memory_padding",
    "preallocate_width_hint",
    "preallocate_height_hint",
}


@pytest.fixture
def dali() -> None:
    require_dali()


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_set(tmp_path_factory.mktemp("images"), IMAGES)


@pytest.fixture(scope="module")
def folder(listing: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(listing, tmp_path_factory.mktemp("packed") / "out", "tar")


def dataset_in(folder: Path) -> Any:
    return open_dataset(folder, [RandomResizedCrop(SIDE), RandomHorizontalFlip()])


def theirs(dataset: Any, **options: Any) -> Loader:
    return Loader(dataset, BATCH, **{"num_workers": 0, "shuffle": True, "seed": 5, **options})


def ours(dataset: Any, **options: Any) -> DaliLoader:
    return DaliLoader(dataset, BATCH, **{"num_threads": 1, "shuffle": True, "seed": 5, **options})


def assert_alike(found: list[Any], expected: list[Any], most: float = 0.01) -> None:
    """The images are the same crops, up to rounding, and all else is the same.

    Args:
        found: Batches.
        expected: Batches.
        most: Largest mean difference of their images, relative to the largest value.
    """
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for left, right in zip(one[1:], other[1:], strict=True):
            assert torch.equal(left, right)
        assert (one[0].shape, one[0].stride(), one[0].dtype) == (other[0].shape, other[0].stride(), other[0].dtype)
        # A picture of another place differs by much more.
        assert (one[0].float() - other[0].float()).abs().mean() <= most * other[0].float().abs().max()


# --- arguments ---


def test_it_has_the_arguments_of_the_loader_but_those_about_workers() -> None:
    mine, its = (inspect.signature(each.__init__).parameters for each in (DaliLoader, Loader))
    assert set(its) - set(mine) == WORKERS
    assert set(mine) - set(its) == DALI
    for name in set(mine) & set(its) - {"decode"}:
        assert mine[name] == its[name], name


def test_without_dali_the_error_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(MissingDependency, match=re.escape(f"`{extra_command('dali')}`")):
        ours(dataset_in(folder))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"num_workers": 2},
            "num_workers=2: DaliLoader does not have this argument; DALI's threads .* give num_threads=",
        ),
        ({"num_workers": 0}, "num_workers=0: .* give num_threads="),
        ({"collate_fn": list}, "give batch_transform="),
        ({"worker_init_fn": print}, "nothing to initialise"),
        ({"multiprocessing_context": "fork"}, "no process is started"),
        ({"timeout": 3}, "no process can fail to answer"),
        ({"persistent_workers": False}, r"they live until close\(\)"),
        ({"reader": "webdataset"}, "examples/dali_webdataset"),
        ({"batch_sampler": [[1]]}, "give sampler="),
        ({"num_thread": 2}, r"DaliLoader has no argument 'num_thread'; did you mean 'num_threads'\?"),
        ({"device_padding": 2}, r"did you mean 'device_memory_padding'\?"),
        ({"num_threads": 0}, "num_threads=0: expected a whole number, at least 1"),
        ({"num_threads": "all"}, "num_threads='all': expected a whole number, at least 1, or 'auto'"),
        ({"prefetch_factor": 0}, "prefetch_factor=0: expected a whole number, at least 1"),
        ({"decode": "gpu"}, "decode='gpu': expected one of cpu, mixed"),
        ({"decode": "mixed"}, "decode='mixed' with device=None: .* give device='cuda'"),
        ({"decode": "mixed", "device": "cpu"}, "decode='mixed' with device='cpu': .* give device='cuda'"),
        ({"host_memory_padding": 8}, "host_memory_padding=8 .* leave it out with decode='cpu'"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_with_advice(dali: None, folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ours(dataset_in(folder), **options)


def test_transforms_that_need_pixels_are_refused(dali: None, folder: Path) -> None:
    with pytest.raises(UsageError, match="ColorJitter"):
        ours(open_dataset(folder, [RandomResizedCrop(8), ColorJitter(0.5)]))


def test_what_torchs_loader_takes_by_default_may_be_spelled_out(dali: None, folder: Path) -> None:
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(Loader.__init__).parameters.items()
        if name in WORKERS - {"num_workers"}
    }
    with ours(dataset_in(folder), **defaults, batch_sampler=None, in_order=True, prefetch_factor=None) as loader:
        assert (len(list(loader)), loader.prefetch_factor) == (6, 2)


def test_no_attribute_can_be_set(dali: None, folder: Path) -> None:
    loader = ours(dataset_in(folder))
    for name in ("num_threads", "decode", "batch_size", "host_memory_padding", "anything"):
        with pytest.raises(UsageError, match=f"loader.{name} cannot be set"):
            setattr(loader, name, 3)
    loader.transform = [RandomResizedCrop(8)]
    assert next(iter(loader))[0].shape == (BATCH, 3, 8, 8)

    class Own(DaliLoader):
        pass

    own: Any = Own(dataset_in(folder), BATCH)
    own.anything = 3
    with pytest.raises(UsageError, match="num_threads cannot be set"):
        own.num_threads = 3


def test_repr_says_what_decodes(dali: None, folder: Path) -> None:
    shown = repr(ours(dataset_in(folder), num_threads=3))
    assert shown.startswith("DaliLoader(PackedDataset(")
    assert "batch_size=4, order=Shuffled, threads=3, decode=cpu, rank 0 of 1, epoch 0" in shown


def options_of(loader: DaliLoader) -> Any:
    made: Any = loader._backend.engine
    (options,) = made.args
    return options


def test_the_gpu_and_its_memory_are_dalis(dali: None, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    hints = {"host_memory_padding": 64 << 20, "device_memory_padding": 128 << 20, "preallocate_width_hint": 6000}
    for device, number in (("cuda", 2), ("cuda:1", 1)):
        loader = ours(dataset_in(folder), decode="mixed", device=device, prefetch_factor=3, **hints)
        options = options_of(loader)
        assert (options.threads, options.depth, options.device, options.hints) == (1, 3, number, hints)
    assert options_of(ours(dataset_in(folder), device="cuda")).device is None


# --- what is the loader's own ---


@pytest.mark.parametrize("name", FORMATS)
def test_batches_are_the_loaders(dali: None, listing: Path, name: str, tmp_path: Path) -> None:
    dataset = dataset_in(packed(listing, tmp_path / "out", name))
    options: dict[str, Any] = {"fields": ("row", "line", "position")}
    with ours(dataset, **options) as loader:
        other = theirs(dataset, **options)
        assert_alike([*loader, *loader], [*other, *other])


@pytest.mark.parametrize(
    "options",
    [
        {"drop_last": True},
        {"rank": 1, "world_size": 3},
        {"shuffle": False, "sampler": Weighted(list(range(1, IMAGES + 1)))},
        {"shuffle": False, "sampler": RepeatedAugmentation(IMAGES)},
        {**NORMALISED, "dtype": torch.float16},
        {"batch_transform": lambda images, labels: (images.float() * torch.rand(()), labels + 1)},
    ],
    ids=["drop_last", "ranks", "weighted", "repeated", "normalised", "batch_transform"],
)
def test_arguments_mean_the_same(dali: None, folder: Path, options: dict[str, Any]) -> None:
    dataset = dataset_in(folder)
    with ours(dataset, **options) as loader:
        other = theirs(dataset, **options)
        assert_alike([*loader, *loader], [*other, *other])


@pytest.mark.parametrize("steps", [0, 2, 6])
def test_either_loader_continues_from_a_state_of_the_other(dali: None, folder: Path, steps: int) -> None:
    dataset = dataset_in(folder)
    for first, second in ((ours, theirs), (theirs, ours), (ours, ours)):
        with first(dataset) as one, second(dataset, seed=99) as other:
            batches = iter(one)
            for _ in range(steps):
                next(batches)
            other.load_state_dict(one.state_dict())
            left = list(batches)
            assert_alike(list(other), left)
            assert other.state_dict() == one.state_dict()
            assert_alike(list(other), list(one))


def test_frameworks_choose_the_epoch(dali: None, folder: Path) -> None:
    dataset = dataset_in(folder)
    with ours(dataset) as one, theirs(dataset) as other:
        for loader in (one, other):
            loader.sampler.set_epoch(3)
        assert (one.epoch, one.remaining, len(one), one.remainder) == (3, 6, 6, 2)
        assert_alike(list(one), list(other))
        one.set_epoch(1)
        other.set_epoch(1)
        assert_alike(list(one), list(other))


def test_accelerate_is_told_when_an_epoch_ends(dali: None, folder: Path) -> None:
    require_module("accelerate")
    from helpers.accelerate_training import accelerator_of

    with ours(dataset_in(folder)) as loader, ours(dataset_in(folder)) as other, accelerator_of() as accelerator:
        prepared = prepare(loader, accelerator)
        found = [(batch, prepared.end_of_dataloader) for batch in prepared]
        assert_alike([batch for batch, _ in found], list(other), most=0)
        assert [end for _, end in found] == [False] * 5 + [True]


def test_a_damaged_record_is_left_out_and_named(dali: None, listing: Path, tmp_path: Path) -> None:
    folder = packed(listing, tmp_path / "out", "tar")
    dataset = dataset_in(folder)
    record = dataset.record(7)
    (shard,) = folder.glob("*.tar")
    flip(shard, shard.read_bytes().index(bytes(record)) + len(record) // 2)
    dataset = dataset_in(folder)
    with ours(dataset, on_error="skip", fields=("row",)) as loader:
        with pytest.warns(RuntimeWarning, match="left out: .*row 7"):
            rows = torch.cat([batch[-1] for batch in loader])
        assert sorted(rows.tolist()) == [row for row in range(IMAGES) if row != 7]
        assert loader.skipped == 1
    with ours(dataset) as loader, pytest.raises(CorruptRecord, match="row 7"):
        list(loader)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_goes_on_where_the_loader_is(dali: None, folder: Path, copied: Callable[[Any], Any]) -> None:
    with ours(dataset_in(folder)) as loader:
        batches = iter(loader)
        next(batches)
        with copied(loader) as other:
            other.load_state_dict(loader.state_dict())
            assert_alike(list(other), list(batches), most=0)


@pytest.mark.parametrize("what", ["nothing", "close", "a pass"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_process_forked_in_a_pass_waits_for_no_threads_of_its_parent(dali: None, folder: Path, what: str) -> None:
    with ours(dataset_in(folder)) as loader:
        batches = iter(loader)
        next(batches)

        def work() -> bool:
            if what == "close":
                loader.close()
            return what != "a pass" or sum(len(labels) for _, labels in loader) == IMAGES

        assert succeeds_in_child(work)
        assert sum(len(labels) for _, labels in batches) == IMAGES - BATCH


def test_it_works_again_after_close(dali: None, folder: Path) -> None:
    with ours(dataset_in(folder)) as loader:
        first = list(loader)
        loader.close()
        loader.set_epoch(0)
        assert_alike(list(loader), first, most=0)


@pytest.mark.parametrize("threads", [1, 2])
def test_statistics_advise_what_this_loader_can_do(dali: None, folder: Path, threads: int) -> None:
    """It has no workers, takes no raw images, and what its threads do is not time off the processor."""
    with ours(dataset_in(folder), num_threads=threads) as loader:
        deque(loader, maxlen=0)
        report = loader.stats.report()
    assert not re.search("workers  |num_workers|store=raw|other processes", report), report
    assert re.search(f"^threads of DALI +{threads} ", report, re.MULTILINE)


def test_headspace_hands_out_the_same_batches(dali: None, folder: Path) -> None:
    with ours(dataset_in(folder)) as loader, loader.headspace():
        assert [len(labels) for _, labels in loader] == [4] * 6


# --- on a device ---


@pytest.mark.parametrize("seed", range(3))
def test_a_gpu_casts_and_normalises_what_the_cpu_has_decoded(dali: None, folder: Path, seed: int) -> None:
    choose = random.Random(seed).randrange
    dataset = dataset_in(folder)
    with ours(dataset, **NORMALISED) as loader:
        expected = [batch for _ in range(2) for batch in loader]
    with lazy(choose) as device, ours(dataset, **NORMALISED, device="cuda") as loader:
        assert_alike(consumed(device, loader, 2, choose), expected, most=0)
