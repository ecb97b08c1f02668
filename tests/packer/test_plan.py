"""Laws of plans: every entry has one place, shards share the places evenly, and a plan loads as it was dumped."""

from __future__ import annotations

import hashlib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.packing import image_list, plan_of
from hypothesis import given
from hypothesis import strategies as st

from packtrain import PackOptions
from packtrain._core.document import dump_document, load_document
from packtrain._core.files import MiB
from packtrain._core.options import LabelSpec, StoreOptions
from packtrain._core.schema import image_field
from packtrain._packer.lists.image_list import ImageList
from packtrain._packer.options import usual_shard_bytes
from packtrain._packer.plan import Plan, PlannedColumn, PlannedShard
from packtrain._packer.planning import outline_plan, plan_shards
from packtrain.errors import CorruptFile, ListError, OutputConflict

seeds = st.none() | st.integers(-(2**70), 2**70)


@given(count=st.integers(1, 300), per_shard=st.integers(1, 40), seed=seeds)
def test_every_entry_is_in_exactly_one_shard(count: int, per_shard: int, seed: int | None) -> None:
    plan = plan_of(image_list(count), per_shard, seed=seed)
    placed = np.concatenate([plan.ordinals(number) for number in range(len(plan.shards))]).tolist()
    assert sorted(placed) == list(range(count))
    if seed is None:
        assert placed == sorted(placed), "without a seed, places are in list order"


@given(count=st.integers(1, 300), per_shard=st.integers(1, 40))
def test_as_few_shards_as_the_size_allows_share_the_places_evenly(count: int, per_shard: int) -> None:
    shards = plan_of(image_list(count), per_shard).shards
    assert (len(shards) - 1) * per_shard < count <= len(shards) * per_shard
    assert max(shard.count for shard in shards) - min(shard.count for shard in shards) <= 1
    ends = [shard.first + shard.count for shard in shards]
    assert [shard.first for shard in shards] == [0, *ends[:-1]]
    assert ends[-1] == count


def test_a_record_larger_than_a_shard_has_a_shard_of_its_own() -> None:
    images = image_list(3)
    options = PackOptions(store=StoreOptions("raw", resize="100x100"), shard_size=1)
    assert [shard.count for shard in plan_shards(outline_plan(images, options), images).shards] == [1, 1, 1]


class TestUsualSize:
    """Without a size that is asked for, only the amount of data decides, so that the same files give the same bytes."""

    @given(total=st.integers(0, 1 << 50))
    def test_there_are_64_shards_unless_they_would_be_too_small_or_too_large(self, total: int) -> None:
        size = usual_shard_bytes(total)
        assert 16 * MiB <= size <= 512 * MiB
        if 16 * MiB < size < 512 * MiB:
            assert 64 * (size - 1) < total <= 64 * size
        elif size == 16 * MiB:
            assert total <= 64 * size
        else:
            assert total > 63 * size

    def test_a_list_is_planned_by_the_estimate_of_all_its_records(self) -> None:
        images = image_list(10_000)
        options = PackOptions(store=StoreOptions("raw", resize="256x256"))
        plan = plan_shards(outline_plan(images, options), images)
        assert plan.shard_bytes == usual_shard_bytes(10_000 * 256 * 256 * 3)
        assert len(plan.shards) in (64, 65)


class TestRecordSize:
    """The size of records is not known beforehand: it is estimated from files."""

    def images(self, folder: Path, sizes: list[int | None]) -> ImageList:
        """A list of files with these sizes; None for a missing one."""
        for number, size in enumerate(sizes):
            if size is not None:
                (folder / f"{number}").write_bytes(bytes(size))
        return ImageList(
            b"".join(b"%d 0\n" % number for number in range(len(sizes))), LabelSpec(), name="set", root=folder
        )

    def counts(self, images: ImageList, shard_bytes: int) -> list[int]:
        options = PackOptions(store=StoreOptions("verbatim"), shard_size=shard_bytes)
        return [shard.count for shard in plan_shards(outline_plan(images, options), images).shards]

    def test_it_is_the_mean_of_the_files_that_are_there(self, tmp_path: Path) -> None:
        images = self.images(tmp_path, [100, None, 300, 200])
        assert self.counts(images, 2 * 200) == [2, 2]
        assert self.counts(images, 2 * 200 - 1) == [1, 1, 1, 1]

    def test_empty_files_do_not_divide_by_zero(self, tmp_path: Path) -> None:
        assert self.counts(self.images(tmp_path, [0, 0]), 1) == [1, 1]

    def test_without_any_file_the_root_is_suspected(self, tmp_path: Path) -> None:
        words = r"be read\. First: /.*: No such file or directory\. Relative paths start from /.* \(`root`\)"
        with pytest.raises(ListError, match=words):
            self.counts(self.images(tmp_path, [None, None]), 1)


@pytest.mark.complete
@given(
    count=st.integers(1, 30),
    seed=seeds,
    classes=st.none() | st.lists(st.text(), min_size=1).map(tuple),
    name=st.text("abc-_", min_size=1),
)
def test_a_plan_loads_as_it_was_dumped(
    tmp_path_factory: pytest.TempPathFactory, count: int, seed: int | None, classes: Any, name: str
) -> None:
    plan = plan_of(image_list(count), 7, seed=seed)
    shards = tuple(replace(shard, name=shard.name.replace("set", name)) for shard in plan.shards)
    plan = replace(plan, classes=classes, name=name, shards=shards)
    folder = tmp_path_factory.mktemp("plan")
    (folder / "plan.json").write_bytes(plan.dump())
    assert Plan.load(folder) == plan
    assert plan.sha256 == hashlib.sha256((folder / "plan.json").read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "change",
    [{"store": {"store": "crop"}}, {"labels": "text"}, {"shards": [{"name": "a"}]}, {"shards": 3}, {"classes": 3}],
    ids=str,
)
def test_a_plan_with_a_right_checksum_and_wrong_content_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(plan_of(image_list(3), 2).dump())
    path.write_bytes(dump_document(load_document(path, newest=1) | change))
    with pytest.raises(CorruptFile, match=r"plan\.json is damaged: \w+"):
        Plan.load(tmp_path)


OTHERS: dict[str, Any] = {
    "name": "other",
    "format": "lmdb",
    "fields": (image_field(StoreOptions("raw", resize="3x3")),),
    "labels": LabelSpec("float"),
    "classes": ("cat",),
    "columns": (PlannedColumn("image", "path", by_path=True),),
    "list_sha256": "0" * 64,
    "lines": 4,
    "entries": 4,
    "seed": None,
    "shard_bytes": 5,
    "encoder": "another Pillow",
    "written_by": "packtrain 0.0",
    "shards": (PlannedShard("set-000000.tar", 0, 3),),
}
SETTLED = ("written_by", "shards")


@pytest.mark.parametrize("name", [field.name for field in fields(Plan)])
def test_plans_are_for_the_same_dataset_unless_a_term_differs(name: str) -> None:
    plan = plan_of(image_list(3), 1)
    other = replace(plan, **{name: OTHERS[name]})
    assert other != plan
    if name in SETTLED:
        plan.require_same(other, Path("/out"))
    else:
        term = {"fields": "resize", "columns": "column of image"}.get(name, name)
        with pytest.raises(
            OutputConflict, match=rf"^/a b was .*\({term}: [^;]+ there, [^;]+ asked for\).*`rm -r '/a b'`$"
        ):
            plan.require_same(other, Path("/a b"))
