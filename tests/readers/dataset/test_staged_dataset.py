"""A dataset that is opened where it was staged keeps its copy from being evicted, here and in every worker."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from helpers.staging.remote import BUCKET, installed
from helpers.staging.workers import InWorkers, leased, to_bytes, to_tensor
from helpers.support import START_METHODS, SUFFIXES, held, items, packed, tree
from helpers.versions import VERSIONS, changed_dataset
from torch.utils.data import DataLoader

from packtrain import Loader, PackedDataset, StageOptions, concat, open_dataset, stage, verify
from packtrain._readers.dataset.image_dataset import is_remote
from packtrain.errors import Leased, NoRoom
from packtrain.staging import entries, evict, pin

FOLDERS = ("segments", "layers", "dropped", "versions")


def captions_of(dataset: PackedDataset) -> list[str]:
    return [dataset[row].caption for row in range(len(dataset))]


@pytest.fixture
def place(memory_path: Path) -> Path:
    """A folder to stage to."""
    return memory_path


@pytest.fixture(scope="module")
def dataset(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(images, tmp_path_factory.mktemp("dataset") / "train", "tar")


class TestOpening:
    def test_it_reads_the_copy(self, images: Path, tmp_path: Path, place: Path, format_name: str) -> None:
        source = packed(images, tmp_path / "set", format_name)
        expected = [(image.tobytes(), label) for image, label in items(open_dataset(source))]
        opened = open_dataset(source, stage=place)
        (entry,) = entries(place)
        assert opened.store.path == entry.path
        for shard in source.glob(f"*{SUFFIXES[format_name]}"):
            shard.unlink()
        assert [(image.tobytes(), label) for image, label in items(opened)] == expected

    def test_a_name_or_options_say_where(self, dataset: Path, place: Path) -> None:
        by_name = open_dataset(dataset, stage=str(place))
        by_options = open_dataset(dataset, stage=StageOptions(to=place, budget=1 << 30))
        assert by_name.store.path == by_options.store.path != dataset
        (elsewhere := place / "elsewhere").mkdir()
        with pytest.raises(NoRoom):
            open_dataset(dataset, stage=StageOptions(to=elsewhere, budget=10))

    def test_without_it_nothing_is_staged(self, dataset: Path, place: Path) -> None:
        before = tree(dataset)
        items(open_dataset(dataset))
        assert entries(place) == []
        assert tree(dataset) == before


class TestLease:
    def test_as_long_as_the_dataset(self, dataset: Path, place: Path) -> None:
        opened = open_dataset(dataset, stage=place)
        with pytest.raises(Leased):
            evict(place, [entries(place)[0].id])
        items(opened)
        assert leased(place)
        del opened
        assert not leased(place)

    def test_as_long_as_what_was_made_of_it(self, dataset: Path, place: Path) -> None:
        opened = open_dataset(dataset, stage=place)
        views = concat([opened.subset([0, 3]), opened])
        loader = Loader(views.with_transform([to_bytes]), 2, num_workers=0)
        del opened
        assert leased(place)
        del views
        assert leased(place)
        del loader
        assert not leased(place)

    @START_METHODS
    def test_workers_that_are_left_alone_hold_it(self, dataset: Path, place: Path, method: str) -> None:
        """What the parent lets go of while they live is theirs still."""
        opened = open_dataset(dataset, to_tensor, stage=place)
        loader = DataLoader(opened, batch_size=1, num_workers=1, multiprocessing_context=method)
        batches = iter(loader)
        next(batches)
        assert opened.store._lease is not None
        opened.store._lease.close()
        assert leased(place)
        assert len(list(batches)) == 11
        del batches
        assert not leased(place)

    @START_METHODS
    def test_in_the_workers_of_our_loader(self, dataset: Path, place: Path, method: str) -> None:
        opened = open_dataset(dataset, stage=place)
        with Loader(
            opened.with_transform([InWorkers(place)]), 3, num_workers=2, multiprocessing_context=method
        ) as loader:
            del opened
            rows = torch.cat([torch.as_tensor(batch[0]) for batch in loader])
            assert os.getpid() not in rows[:, 0]
            assert rows[:, 1].all()
            assert not rows[:, 2].any()
            assert leased(place)
        del loader
        assert not leased(place)


def test_partly_staged_all_of_it_is_read(images: Path, tmp_path: Path, place: Path, format_name: str) -> None:
    source = packed(images, tmp_path / "set", format_name, shard_size=1)
    expected = [(image.tobytes(), label) for image, label in items(open_dataset(source))]
    stage(source, StageOptions(to=place)).lease.close()
    (entry,) = evict(place)
    opened = open_dataset(source, stage=StageOptions(to=place, budget=entry.bytes - 8192, partial=True))
    (entry,) = entries(place)
    assert 0 < entry.local_shards < entry.shards
    assert [(image.tobytes(), label) for image, label in items(opened)] == expected


class TestVersions:
    """A dataset that was changed: each segment and layer is staged as the dataset that it is."""

    @pytest.fixture
    def changed(self, images: Path, tmp_path: Path) -> Path:
        return changed_dataset(images, tmp_path)

    @pytest.fixture(params=["folder", "address"])
    def source(
        self, request: pytest.FixtureRequest, changed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> str:
        """The place of `changed`: its folder, or an address."""
        if request.param == "folder":
            return str(changed)
        installed(tmp_path / "store", monkeypatch).path(BUCKET).mkdir(parents=True)
        (tmp_path / "store" / "bucket" / "out").symlink_to(changed)
        return f"{BUCKET}/out"

    @pytest.mark.complete
    def test_a_copy_of_any_version_is_what_it_is(self, changed: Path, source: str, place: Path) -> None:
        for version in VERSIONS:
            there, copy = open_dataset(changed, version=version), open_dataset(source, stage=place, version=version)
            assert held(copy) == held(there)
            assert copy.targets.tolist() == there.targets.tolist()
        captions = captions_of(open_dataset(changed, fields=["caption"]))
        path = stage(source, place).path
        shutil.rmtree(changed)
        named = open_dataset(path, fields=["caption"])
        assert captions_of(named) == captions
        assert len(list(Loader(named, 5, num_workers=1))) == len(captions) // 5
        report = verify(path)
        assert (report.problems, report.orphans) == ((), ())

    def test_only_what_is_new_is_copied(self, changed: Path, source: str, place: Path) -> None:
        # A manifest is written anew, after all else is there.
        sizes = {name: len(data) for name, data in tree(changed, "manifest.json").items() if "manifest" not in name}
        new = {folder: sum(size for name, size in sizes.items() if name.startswith(folder)) for folder in FOLDERS}
        of_base = sum(sizes.values()) - sum(new.values()) - sizes["base.json"]
        copied = [stage(source, place, version=version).copied for version in VERSIONS]
        assert copied == [of_base, new["segments"], 0, new["layers"]]
        assert sorted(entry.state for entry in entries(place)) == ["complete"] * 4 + ["version"] * 4

    def test_nothing_of_it_is_evicted_while_it_is_open(self, source: str, place: Path) -> None:
        copy = pickle.loads(pickle.dumps(open_dataset(source, stage=place)))
        evict(place, force=True)
        assert [entry.state for entry in entries(place)].count("complete") == 4
        assert len(held(copy)) == len(copy)
        del copy
        (version,) = (entry.id for entry in entries(place) if entry.state == "version")
        pin(place, version)
        assert evict(place, force=True) == []
        pin(place, version, False)
        evict(place, force=True)
        assert entries(place) == []

    def test_what_names_it_is_kept_when_the_source_is_gone(self, changed: Path, source: str, place: Path) -> None:
        stage(source, place)
        shutil.rmtree(changed)
        evict(place, force=True)
        assert sorted(entry.state for entry in entries(place)) == ["complete"] * 4 + ["version"]

    def test_its_order_is_that_of_what_lies_at_the_address(self, source: str, place: Path) -> None:
        assert is_remote(open_dataset(source, stage=place)) == source.startswith(BUCKET)
