"""Laws of arguments: torch's mean what they mean there, wrong ones are named, and what is set takes effect."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import pydoc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.batching import Fixed, Numbers
from helpers.support import image_set, packed, param_id, soon
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate, random_split

import packtrain
import packtrain.orders
import packtrain.transforms
from packtrain import ImageDataset, Loader, PackedDataset, concat, open_dataset
from packtrain._readers.loader.loader import CommonOptions
from packtrain.dali import DaliLoader
from packtrain.errors import LoaderError, UsageError
from packtrain.orders import BlockShuffled, Order, Sequential, Shuffled, Weighted
from packtrain.transforms import CenterCrop, Compose, RandomHorizontalFlip

# As callers without a type checker see it.
unchecked: Any = packtrain
transforms: Any = packtrain.transforms
orders: Any = packtrain.orders
IMAGES = 12
ITSELF = list


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arguments")
    return packed(image_set(folder / "images", IMAGES), folder / "out", "tar")


def loader_of(dataset: Any = None, batch: int = 4, **options: Any) -> Loader:
    dataset = Numbers(10) if dataset is None else dataset
    return Loader(dataset, batch, **{"num_workers": 0, "multiprocessing_context": "fork", **options})


class TestTorchs:
    def test_the_order_is_that_of_the_rows_unless_shuffled(self) -> None:
        theirs = DataLoader(Numbers(10), 4)
        assert [labels.tolist() for _, labels in loader_of()] == [labels.tolist() for _, labels in theirs]
        assert len(list(loader_of(shuffle=None))) == 3
        assert torch.cat([labels for _, labels in loader_of(shuffle=True, seed=1)]).tolist() != list(range(10))

    def test_a_sampler_and_shuffle_contradict_each_other(self) -> None:
        for sampler in ([1, 2], Shuffled(10)):
            with pytest.raises(UsageError, match="either sampler or shuffle=True"):
                loader_of(sampler=sampler, shuffle=True)
            assert len(loader_of(sampler=sampler, shuffle=False)) > 0

    def test_numpys_integers_are_integers(self) -> None:
        loader = loader_of(
            batch=np.int64(4),  # type: ignore[arg-type]
            seed=np.uint32(7),
            num_workers=np.int8(0),
            prefetch_factor=np.int16(2),
            rank=np.int64(1),
            world_size=np.int64(2),
        )
        loader.set_epoch(np.int64(3))  # type: ignore[arg-type]
        values = [loader.batch_size, *loader.state_dict().values(), loader.rank, loader.world_size]
        assert all(type(value) in (int, str) for value in values)
        assert loader.sample(np.int64(2))[1] == 2  # type: ignore[arg-type]

    def test_workers_after_close_see_what_has_changed_in_a_dataset(self) -> None:
        dataset = Fixed((torch.zeros(1), 1), (torch.zeros(1), 2))
        with loader_of(dataset, 2, num_workers=1) as loader:
            ((images, _),) = loader
            loader.close()
            dataset.samples = tuple((torch.ones(2), label) for _, label in dataset.samples)
            ((others, _),) = loader
        assert (images.shape, others.shape) == ((2, 1), (2, 2))

    @pytest.mark.complete
    def test_waiting_longer_than_the_timeout_is_an_error(self) -> None:
        with loader_of(Sleeping(), 1, num_workers=1, timeout=1) as loader, soon(20):
            # The second time, that row is the first one, which shows what a batch looks like.
            for _ in range(2):
                loader.load_state_dict(loader.state_dict())
                with pytest.raises(LoaderError, match="within timeout=1 seconds; worker 0 is at row 1"):
                    list(loader)
                assert (loader.epoch, loader.remaining) == (0, 1)
            assert multiprocessing.active_children() == []
        with loader_of(Sleeping(rows=1), 1, num_workers=1, timeout=30) as loader:
            assert len(list(loader)) == 1

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"batch_sampler": [[1]]}, "batch_sampler=.*: Loader does not have this argument; give sampler="),
            ({"in_order": False}, "in_order=False: Loader .* batches always come in order"),
            ({"transform": CenterCrop(4)}, r"transform=CenterCrop.*: Loader .* give dataset.with_transform\("),
            ({"generator": torch.Generator()}, r"give seed=generator.initial_seed\(\)"),
            ({"persistent_workers": False}, r"persistent_workers=False: Loader .* until loader.close\(\)"),
            ({"headspace": True}, r"with loader.headspace\(\)"),
            ({"keep_generation": 60}, "set dataset.keep_generation"),
            ({"pin_memory_device": "cuda"}, "pin_memory_device='cuda': Loader .* give device="),
            ({"batchsize": 3}, r"Loader has no argument 'batchsize'; did you mean 'batch_size'\?"),
            ({"schuffle": True}, r"no argument 'schuffle'; did you mean 'shuffle'\?"),
            ({"qqq": 1}, "no argument 'qqq'$"),
        ],
    )
    def test_what_a_loader_does_not_have_is_refused_with_advice(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(UsageError, match=message):
            loader_of(**options)

    @pytest.mark.parametrize("kind", [Loader, DaliLoader])
    def test_help_shows_every_argument(self, kind: type[Loader]) -> None:
        shown = pydoc.plain(pydoc.render_doc(kind))
        for name in CommonOptions.__annotations__:
            assert name in inspect.signature(kind).parameters and f"{name}:" in shown
        assert "**" not in str(inspect.signature(kind))

    def test_common_options_are_arguments_of_the_same_type(self) -> None:
        parameters = inspect.signature(Loader).parameters
        assert {name: parameters[name].annotation for name in CommonOptions.__annotations__} == {
            name: each.__forward_arg__ for name, each in CommonOptions.__annotations__.items()
        }

    def test_torchs_defaults_may_be_spelled_out(self) -> None:
        options: dict[str, Any] = {"batch_sampler": None, "in_order": True, "pin_memory_device": "", "generator": None}
        assert len(list(loader_of(**options, timeout=0, prefetch_factor=None, persistent_workers=True))) == 3


class Sleeping(Numbers):
    """A dataset whose second row takes very long."""

    def __init__(self, rows: int = 2) -> None:
        super().__init__(rows)

    def __getitem__(self, row: int) -> Any:
        if row == 1:
            time.sleep(1000)
        return super().__getitem__(row)


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([])


class TestWrongTypes:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"dataset": "train"}, "dataset='train': expected a dataset; open_dataset opens one"),
            ({"dataset": Path("train")}, "dataset=PosixPath.*: expected a dataset"),
            ({"dataset": 8}, "an object of type int is not a dataset"),
            ({"dataset": None}, "NoneType"),
            ({"dataset": Endless()}, "Endless"),
            ({"batch_size": 0}, "batch_size=0: expected a whole number, at least 1"),
            ({"batch_size": 2.0}, "batch_size=2.0"),
            ({"batch_size": True}, "batch_size=True"),
            ({"prefetch_factor": 0}, "prefetch_factor=0: expected a whole number, at least 1"),
            ({"num_workers": -1}, "num_workers=-1: expected a whole number, at least 0"),
            ({"num_workers": "all"}, "num_workers='all'"),
            ({"seed": "0"}, "seed='0': expected a whole number"),
            ({"seed": True}, "seed=True: expected a whole number"),
            ({"on_error": "ignore"}, "on_error='ignore': expected one of raise, skip"),
            ({"multiprocessing_context": "thread"}, "multiprocessing_context='thread': expected one of .*spawn"),
            ({"multiprocessing_context": 5}, "multiprocessing_context=5: expected one of .*spawn"),
            ({"fields": "row"}, "fields='row': expected a tuple with any of row, "),
            ({"fields": 3}, "fields=3: expected a tuple"),
            ({"fields": (3,)}, "fields: 3: expected any of"),
            ({"fields": ("lines",)}, "fields: 'lines': expected any of row, line, position, path"),
            ({"fields": ("path",)}, "fields: 'path': only packtrain datasets have it"),
            ({"fields": ("row", "row")}, "fields: 'row' is there twice"),
            ({"collate_fn": "default"}, "collate_fn="),
            ({"worker_init_fn": 1}, "worker_init_fn="),
            ({"shuffle": "x"}, "shuffle='x': expected True or False"),
            ({"drop_last": "x"}, "drop_last='x': expected True or False"),
            ({"pin_memory": "x"}, "pin_memory='x': expected True or False"),
            ({"timeout": -1}, "timeout=-1: expected a number of seconds, at least 0"),
            ({"timeout": "x"}, "timeout='x': expected a number of seconds"),
            ({"sampler": 3}, "a sampler must be iterable; an object of type int is not"),
            ({"sampler": iter([1])}, "list_iterator can be iterated only once"),
            ({"rank": 0}, "give both rank and world_size, or neither"),
            ({"world_size": 2}, "give both rank and world_size, or neither"),
            ({"rank": 2, "world_size": 2}, "rank=2: expected 0 to 1"),
            ({"rank": -1, "world_size": 2}, "rank=-1"),
            ({"rank": "0", "world_size": 2}, "rank='0'"),
            ({"rank": 0, "world_size": 0}, "world_size=0: expected a whole number, at least 1"),
        ],
        ids=param_id,
    )
    def test_of_a_loader(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(UsageError, match=message):
            Loader(**{"dataset": Numbers(10), "batch_size": 2, "num_workers": 0, **options})

    @pytest.mark.parametrize(
        ("use", "message"),
        [
            (lambda ds: unchecked.concat(ds), r"datasets=PackedDataset.*: expected a list of datasets"),
            (lambda ds: unchecked.concat([ds, 3]), "expected a list of datasets"),
            (lambda ds: unchecked.concat(3), "datasets=3: expected a list of datasets"),
            (lambda ds: ds["a"], "row='a': expected a whole number"),
            (lambda ds: ds[1.5], "row=1.5: expected a whole number"),
            (lambda ds: ds[1:3], r"row=slice\(1, 3, None\): .*; subset\(range"),
            (lambda ds: ds.record(None), "row=None: expected a whole number"),
            (lambda ds: ds.image("1"), "row='1': expected a whole number"),
            (lambda ds: ds.label(1.0), "row=1.0: expected a whole number"),
            (lambda ds: ds.filename("c"), "row='c': expected a whole number"),
            (lambda ds: ds.line("b"), "row='b': expected a whole number"),
            (lambda ds: ds.subset(3), "rows=3: expected whole numbers, or a boolean for each of the 12 rows"),
            (lambda ds: ds.subset("12"), "rows='12': expected whole numbers"),
            (lambda ds: ds.subset([[1], [2, 3]]), "rows=.*: expected whole numbers"),
            (lambda ds: setattr(ds, "target_transform", 3), "target_transform=3: expected a function"),
            (lambda ds: unchecked.open_dataset(ds.store.path, decoder=None), "decoder=None: expected one of auto, "),
            (lambda ds: unchecked.open_dataset(ds.store.path, io=3), "io=3: expected one of auto, "),
            (lambda ds: unchecked.open_dataset(ds.store.path, stage=True), "stage=True: expected a folder"),
            (lambda ds: unchecked.open_dataset(ds.store.path, check="x"), "check='x': expected True, False or"),
            (lambda ds: unchecked.open_dataset(ds.store.path, scaled=2), "scaled=2: expected True or False"),
            (lambda ds: unchecked.open_dataset(ds.store.path, None, 4), "target_transform=4: expected a function"),
            (lambda ds: unchecked.open_dataset(3), "path=3: expected the folder of a packed dataset"),
        ],
    )
    def test_of_a_dataset(self, folder: Path, use: Callable[[Any], Any], message: str) -> None:
        with pytest.raises(UsageError, match=message):
            use(open_dataset(folder))

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: transforms.Compose(3), "transforms=3: expected a list of transforms"),
            (
                lambda: transforms.Compose([CenterCrop]),
                r"CenterCrop is a class of transforms: give CenterCrop\(\.\.\.\)",
            ),
            (lambda: transforms.Compose("flip"), "transforms='flip': expected a list of transforms"),
            (lambda: transforms.RandomHorizontalFlip("a"), "p='a': expected a probability"),
            (lambda: transforms.RandomHorizontalFlip(None), "p=None: expected a probability"),
            (lambda: transforms.CenterCrop(True), "size=True: expected 1 or 2 whole numbers"),
            (lambda: transforms.RandomCrop(4, pad_if_needed="x"), "pad_if_needed='x': expected True or False"),
            (lambda: transforms.Resize("4"), "size='4': expected"),
            (lambda: orders.Weighted("x"), "weights='x': expected one number per row"),
            (lambda: orders.Weighted([1], "x"), "samples='x': expected a whole number"),
            (lambda: orders.Sequential("x"), "rows='x': expected a whole number"),
            (lambda: orders.Shuffled(None), "rows=None: expected a whole number"),
            (lambda: orders.BlockShuffled(Numbers(3), block="x"), "block='x': expected a whole number"),
        ],
    )
    def test_of_transforms_and_orders(self, make: Callable[[], Any], message: str) -> None:
        with pytest.raises(UsageError, match=message):
            make()


class Reversed(Order):
    """A user's own order, which says nothing about its dataset."""

    def __len__(self) -> int:
        return 10

    def rows(self, key: int, start: int, stop: int) -> Any:
        return 9 - np.arange(start, stop)


class TestOrders:
    @pytest.mark.parametrize("order", [Sequential(10), Shuffled(500), Weighted([1, 1]), BlockShuffled(Numbers(5))])
    def test_of_another_dataset_are_refused(self, order: Order) -> None:
        name = type(order).__name__
        with pytest.raises(UsageError, match=rf"sampler={name} was made for a dataset of \d+ rows, .* has 300"):
            loader_of(Numbers(300), sampler=order)

    def test_of_ones_own_need_not_say(self) -> None:
        assert torch.cat([labels for _, labels in loader_of(sampler=Reversed())]).tolist() == list(range(10))[::-1]

    @pytest.mark.parametrize(
        ("saved", "loaded", "message"),
        [
            (BlockShuffled(Numbers(40), block=4), BlockShuffled(Numbers(40), block=8), "block=4.*block=8"),
            (BlockShuffled(Numbers(40), window=2), BlockShuffled(Numbers(40), window=3), "window=2.*window=3"),
            (Weighted(range(40)), Weighted(range(1, 41)), r"weights=\d+.*weights=\d+"),
            (Weighted([1] * 40, 30), Weighted([1] * 40, 31), "30 positions .* has 31"),
        ],
    )
    def test_states_hold_all_that_decides_them(self, saved: Order, loaded: Order, message: str) -> None:
        first = loader_of(Numbers(40), sampler=saved, seed=1)
        next(iter(first))
        state = first.state_dict()
        with pytest.raises(UsageError, match=message):
            loader_of(Numbers(40), sampler=loaded, seed=1).load_state_dict(state)
        loader_of(Numbers(40), sampler=saved, seed=1).load_state_dict(state)

    def test_states_know_a_dataset_that_was_packed_in_another_order(self, tmp_path: Path) -> None:
        listing = image_set(tmp_path / "images", IMAGES)
        ours, other = (
            open_dataset(packed(listing, tmp_path / name, "tar", seed=seed)) for name, seed in (("a", 1), ("b", 2))
        )
        state = loader_of(ours, sampler=BlockShuffled(ours)).state_dict()
        with pytest.raises(UsageError, match="places="):
            loader_of(other, sampler=BlockShuffled(other)).load_state_dict(state)


class Any3(Numbers):
    """A dataset of dicts."""

    def __getitem__(self, row: int) -> Any:
        return {"row": row, "text": "x" * row}


class TestDatasetsOfAnything:
    @pytest.mark.parametrize("workers", [0, 1])
    def test_collate_fn_gets_what_the_dataset_gives(self, workers: int) -> None:
        triples = TensorDataset(torch.arange(6), torch.arange(6) * 2, torch.arange(6) * 3)
        for dataset in (triples, Any3(6), list(range(6)), [[1, 2, 3, 4]] * 6):
            theirs = list(DataLoader(dataset, 4, collate_fn=ITSELF))  # type: ignore[arg-type]
            with loader_of(dataset, num_workers=workers, collate_fn=ITSELF) as loader:
                assert repr(list(loader)) == repr(theirs)
            assert repr(loader.sample(3)) == repr(theirs[0][3])

    def test_fields_follow_in_a_tuple(self) -> None:
        (batch,) = loader_of(Any3(2), collate_fn=ITSELF, fields=("position", "row"), shuffle=True, seed=3)
        assert [(position, row) for _, position, row in batch] == [(0, batch[0][0]["row"]), (1, batch[1][0]["row"])]
        triples = TensorDataset(torch.arange(2), torch.arange(2), torch.arange(2))
        (batch,) = loader_of(triples, collate_fn=default_collate, fields=("row",))
        assert [column.tolist() for column in batch] == [[0, 1]] * 4

    @pytest.mark.parametrize("workers", [0, 1])
    @pytest.mark.parametrize(
        ("dataset", "what"),
        [
            (Any3(4), "an object of type dict"),
            (TensorDataset(torch.zeros(4)), "1 items"),
            (TensorDataset(torch.zeros(4), torch.zeros(4), torch.zeros(4)), "3 items"),
            ([1, 2, 3, 4], "an object of type int"),
        ],
        ids=["dict", "one", "three", "number"],
    )
    def test_without_collate_fn_the_error_says_so(self, dataset: Any, what: str, workers: int) -> None:
        with loader_of(dataset, num_workers=workers) as loader:
            for action in (lambda: list(loader), lambda: loader.sample(0)):
                with pytest.raises(UsageError, match=f"{what} for a row, where .* was expected: give a collate_fn"):
                    action()


class TestTransformsThatChange:
    @pytest.mark.parametrize("workers", [0, 1])
    def test_so_does_that_of_the_dataset_itself(self, folder: Path, workers: int) -> None:
        opened = open_dataset(folder, CenterCrop(4))
        for dataset in (opened, opened.subset(range(6)), concat([opened, opened])):
            with loader_of(dataset, num_workers=workers) as loader:
                batches = iter(loader)
                shapes = [next(batches)[0].shape[2:]]
                loader.dataset.transform = CenterCrop(5)
                shapes += {images.shape[2:] for images, _ in batches}
                shapes += {images.shape[2:] for images, _ in loader}
                assert shapes == [(4, 4), (4, 4), (5, 5)]
                if isinstance(dataset, PackedDataset):
                    dataset.target_transform = float
                    assert {labels.dtype for _, labels in loader} == {torch.float64}
            dataset.transform = CenterCrop(4)

    def test_subsets_keep_theirs(self, folder: Path) -> None:
        opened = open_dataset(folder, CenterCrop(4))
        part = opened.subset([1, 2])
        opened.transform = CenterCrop(5)
        assert (part[0][0].shape, opened.subset([1])[0][0].shape) == ((3, 4, 4), (3, 5, 5))
        assert part.transform is not opened.transform
        both = concat([part, opened])
        with pytest.raises(UsageError, match="different transforms"):
            _ = both.transform
        both.transform = None
        assert both[0][0].size == opened.image(1).size

    def test_a_foreign_dataset_has_its_own(self) -> None:
        with pytest.raises(UsageError, match="needs a packtrain dataset; an object of type Numbers has its own"):
            loader_of().transform = CenterCrop(4)

    def test_a_part_that_torch_made_is_told_what_to_write(self, folder: Path) -> None:
        dataset = open_dataset(folder)
        parts: Any = random_split(dataset, [0.5, 0.5])
        calls: list[Callable[[], Any]] = [
            lambda: setattr(Loader(parts[0], 2), "transform", CenterCrop(4)),
            lambda: Loader(parts[0], 2, fields=("path",)),
            lambda: concat([dataset, parts[0]]),
            lambda: packtrain.imagenet_loaders(dataset, parts[0], batch_size=2),
        ]
        for call in calls:
            with pytest.raises(
                UsageError, match=r"in place of torch's Subset, write dataset\.subset\(subset\.indices\)"
            ):
                call()
        train, other = (dataset.subset(part.indices) for part in parts)
        loader = Loader(train.with_transform(CenterCrop(4)), 4, fields=("path",), num_workers=0)
        assert sum(len(labels) for _, labels, _ in loader) + len(other) == len(dataset)

    def test_a_wrong_one_changes_nothing(self, folder: Path) -> None:
        loader = loader_of(open_dataset(folder, CenterCrop(4)))
        with pytest.raises(UsageError, match="is not a transform"):
            loader.transform = 3
        assert next(iter(loader))[0].shape == (4, 3, 4, 4)

    @pytest.mark.parametrize("name", ["batch_size", "dataset", "num_workers", "rank", "sampler", "skipped", "shuffl"])
    def test_nothing_else_can_be_set(self, name: str) -> None:
        loader = loader_of()
        with pytest.raises(UsageError, match=rf"loader\.{name} cannot be set: make another Loader"):
            setattr(loader, name, 3)

    def test_subclasses_have_attributes_of_their_own(self) -> None:
        class Named(Loader):
            def __init__(self, *arguments: Any, **options: Any) -> None:
                super().__init__(*arguments, **options)
                self.name = "train"

        loader = Named(Numbers(4), 2, num_workers=0)
        assert loader.name == "train" and len(list(loader)) == 2
        for name in ("batch_size", "shuffle", "rank"):
            with pytest.raises(UsageError, match="cannot be set"):
                setattr(loader, name, 3)


class TestWhatThingsSayOfThemselves:
    def test_a_loader(self, folder: Path) -> None:
        loader = loader_of(open_dataset(folder, CenterCrop(4)), seed=1, shuffle=True)
        loader.set_epoch(2)
        next(iter(loader))
        shown = repr(loader)
        for words in (str(folder), "12 rows", "CenterCrop", "batch_size=4", "Shuffled", "workers=0"):
            assert words in shown
        assert "rank 0 of 1, epoch 2, 4 samples handed out in it" in shown
        assert "list" in repr(loader_of(sampler=[1, 2]))

    def test_its_figures(self) -> None:
        loader = loader_of()
        assert "0 batches" in repr(loader.stats)
        list(loader)
        assert "3 batches, 10 samples" in repr(loader.stats)

    def test_datasets(self, folder: Path) -> None:
        opened = open_dataset(folder, Compose([CenterCrop(4), RandomHorizontalFlip()]))
        assert "transform=Compose( CenterCrop(size=(4, 4)) RandomHorizontalFlip(p=0.5) )" in repr(opened)
        assert repr(opened.subset([1, 2])).startswith(f"ImageDataset(2 rows of {os.fspath(folder)!r}, transform=Comp")
        assert repr(concat([opened, open_dataset(folder)])).endswith("several transforms)")
        others: list[ImageDataset] = [open_dataset(folder) for _ in range(5)]
        assert "and 2 more, transform=None" in repr(concat(others))


class TestLabels:
    def test_subsets_and_concatenations_have_targets(self, folder: Path) -> None:
        opened = open_dataset(folder, target_transform=str)
        part = opened.subset([5, 3, 3])
        for dataset in (opened, part, concat([part, opened, part]), concat([opened, opened]).subset([13, 2])):
            expected = [dataset.label(row) for row in range(len(dataset))]
            assert dataset.targets.tolist() == expected
            assert sum(map(len, loader_of(dataset, collate_fn=ITSELF, sampler=Weighted(dataset.targets + 1.0)))) > 0
        assert (part.classes, part.class_to_idx) == (opened.classes, opened.class_to_idx)
