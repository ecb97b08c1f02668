"""Laws of WebdatasetLoader: DALI's own reader sees each sample once, and says what it cannot do."""

from __future__ import annotations

import math
import pickle
import re
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from helpers.dali import require_dali, succeeds_in_child
from helpers.lazily import consumed, lazy
from helpers.support import encoded, image_set, packed, picture, shard_bytes
from PIL import Image

from packtrain import LabelSpec, Loader, StoreOptions, concat, open_dataset
from packtrain._core.manifest import Manifest
from packtrain.dali import WebdatasetLoader
from packtrain.errors import CorruptFile, LoaderError, UsageError
from packtrain.transforms import CenterCrop, ColorJitter, RandomHorizontalFlip, RandomResizedCrop, Resize, ToTensor

IMAGES, BATCH = 22, 4
WIDTH, HEIGHT = 500, 375
Windows = npt.NDArray[np.float64]


@pytest.fixture(autouse=True)
def dali() -> None:
    require_dali()


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_set(tmp_path_factory.mktemp("images"), IMAGES, classes=IMAGES)


@pytest.fixture(scope="module")
def folder(listing: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of several shards."""
    return packed(listing, tmp_path_factory.mktemp("packed") / "out", "tar", shard_bytes=shard_bytes(listing, 6))


def dataset_in(folder: Path, **options: Any) -> Any:
    return open_dataset(folder, [RandomResizedCrop(16), RandomHorizontalFlip()], **options)


def loader_of(dataset: Any, **options: Any) -> WebdatasetLoader:
    return WebdatasetLoader(dataset, BATCH, **{"num_threads": 1, "shuffle": True, "seed": 5, **options})


def labels_of(loader: WebdatasetLoader) -> list[int]:
    return [label for _, labels in loader for label in labels.tolist()]


# --- epochs ---


def test_each_epoch_has_each_sample_once_in_another_order(folder: Path) -> None:
    assert len(list(folder.glob("*.tar"))) > 2
    dataset = dataset_in(folder)
    wanted = sorted(dataset.targets.tolist())
    with loader_of(dataset) as loader:
        epochs = [labels_of(loader) for _ in range(3)]
        assert loader.epoch == 3
    assert [sorted(epoch) for epoch in epochs] == [wanted] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3
    with loader_of(dataset) as again:
        assert [labels_of(again) for _ in range(3)] == epochs
    with loader_of(dataset, seed=6) as other:
        assert labels_of(other) != epochs[0]
    with loader_of(dataset, shuffle=False) as sequential:
        assert labels_of(sequential) == labels_of(sequential)


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_has_passes_of_its_own(folder: Path, begun: bool) -> None:
    with loader_of(dataset_in(folder)) as loader:
        batches = iter(loader)
        rest = IMAGES
        for _, labels in batches if not begun else [next(batches)]:
            rest -= len(labels)

        def work() -> bool:
            with pytest.raises(UsageError, match="begun by the parent") if begun else nullcontext():
                next(batches, None)
            return len(labels_of(loader)) == IMAGES

        assert succeeds_in_child(work)
        assert sum(len(labels) for _, labels in batches) == rest


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world_size", [1, 2, 4, 5])
def test_ranks_see_all_samples_in_equally_many_batches(folder: Path, world_size: int, drop_last: bool) -> None:
    dataset = dataset_in(folder)
    loaders = [loader_of(dataset, rank=rank, world_size=world_size, drop_last=drop_last) for rank in range(world_size)]
    share = -(-IMAGES // world_size)
    sizes = [BATCH] * (share // BATCH) + [share % BATCH] * bool(share % BATCH and not drop_last)
    for _ in range(2):
        epoch = [[labels for _, labels in loader] for loader in loaders]
        assert [[len(labels) for labels in part] for part in epoch] == [sizes] * world_size
        assert [len(loader) for loader in loaders] == [len(sizes)] * world_size
        if not drop_last:
            seen = {label for part in epoch for labels in part for label in labels.tolist()}
            assert seen == set(dataset.targets.tolist())


def test_images_are_those_of_their_labels(tmp_path: Path) -> None:
    for number in range(IMAGES):
        (tmp_path / f"{number}.jpg").write_bytes(encoded(picture(number, 48, 36)))
    listing = tmp_path / "list.txt"
    listing.write_text("".join(f"{number}.jpg {number}\n" for number in range(IMAGES)))
    # The only crop is the whole image.
    transform = [RandomResizedCrop(16, scale=(1, 1), ratio=(48 / 36, 48 / 36))]
    dataset = open_dataset(packed(listing, tmp_path / "out", "tar"), transform)
    wanted = {int(label): images[0] for images, label in Loader(dataset, 1, num_workers=0)}
    with loader_of(dataset) as loader:
        for images, labels in loader:
            assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)
            assert images.is_contiguous(memory_format=torch.channels_last)
            for image, label in zip(images, labels.tolist(), strict=True):
                assert (image.float() - wanted[label].float()).abs().max() <= 2


def test_ranks_draw_other_crops(tmp_path: Path) -> None:
    (tmp_path / "0.jpg").write_bytes(encoded(picture(0, 200, 150)))
    listing = tmp_path / "list.txt"
    listing.write_text("0.jpg 0\n" * IMAGES)
    dataset = dataset_in(packed(listing, tmp_path / "out", "tar"))
    first, second = (next(iter(loader_of(dataset, rank=rank, world_size=2)))[0] for rank in range(2))
    assert not torch.equal(first, second)


def test_images_are_not_turned_by_their_orientation(tmp_path: Path) -> None:
    pixels = np.zeros((48, 48, 3), np.uint8)
    pixels[24:] = 255
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    (tmp_path / "0.jpg").write_bytes(encoded(Image.fromarray(pixels), exif=exif))
    (tmp_path / "list.txt").write_text("0.jpg 0\n")
    dataset = open_dataset(
        packed(tmp_path / "list.txt", tmp_path / "out", "tar"), [RandomResizedCrop(16, scale=(1, 1), ratio=(1, 1))]
    )
    ((images, _),) = loader_of(dataset)
    assert images[0, :, 0].max() < 9 and images[0, :, -1].min() > 246


def test_a_shard_without_records_is_left_out(tmp_path: Path) -> None:
    listing = image_set(tmp_path, 6)
    (tmp_path / "image 3.jpg").write_bytes(b"no image")
    out = packed(listing, tmp_path / "out", "tar", shard_bytes=1, max_rejects="1")
    assert 0 in [shard.records for shard in Manifest.load(out).shards]
    with loader_of(dataset_in(out)) as loader:
        assert len(labels_of(loader)) == 5


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_shards_are_mapped_as_the_dataset_is(folder: Path, io: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from nvidia.dali import fn

    read, asked = fn.readers.webdataset, []

    def reader(**options: Any) -> Any:
        asked.append(options["dont_use_mmap"])
        return read(**options)

    monkeypatch.setattr(fn.readers, "webdataset", reader)
    with loader_of(dataset_in(folder, io=io)) as loader:
        next(iter(loader))
    assert asked == [io == "pread"]


def test_batches_that_are_kept_stay_as_they_are(folder: Path) -> None:
    with loader_of(dataset_in(folder)) as loader:
        kept = [(images, images.clone()) for _ in range(4) for images, _ in loader]
    assert all(torch.equal(images, copy) for images, copy in kept)


def test_without_labels_each_is_minus_one(listing: Path, tmp_path: Path) -> None:
    bare = listing.with_name("bare.txt")
    bare.write_text("".join(f"{line.rsplit(' ', 1)[0]}\n" for line in listing.read_text().splitlines()))
    folder = packed(bare, tmp_path / "out", "tar", labels=LabelSpec.parse("none"))
    with loader_of(dataset_in(folder)) as loader:
        assert labels_of(loader) == [-1] * IMAGES


# --- states ---


def test_a_state_is_the_beginning_of_an_epoch(folder: Path) -> None:
    dataset = dataset_in(folder)
    with loader_of(dataset) as loader:
        state = loader.state_dict()
        batches = iter(loader)
        next(batches)
        with pytest.raises(UsageError, match=r"1 of 6 batches .*DaliLoader, which continues anywhere"):
            loader.state_dict()
        for _ in range(5):
            next(batches)
        assert loader.state_dict() == {**state, "epoch": 1}
        assert next(batches, None) is None
        assert loader.state_dict() == {**state, "epoch": 1}
    with loader_of(dataset, seed=99) as other, loader_of(dataset, seed=98) as another:
        for each in (other, another):
            each.load_state_dict(pickle.loads(pickle.dumps({**state, "epoch": 1})))
        found = labels_of(other)
        assert (other.epoch, sorted(found)) == (2, sorted(dataset.targets.tolist()))
        assert labels_of(another) == found


def test_states_of_others_are_refused(folder: Path, listing: Path, tmp_path: Path) -> None:
    dataset = dataset_in(folder)
    loader = loader_of(dataset)
    with pytest.raises(UsageError, match=r"no state of a packtrain\.dali.WebdatasetLoader"):
        loader.load_state_dict(Loader(dataset, BATCH, seed=1, num_workers=0).state_dict())
    with pytest.raises(UsageError, match="another dataset"):
        loader.load_state_dict({**loader.state_dict(), "dataset": "0"})


def test_a_look_uses_up_no_epoch(folder: Path) -> None:
    dataset = dataset_in(folder)
    with loader_of(dataset, shuffle=True, seed=3) as loader:
        expected = labels_of(loader)
    with loader_of(dataset, shuffle=True, seed=3) as loader:
        assert next(iter(loader))[1].tolist() == next(iter(loader))[1].tolist() == expected[:4]
        assert labels_of(loader) == expected and loader.epoch == 1


def test_a_pass_that_is_left_early_is_followed_by_the_next_epoch(folder: Path) -> None:
    dataset = dataset_in(folder)
    with loader_of(dataset) as loader:
        batches = iter(loader)
        next(batches)
        next(batches)
        assert sorted(labels_of(loader)) == sorted(dataset.targets.tolist())
        assert loader.epoch == 2
        with pytest.raises(UsageError, match="this pass has ended"):
            next(batches)
        for _ in loader:
            break
        loader.set_epoch(7)
        assert len(labels_of(loader)) == IMAGES
        assert loader.epoch == 8
        loader.close()
        assert len(labels_of(loader)) == IMAGES


# --- errors ---


def test_a_damaged_image_ends_the_pass_and_the_error_says_what_survives_it(listing: Path, tmp_path: Path) -> None:
    folder = packed(listing, tmp_path / "out", "tar")
    (shard,) = folder.glob("*.tar")
    data = bytearray(shard.read_bytes())
    (row,) = dataset_in(folder).store.rows_at(np.array([9])).tolist()
    place = data.index(bytes(dataset_in(folder).record(row)))
    data[place : place + 40] = bytes(40)
    shard.write_bytes(data)
    with loader_of(dataset_in(folder), shuffle=False) as loader:
        batches = iter(loader)
        assert [len(next(batches)[1]) for _ in range(2)] == [4, 4]
        for _ in range(2):
            with pytest.raises(LoaderError, match=r"DaliLoader says which image .*on_error='skip'.*DALI says"):
                list(batches)
            batches = iter(loader)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fields": ("row",)}, "DaliLoader can do it"),
        ({"sampler": [1]}, "DaliLoader can do it"),
        ({"on_error": "skip"}, "ends with the first damaged image.*DaliLoader"),
        ({"num_workers": 1}, "give num_threads="),
        ({"initial_fil": 1}, r"WebdatasetLoader has no argument 'initial_fil'; did you mean 'initial_fill'\?"),
        ({"initial_fill": 0}, "initial_fill=0: expected a whole number, at least 1"),
        ({"transform": [Resize(20), CenterCrop(16)]}, "takes RandomResizedCrop.*validation"),
        ({"transform": [RandomHorizontalFlip(), RandomResizedCrop(16)]}, "takes RandomResizedCrop"),
        ({"transform": [RandomResizedCrop(16), ColorJitter(0.5)]}, "ColorJitter"),
        ({"transform": [RandomResizedCrop(16), ToTensor()]}, "ToTensor.*give mean=, std= and dtype="),
        ({"transform": [RandomResizedCrop(16, interpolation="box")]}, "DALI has nearest, bilinear, bicubic, lanczos"),
        ({"decode": "mixed"}, "give device='cuda'"),
        ({"mean": 127.5, "std": 63.75}, "pass mean=0.5, std=0.25"),
    ],
    ids=str,
)
def test_what_dalis_reader_cannot_do_is_refused(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        loader_of(dataset_in(folder), **options)


def test_what_dalis_reader_cannot_read_is_refused(folder: Path, listing: Path, tmp_path: Path) -> None:
    whole = dataset_in(folder)
    for dataset in (whole.subset(range(3)), concat([whole, whole]), [(1, 2)]):
        with pytest.raises(UsageError, match=r"reads a whole dataset from open_dataset, not .*DaliLoader can do it"):
            loader_of(dataset)
    cases = {
        "shards of format lmdb": dataset_in(packed(listing, tmp_path / "lmdb", "lmdb")),
        "samples of named fields": dataset_in(folder, fields=("image", "label")),
        "a target_transform": dataset_in(folder, target_transform=float),
    }
    for message, dataset in cases.items():
        with pytest.raises(UsageError, match=f"does not take {message}: .*DaliLoader can do it"):
            loader_of(dataset)
    with pytest.raises(UsageError, match="stored raw"):
        loader_of(dataset_in(packed(listing, tmp_path / "raw", "tar", store=StoreOptions("raw", resize="32x32"))))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda line: re.sub(rb" [0-9]+ (\S+ cls)", rb" -1 \1", line), "line 3 has a member with size '-1' at"),
        (
            lambda line: re.sub(rb" [0-9]+ (\S+)$", rb" 999999999999 \1", line),
            "line 3 has a member with size '999999999999'",
        ),
        (lambda line: line.replace(b"jpg ", b"jpg -", 1), "line 3 has a member with size .* at '-"),
        (lambda line: b"jpg 512", "line 3 is 'jpg 512', not EXT OFFSET SIZE NAME"),
        (lambda line: line + b"\n" + line, "line 1 is 'v1.2 .*', and .* lines follow"),
    ],
)
def test_an_index_that_would_make_dali_crash_is_refused(
    folder: Path, tmp_path: Path, change: Callable[[bytes], bytes], message: str
) -> None:
    copy = tmp_path / "out"
    shutil.copytree(folder, copy)
    index = min(copy.glob("*.idx"))
    lines = index.read_bytes().split(b"\n")
    index.write_bytes(b"\n".join([*lines[:2], change(lines[2]), *lines[3:]]))
    with pytest.raises(CorruptFile, match=f"{index.name} is damaged: {message}.*DaliLoader does without it"):
        loader_of(dataset_in(copy))


# --- on a device ---


@pytest.mark.parametrize("seed", range(2))
def test_a_gpu_gets_the_same_batches(folder: Path, seed: int) -> None:
    choose = np.random.RandomState(seed).randint
    options: dict[str, Any] = {"mean": 0.5, "std": 0.25, "drop_last": bool(seed)}
    with loader_of(dataset_in(folder), **options) as loader:
        expected = [batch for _ in range(2) for batch in loader]
    with lazy(choose) as device, loader_of(dataset_in(folder), **options, device="cuda") as loader:
        found = consumed(device, loader, 2, choose)  # type: ignore[arg-type]
    for one, other in zip(found, expected, strict=True):
        assert all(map(torch.equal, one, other))


def test_shards_that_dali_cannot_read_are_an_error_with_advice(tmp_path: Path) -> None:
    for number, kind in enumerate(("JPEG", "GIF")):
        (tmp_path / f"{number}.img").write_bytes(encoded(picture(number), kind))
    (tmp_path / "list.txt").write_text("0.img 0\n1.img 1\n")
    dataset = dataset_in(packed(tmp_path / "list.txt", tmp_path / "out", "tar"))
    with loader_of(dataset) as loader, pytest.raises(LoaderError, match=r"packtrain\.dali\.DaliLoader can do it"):
        list(loader)


# --- crops ---


def gradient(folder: Path, count: int) -> Path:
    """A list that names the same image again and again; its colours say where in it a pixel is."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    pixels = np.stack([x * 255 / (WIDTH - 1), y * 255 / (HEIGHT - 1), np.full(x.shape, 128)], -1)
    image = Image.fromarray(pixels.round().astype(np.uint8))
    (folder / "gradient.jpg").write_bytes(encoded(image, quality=95, subsampling=0))
    listing = folder / "list.txt"
    listing.write_text("gradient.jpg 0\n" * count)
    return listing


def windows(images: torch.Tensor) -> Windows:
    """Width, height and whether it is mirrored, of the window that each crop of the gradient shows: [images, 3]."""
    side = images.shape[-1]
    places = torch.arange(side, dtype=torch.float64) - (side - 1) / 2
    across = images[:, 0].double().mean(1) @ places / places.square().sum()
    down = images[:, 1].double().mean(2) @ places / places.square().sum()
    width, height = (across.abs() * side * (WIDTH - 1) / 255, down * side * (HEIGHT - 1) / 255)
    return torch.stack([width, height, (across < 0).double()], 1).numpy()


def distance(one: Windows, other: Windows) -> float:
    """The statistic of Kolmogorov and Smirnov, relative to what one pair of samples in a thousand exceeds."""
    both = np.sort(np.concatenate([one, other]))
    apart = np.abs(np.searchsorted(np.sort(one), both, "right") - np.searchsorted(np.sort(other), both, "right")).max()
    return float(apart / len(one) / (1.95 * math.sqrt(2 / len(one))))


@pytest.mark.complete
def test_dalis_crops_have_the_statistics_of_packtrains(tmp_path: Path) -> None:
    folder = packed(gradient(tmp_path, 500), tmp_path / "out", "tar")
    dataset = open_dataset(folder, [RandomResizedCrop(32), RandomHorizontalFlip()])
    with WebdatasetLoader(dataset, 100, shuffle=True, seed=11, num_threads=2) as loader:
        theirs = np.concatenate([windows(images) for _ in range(4) for images, _ in loader])
    with Loader(dataset, 100, shuffle=True, seed=11, num_workers=0) as own:
        ours = np.concatenate([windows(images) for _ in range(4) for images, _ in own])
    assert len(theirs) == len(ours) == 2000
    assert distance(theirs[:, 0] * theirs[:, 1], ours[:, 0] * ours[:, 1]) < 1
    assert distance(np.log(theirs[:, 0] / theirs[:, 1]), np.log(ours[:, 0] / ours[:, 1])) < 1
    flips = np.array([theirs[:, 2].sum(), ours[:, 2].sum()])
    # The square of chi with one degree of freedom, which one pair in a thousand exceeds.
    assert (np.diff(flips) ** 2 / flips.sum()).item() < 10.83
    narrow = ours[:, 0] * 0.9
    assert distance(narrow * ours[:, 1], ours[:, 0] * ours[:, 1]) > 1
