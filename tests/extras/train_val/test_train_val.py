"""The back ends of `imagenet_loaders` hand out the same, validation counts each sample once, `TrainVal` frees memory.

DALI works on a CPU here, where it is installed.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import signal
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.growing import copy_of
from helpers.ranks import in_ranks
from helpers.support import encoded, flip, image_set, packed, picture, with_classes
from helpers.waiting import wait_until

from packtrain import LabelSpec, Loader, StoreOptions, TrainVal, concat, imagenet_loaders, open_dataset
from packtrain._extras.dali.loader import DaliLoader
from packtrain._extras.train_val import imagenet
from packtrain._extras.train_val.torch_loader import TorchLoader
from packtrain.errors import CorruptRecord, LoaderError, UsageError
from packtrain.transforms import CenterCrop, Normalize, RandomHorizontalFlip, RandomResizedCrop, Resize, ToTensor

COMPLETE = pytest.mark.complete
EACH = pytest.mark.parametrize("backend", ["packtrain", "torch", "dali-cpu"])
# Any of them is a Loader with another engine.
BACKENDS = pytest.mark.parametrize(
    "backend", ["packtrain", *(pytest.param(name, marks=COMPLETE) for name in ("torch", "dali-cpu"))]
)
IMAGES = 23
Batches = list[tuple[torch.Tensor, torch.Tensor]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of large pictures, each with a label of its own."""
    source = tmp_path_factory.mktemp("source")
    for number in range(IMAGES):
        image = picture(number, 90 + 7 * number, 200 - 5 * number)
        (source / f"{number}.jpg").write_bytes(encoded(image, quality=95, subsampling=0))
    listing = source / "train.txt"
    listing.write_text("".join(f"{number}.jpg {number}\n" for number in range(IMAGES)))
    return packed(listing, tmp_path_factory.mktemp("packed") / "set", "tar", store=StoreOptions("crop-ready"))


def made(folder: Path | Any, backend: Any = "packtrain", **options: Any) -> TrainVal:
    options = {"batch_size": 5, "crop": 32, "val_size": 40, "num_workers": 1, "seed": 4, "device": "cpu", **options}
    return TrainVal(*imagenet_loaders(folder, options.pop("val", folder), backend, **options))


def kept(loader: Any) -> Batches:
    """The batches of a pass."""
    return [(images.clone(), labels.clone()) for images, labels in loader]


def labels_of(loader: Any) -> list[int]:
    return [label for _, labels in loader for label in labels.tolist()]


def rounds(data: TrainVal) -> Batches:
    """Two epochs of training with a validation after each."""
    found: Batches = []
    for _ in range(2):
        found += kept(data.get_train_loader())
        data.prep_for_val()
        found += kept(data.get_val_loader())
        data.reset()
    return found


def bytes_of(**options: Any) -> dict[str, Any]:
    """Options with which images are pixel values."""
    return {"mean": 0.0, "std": 1 / 255, **options}


@pytest.mark.complete
@EACH
@pytest.mark.usefixtures("no_process_left")
def test_all_back_ends_hand_out_the_same_samples_and_crops(folder: Path, backend: str) -> None:
    with made(folder, **bytes_of()) as data:
        expected = rounds(data)
    with made(folder, backend, **bytes_of(), num_workers=2) as data:
        found = rounds(data)
    for (images, labels), (others, same) in zip(expected, found, strict=True):
        assert labels.dtype == same.dtype == torch.int64 and torch.equal(labels, same)
        assert images.shape == others.shape and images.stride() == others.stride() and images.dtype == others.dtype
        assert torch.equal(images, others)


@BACKENDS
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (torch.float16, 2e-3)])
def test_images_are_normalised_as_torchvision_does_it(
    folder: Path, backend: str, dtype: torch.dtype, most: float
) -> None:
    steps: list[Any] = [Resize(40), CenterCrop(32), ToTensor(), Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    dataset = open_dataset(folder, steps)
    with made(folder, backend, dtype=dtype) as data:
        found = kept(data.get_val_loader())
    images = torch.cat([images for images, _ in found])
    assert images.dtype == dtype
    assert found[0][0].is_contiguous(memory_format=torch.channels_last)
    expected = torch.stack([dataset[row][0] for row in range(IMAGES)])
    assert (images - expected).abs().max() <= most


def test_the_augmentation_is_the_recipes(folder: Path) -> None:
    steps: list[Any] = [RandomResizedCrop(32, scale=(0.3, 1), ratio=(0.9, 1.1)), RandomHorizontalFlip()]
    with Loader(open_dataset(folder, steps), 5, shuffle=True, seed=4, num_workers=0) as loader:
        expected = [images.float() for images, _ in loader]
    with made(folder, scale=(0.3, 1), ratio=[0.9, 1.1], **bytes_of()) as data:
        found = [images for images, _ in kept(data.get_train_loader())]
    for images, others in zip(expected, found, strict=True):
        torch.testing.assert_close(images, others, atol=1e-3, rtol=0)


def test_a_sampler_is_for_training(folder: Path) -> None:
    with made(folder, num_workers=0, sampler=[5, 6, 5]) as data:
        assert labels_of(data.get_train_loader()) == [5, 6, 5]
        assert labels_of(data.get_val_loader()) == list(range(IMAGES))


@BACKENDS
@pytest.mark.parametrize("world_size", [1, 3, pytest.param(2, marks=COMPLETE), pytest.param(30, marks=COMPLETE)])
def test_validation_counts_each_sample_once_over_all_ranks(folder: Path, backend: str, world_size: int) -> None:
    found, workers = [], int("dali" in backend)
    for rank in range(world_size):
        with made(folder, backend, rank=rank, world_size=world_size, val_batch_size=4, num_workers=workers) as data:
            sizes = [len(labels) for _, labels in data.get_val_loader()]
            assert len(sizes) == len(data.get_val_loader())
            assert all(size == 4 for size in sizes[:-1]) and all(0 < size <= 4 for size in sizes[-1:])
            found += labels_of(data.get_val_loader())
    assert found == list(range(IMAGES))


def _of_group(rank: int, world: int, folder: Path) -> tuple[list[int], list[int]]:
    with made(folder, seed=None, num_workers=0) as data:
        return labels_of(data.get_train_loader()), labels_of(data.get_val_loader())


def test_ranks_are_those_of_torch_distributed(folder: Path, tmp_path: Path) -> None:
    found = in_ranks(2, _of_group, folder, group=tmp_path / "group")
    assert set(found[0][0]) | set(found[1][0]) == set(range(IMAGES))
    assert len(found[0][0]) + len(found[1][0]) == IMAGES + 1
    assert found[0][1] + found[1][1] == list(range(IMAGES))


def _of_later_group(rank: int, world: int, folder: Path, group: Path) -> tuple[int, int, list[int]]:
    with made(folder, num_workers=0) as data:
        loader = data.get_val_loader()
        before = sum(len(labels) for _, labels in loader)
        next(iter(loader))
        torch.distributed.init_process_group("gloo", f"file://{group}", world_size=world, rank=rank)
        try:
            found = before, len(loader), labels_of(loader)
            # A rank that leaves would break the connections of one that still makes them.
            torch.distributed.barrier()
            return found
        finally:
            torch.distributed.destroy_process_group()


def test_ranks_that_begin_after_the_loaders_were_made_divide_the_validation(folder: Path, tmp_path: Path) -> None:
    found = in_ranks(2, _of_later_group, folder, tmp_path / "group")
    assert [before for before, _, _ in found] == [IMAGES, IMAGES]
    assert [steps for _, steps, _ in found] == [3, 3]
    assert [label for _, _, labels in found for label in labels] == list(range(IMAGES))


@BACKENDS
@pytest.mark.usefixtures("no_process_left")
def test_training_continues_in_the_middle_of_an_epoch(folder: Path, backend: str) -> None:
    with made(folder, backend) as data:
        passed = iter(data.get_train_loader())
        for _ in range(2):
            next(passed)
        state = data.state_dict()
        expected = [(images.clone(), labels.clone()) for images, labels in passed]
        expected += kept(data.get_train_loader())
    with made(folder, backend, seed=99) as data:
        data.load_state_dict(state)
        data.reset()
        found = kept(data.get_train_loader()) + kept(data.get_train_loader())
    assert len(found) == len(expected) == 3 + 5
    for (images, labels), (others, same) in zip(expected, found, strict=True):
        assert torch.equal(labels, same) and torch.equal(images, others)


@pytest.mark.parametrize("backend", [pytest.param("torch", marks=COMPLETE), "dali-cpu"])
def test_another_back_end_continues(folder: Path, backend: str) -> None:
    with made(folder, backend) as data:
        next(iter(data.get_train_loader()))
        state = data.state_dict()
        data.close()
    with made(folder) as data:
        expected = labels_of(data.get_train_loader())[5:]
    with made(folder) as data:
        data.load_state_dict(state)
        assert labels_of(data.get_train_loader()) == expected


@BACKENDS
@pytest.mark.usefixtures("no_process_left")
def test_a_reset_in_the_middle_of_an_epoch_goes_to_the_next(folder: Path, backend: str) -> None:
    with made(folder, backend) as data:
        for _ in range(2):
            kept(data.get_train_loader())
        expected = labels_of(data.get_train_loader())
    with made(folder, backend) as data:
        kept(data.get_train_loader())
        passed = iter(data.get_train_loader())
        next(passed)
        next(passed)
        data.reset()
        with pytest.raises(UsageError, match="pass has ended"):
            next(passed)
        assert data.get_train_loader().epoch == 1
        assert labels_of(data.get_train_loader()) == expected
        assert data.get_train_loader().epoch == 3


@BACKENDS
@pytest.mark.usefixtures("no_process_left")
def test_a_look_at_training_uses_up_no_epoch(folder: Path, backend: str) -> None:
    with made(folder, backend) as data:
        expected = labels_of(data.get_train_loader())
    with made(folder, backend) as data:
        next(iter(data.get_train_loader()))
        data.prep_for_val()
        kept(data.get_val_loader())
        data.reset()
        assert labels_of(data.get_train_loader()) == expected


def running() -> int:
    """Number of this process's threads and child processes."""
    gc.collect()
    return len(os.listdir("/proc/self/task")) + len(multiprocessing.active_children())


def steady() -> int:
    """The same, once it stays the same: the kernel still lists a thread for a moment after it has been joined."""
    counts = deque([running()], maxlen=20)

    def look() -> bool:
        counts.append(running())
        return len(counts) == counts.maxlen and len(set(counts)) == 1

    wait_until(look, "as many threads and processes are there as before")
    return counts[0]


@pytest.mark.parametrize(
    "backend", ["dali-cpu", *(pytest.param(name, marks=COMPLETE) for name in ("packtrain", "torch"))]
)
@pytest.mark.usefixtures("no_process_left")
def test_only_one_loader_has_processes_and_threads(folder: Path, backend: str) -> None:
    with made(folder, backend) as data:
        # The first pass starts threads that stay: torch's own, for example.
        rounds(data)
        data.close()
        idle = steady()
        passed = iter(data.get_train_loader())
        next(passed)
        assert running() > idle
        for _ in range(2):
            data.prep_for_val()
        wait_until(lambda: running() <= idle, "its threads and processes have ended")
        validation = iter(data.get_val_loader())
        next(validation)
        assert running() > idle
        for _ in range(2):
            data.reset()
        wait_until(lambda: running() <= idle, "its threads and processes have ended")
        assert len(labels_of(data.get_train_loader())) == IMAGES
        data.close()
        wait_until(lambda: running() <= idle, "its threads and processes have ended")


@BACKENDS
@pytest.mark.usefixtures("no_process_left")
def test_batches_stay_valid_when_all_else_is_released(folder: Path, backend: str) -> None:
    with made(folder, backend) as data:
        images, labels = next(iter(data.get_train_loader()))
        before = images.clone(), labels.clone()
        data.prep_for_val()
        kept(data.get_val_loader())
        data.close()
    assert torch.equal(images, before[0]) and torch.equal(labels, before[1])


def divided(loader: Any) -> None:
    for _ in loader:
        1 / 0  # noqa: B018


@BACKENDS
@pytest.mark.usefixtures("no_process_left")
def test_an_error_in_the_loop_leaves_all_usable(folder: Path, backend: str) -> None:
    with made(folder, backend) as data:
        for loader in (data.get_train_loader(), data.get_val_loader()):
            with pytest.raises(ZeroDivisionError):
                divided(loader)
            data.prep_for_val()
            assert labels_of(data.get_val_loader()) == list(range(IMAGES))
            data.reset()
            assert sorted(labels_of(data.get_train_loader())) == list(range(IMAGES))


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A dataset with one damaged record, number 3."""
    out = packed(image_set(tmp_path / "source", 12, classes=12), tmp_path / "set", "tar")
    flip(out / "train-000000.tar", int(open_dataset(out).store.index["offset"][3]) + 50)
    return out


@BACKENDS
@pytest.mark.usefixtures("no_process_left")
def test_a_damaged_record_is_an_error_in_training_and_validation(damaged: Path, backend: str) -> None:
    with made(damaged, backend) as data:
        for loader in (data.get_train_loader(), data.get_val_loader(), data.get_val_loader()):
            with pytest.raises(CorruptRecord, match=r"image 3\.jpg"):
                kept(loader)


@EACH
@pytest.mark.usefixtures("no_process_left")
def test_a_damaged_record_can_be_left_out(damaged: Path, backend: str) -> None:
    with made(damaged, backend, on_error="skip") as data:
        for loader in (data.get_train_loader(), data.get_val_loader()):
            with pytest.warns(RuntimeWarning, match=r"left out: .*image 3\.jpg"):
                assert sorted(labels_of(loader)) == [0, 1, 2, *range(4, 12)]
            assert loader.skipped == 1


def fatal(image: Any) -> Any:
    """A transform that kills its worker while the loader waits for the first batch."""
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
    return image


@pytest.mark.usefixtures("no_process_left")
def test_a_killed_worker_of_torch_is_a_loader_error(folder: Path) -> None:
    dataset = open_dataset(folder, [Resize(32), CenterCrop(32)])
    with TorchLoader(open_dataset(folder, fatal), 5, num_workers=1) as loader:
        with pytest.raises(LoaderError, match="DataLoader worker"):
            next(iter(loader))
        loader.transform = dataset.transform
        assert labels_of(loader) == list(range(IMAGES))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.usefixtures("no_process_left")
def test_the_order_of_torch_does_not_depend_on_its_workers(folder: Path, workers: int) -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    with made(folder, "torch", num_workers=workers, **bytes_of()) as data:
        found = kept(data.get_train_loader())
    assert torch.equal(torch.random.get_rng_state(), before)
    with made(folder, **bytes_of()) as data:
        for (images, labels), (others, same) in zip(kept(data.get_train_loader()), found, strict=True):
            assert torch.equal(images, others) and torch.equal(labels, same)


@BACKENDS
def test_only_training_batches_are_transformed_and_the_same_way_when_it_continues(folder: Path, backend: str) -> None:
    with made(folder, backend) as data:
        plain = kept(data.get_train_loader()) + kept(data.get_val_loader())
    with made(folder, backend, batch_transform=shifted) as data:
        found = kept(data.get_train_loader()) + kept(data.get_val_loader())
    with made(folder, backend, batch_transform=shifted) as data:
        passing = iter(data.get_train_loader())
        next(passing)
        state = data.state_dict()
        data.load_state_dict(state)
        rest = kept(data.get_train_loader())
    steps = len(rest) + 1
    by = [images - others for (images, _), (others, _) in zip(found, plain, strict=True)]
    assert all(part.mean() > 1 and part.std() < 1e-3 for part in by[:steps])
    assert not any(part.any() for part in by[steps:])
    assert all(torch.equal(one[0], other[0]) for one, other in zip(rest, found[1:steps], strict=True))


def shifted(images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Adds the same random number to all pixels."""
    return images + 1 + torch.rand(()), labels


def test_a_loader_is_always_the_same_and_knows_its_length(folder: Path) -> None:
    with made(folder, val_batch_size=7, drop_last=True) as data:
        assert data.get_train_loader() is data.get_train_loader()
        assert data.get_val_loader() is data.get_val_loader()
        assert (len(data.get_train_loader()), len(data.get_val_loader())) == (4, 4)
        assert repr(data.get_val_loader()) in repr(data)


def test_opened_datasets_are_taken_without_their_transform(folder: Path) -> None:
    dataset = open_dataset(folder, Resize(8))
    with made(dataset, val=dataset.subset(range(3)), num_workers=0) as data:
        (images, labels), *rest = kept(data.get_val_loader())
        assert images.shape == (3, 3, 32, 32) and labels.tolist() == [0, 1, 2] and not rest


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"backend": "dali"}, r"backend='dali': expected one of packtrain, torch, dali-cpu, dali-gpu"),
        ({"backend": "dali-gpu"}, r"device='cpu': a GPU decodes, and the images stay there: give device='cuda'"),
        ({"batch_size": 0}, "batch_size=0: expected a whole number, at least 1"),
        ({"val_batch_size": 0}, "val_batch_size=0: expected"),
        ({"crop": 0}, "crop=0: expected"),
        ({"val_size": 31}, "val_size=31: expected a whole number, at least 32"),
        ({"scale": 1}, r"scale=1: expected \(least"),
        ({"backend": "dali-cpu", "num_workers": 0}, "num_threads=0: expected a whole number, at least 1"),
        ({"workers": 2}, r"^imagenet_loaders has no argument 'workers'; did you mean 'num_workers'\?"),
        ({"backend": "dali-cpu", "workers": 2}, "^imagenet_loaders has no argument 'workers'; did you mean 'num_"),
        ({"backend": "torch", "crops": 2}, r"^imagenet_loaders has no argument 'crops'; did you mean 'crop'\?"),
        ({"persistent_workers": False}, "^persistent_workers=False: Loader does not have this argument; workers live"),
        ({"rank": 0}, "both rank and world_size"),
        ({"val": 3}, "val=3: expected the folder of a packed dataset"),
    ],
)
def test_a_wrong_argument_is_refused(folder: Path, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        made(folder, **options)


def test_a_label_must_mean_the_same_class_in_both(tmp_path: Path) -> None:
    for name, names in (("a", "abc"), ("b", "bcd"), ("c", "ab")):
        with_classes(tmp_path / name, names)
    other = open_dataset(tmp_path / "b")
    for val in (tmp_path / "b", other, other.subset([0]), concat([other, other])):
        with pytest.raises(UsageError, match=r"label 0 is 'a' in .*/a, but 'b' in .*/b: pack both with `--classes"):
            made(tmp_path / "a", val=val)
    for train, shorter in (("a", "c"), ("c", "a")):
        # One of them lacks the last class.
        made(tmp_path / train, val=tmp_path / shorter).close()
    other.target_transform = [1, 2, 3].__getitem__
    made(tmp_path / "a", val=other).close()


def test_labels_are_of_one_type(tmp_path: Path) -> None:
    with_classes(tmp_path / "a", "abc", named=False)
    packed(image_set(tmp_path / "images", 3), tmp_path / "b", "tar", labels=LabelSpec.parse("float"))
    with pytest.raises(UsageError, match=r"/a has labels of type int, but .*/b of type float"):
        made(tmp_path / "a", val=tmp_path / "b")


def test_labels_without_names_are_taken_as_they_are(tmp_path: Path) -> None:
    named, bare = with_classes(tmp_path / "named", "abc"), with_classes(tmp_path / "bare", "abc", named=False)
    growing = copy_of(open_dataset(bare), tmp_path / "growing", 2, 4).dataset(None)
    for train, val in ((named, bare), (bare, named), (bare, bare), (growing, named), (growing, bare)):
        with made(train, val=val, num_workers=0) as data:
            assert labels_of(data.get_val_loader()) == [0, 1, 2]
    more = with_classes(tmp_path / "more", "abcd", named=False)
    expected = (
        f"label 3 of {tmp_path}/more is none of the 3 classes of {tmp_path}/named, which are numbered from 0: pack "
        f"{tmp_path}/more with the numbers of these classes, or with `--classes classes.txt`, a file of all class "
        "names, one per line in label order"
    )
    for train, val in ((named, more), (more, named)):
        with pytest.raises(UsageError, match=f"^{re.escape(expected)}$"):
            made(train, val=val)


def test_datasets_of_which_nothing_is_known_are_taken(tmp_path: Path) -> None:
    with_classes(tmp_path / "a", "abc")
    with_classes(tmp_path / "b", "bcd")
    steps = [Resize(40), CenterCrop(32)]
    loader = Loader(open_dataset(tmp_path / "a", steps), 2)
    images = Loader(open_dataset(tmp_path / "b", steps, fields=["image"]), 2)
    numbers = Loader([(torch.zeros(1), 0)], 2)  # type: ignore[arg-type]
    for val in (images, numbers):
        TrainVal(loader, val).close()
    with pytest.raises(UsageError, match="label 0 is 'a'"):
        TrainVal(loader, Loader(open_dataset(tmp_path / "b", steps), 2))


def test_loaders_are_asked_for(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"val=.*: expected a packtrain\.Loader; TrainVal\(\*imagenet_loaders"):
        TrainVal(Loader(open_dataset(folder), 2), str(folder))  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["dali-cpu"])
def test_dali_refuses_raw_images(tmp_path: Path, backend: str) -> None:
    out = packed(image_set(tmp_path / "source"), tmp_path / "set", "tar", store=StoreOptions("raw", resize="48x48"))
    with pytest.raises(UsageError, match="raw"):
        made(out, backend)


def test_dali_on_a_gpu_is_asked_for_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def loader(dataset: Any, batch_size: int, *, num_threads: int, decode: str, device: Any, **options: Any) -> Any:
        asked.append({"size": batch_size, "threads": num_threads, "decode": decode, "device": str(device)})
        return Loader(dataset, batch_size, num_workers=0, **options)

    made_by = imagenet._LOADERS["dali-gpu"]
    assert isinstance(made_by, partial) and made_by.func is DaliLoader
    monkeypatch.setattr(
        imagenet, "_LOADERS", {**imagenet._LOADERS, "dali-gpu": partial(loader, *made_by.args, **made_by.keywords)}
    )
    made(folder, "dali-gpu", device="cuda:3", num_workers=6, val_batch_size=9)
    common = {"threads": 6, "decode": "mixed", "device": "cuda:3"}
    assert asked == [{"size": 5, **common}, {"size": 9, **common}]


@pytest.fixture(autouse=True)
def _dali(request: pytest.FixtureRequest) -> None:
    """Leaves out what DALI is needed for where it is not installed."""
    if "dali-cpu" in getattr(getattr(request.node, "callspec", None), "params", {}).values():
        pytest.importorskip("nvidia.dali", reason="pip install '.[dali]'")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads of torch's own would be counted."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
