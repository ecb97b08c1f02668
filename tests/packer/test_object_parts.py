"""Parts need no shared folder: an object store will do, with a spool on each machine."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.objects.datasets import behind, objects_of
from helpers.objects.faults import Rule, Status
from helpers.objects.fixtures import WRITABLE
from helpers.objects.servers import Server
from helpers.packing import TWO_A_SHARD as OPTIONS
from helpers.support import image_set, tree

from packtrain import PackOptions, merge, pack, pack_status, verify
from packtrain._packer import object_output
from packtrain._packer import shard as shard_module
from packtrain._packer.markers import Marker
from packtrain._packer.object_output import spooled
from packtrain._storage.remote.urls import Url
from packtrain.errors import OutputConflict, PackError, RemoteError, ShardFailed

COUNT = 12


@pytest.fixture
def listing(tmp_path: Path) -> Path:
    return image_set(tmp_path / "images", COUNT)


@pytest.mark.complete
def test_parts_of_changing_numbers_give_the_bytes_of_one_local_run(
    store: Server, listing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Notes are fetched in parts, as if they were large, and the plan as a whole.
    monkeypatch.setattr(object_output, "_SMALL_BYTES", 2000)
    url = store.fresh()
    with pytest.raises(OutputConflict, match=r" has no plan.json, .*`packtrain pack LIST"):
        pack_status(url)
    report = pack(listing, url, OPTIONS, part="2/3")
    assert (str(report.dataset), report.packed, report.missing) == (url, 2, 4)
    with pytest.raises(OutputConflict, match="seed: 0 there, 1 asked for"):
        pack(listing, url, PackOptions(store=OPTIONS.store, shard_size=384, seed=1), part="1/3")
    with pytest.raises(PackError, match="4 of 6 shards are missing"):
        merge(url)

    with monkeypatch.context() as patch:
        patch.setattr(shard_module, "_write", _fail)
        with pytest.raises(ShardFailed):
            pack(listing, url, OPTIONS, part="4/6")
    status = pack_status(url)
    assert (status.done, [one.shard for one in status.failed]) == (2, ["train-000003.tar"])
    assert (status.under_way, status.array, str(status.dataset)) == ((), "1,3-4,6", url)

    for part in ("1/2", "2/2", "2/2"):
        report = pack(listing, url, OPTIONS, part=part)
    assert (report.packed, report.resumed, report.missing) == (0, 3, 0)
    assert pack_status(url).done == 6
    assert merge(url).records == COUNT
    assert merge(url).complete_before
    pack(listing, tmp_path / "local", OPTIONS)
    assert objects_of(store, url) == tree(tmp_path / "local")
    assert verify(url).problems == ()
    assert pack_status(url).complete
    assert pack(listing, url, OPTIONS, part="1/2").complete_before


def _fail(*_: object) -> None:
    raise ShardFailed("cannot read a.jpg: Input/output error")


@pytest.fixture
def half(store: Server, listing: Path) -> str:
    """The address of a dataset of which the first of two parts is packed."""
    return str(pack(listing, store.fresh(), OPTIONS, part="1/2").dataset)


def marker_of(host: str) -> bytes:
    """The marker that a part leaves while it packs a shard on another machine."""
    return replace(Marker.mine("part 2/2"), host=host, process=f"{0:012}-1-2").dump()


@pytest.mark.complete
def test_what_is_listed_and_never_there_is_an_error(store: Server, half: str) -> None:
    rule = Rule(Status(404), holds="train-000000.tar.npz", method="GET", times=None)
    with behind(store, rule), pytest.raises(RemoteError, match=f"^{half} is .* lists what cannot be read"):
        pack_status(half)


@pytest.mark.complete
@pytest.mark.parametrize(("name", "times"), [("train-000001.tar.packing", None), ("train-000000.tar.npz", 1)])
def test_what_others_remove_between_a_listing_and_its_reading_is_no_error(
    store: Server, half: str, name: str, times: int | None
) -> None:
    store.put(f"{store.key(half)}/parts/train-000001.tar.packing", marker_of("elsewhere"))
    with behind(store, Rule(Status(404), holds=name, method="GET", times=times)) as between:
        assert pack_status(half).done == 3
        assert between.traffic().faults


@pytest.mark.complete
def test_a_shard_whose_note_did_not_arrive_is_packed_again(store: Server, half: str, listing: Path) -> None:
    note = "parts/train-000001.tar.npz"
    with behind(store, Rule(Status(403), holds=note, method="PUT", times=1)) as between:
        assert pack(listing, half, OPTIONS, part="2/2").missing == 0
        assert between.traffic().faults
    assert note in objects_of(store, half)
    assert merge(half).records == COUNT


@pytest.mark.complete
def test_a_note_does_not_outlive_the_shard_that_it_is_about(store: Server, listing: Path, tmp_path: Path) -> None:
    url, image = store.fresh(), listing.parent / "image 3.jpg"
    data = image.read_bytes()
    image.write_bytes(b"no image")
    report = pack(listing, url, OPTIONS, part="1/1", max_rejects=1)
    assert (report.rejects, report.missing) == (1, 0)
    image.write_bytes(data)
    before = objects_of(store, url)
    with (
        behind(store, Rule(Status(403), holds="tar.npz", method="PUT", times=None)),
        pytest.raises(ShardFailed, match="npz: the store does not let these credentials write it"),
    ):
        pack(listing, url, OPTIONS, retry_rejects=True)
    after = objects_of(store, url)
    (shard,) = (name for name in before if name.endswith(".tar") and after[name] != before[name])
    assert f"parts/{shard}.npz" not in after
    pack(listing, url, OPTIONS, retry_rejects=True)
    merge(url)
    pack(listing, tmp_path / "local", OPTIONS)
    assert objects_of(store, url) == tree(tmp_path / "local")


@pytest.mark.complete
def test_a_failure_is_not_taken_for_what_a_dead_machine_has_begun(
    store: Server, half: str, listing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(f"{store.key(half)}/parts/train-000001.tar.packing", marker_of("gone"))
    assert [one.host for one in pack_status(half).under_way] == ["gone"]
    monkeypatch.setattr(shard_module, "_write", _fail)
    with pytest.raises(ShardFailed):
        pack(listing, half, OPTIONS, part="2/6")
    status = pack_status(half)
    assert ([one.shard for one in status.failed], status.under_way) == (["train-000001.tar"], ())


@pytest.mark.complete
def test_a_part_that_ends_after_the_merge_leaves_nothing(
    store: Server, half: str, listing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = shard_module._write

    def others_are_faster(*arguments: Any) -> Any:
        monkeypatch.setattr(shard_module, "_write", write)
        pack(listing, half, OPTIONS, part="2/2")
        merge(half)
        return write(*arguments)

    monkeypatch.setattr(shard_module, "_write", others_are_faster)
    assert pack(listing, half, OPTIONS, part="2/2").complete_before
    pack(listing, tmp_path / "local", OPTIONS)
    assert objects_of(store, half) == tree(tmp_path / "local")


@pytest.mark.complete
@pytest.mark.parametrize("store", WRITABLE, indirect=True)
def test_who_may_not_remove_anything_finishes_a_dataset(
    store: Server, half: str, listing: Path, tmp_path: Path
) -> None:
    pack(listing, half, OPTIONS, part="2/2")
    pack(listing, tmp_path / "local", OPTIONS)
    # A list of what is to be removed is posted; on Google's store, each object is removed by a request of its own.
    rules = [Rule(Status(403), method=method, times=None) for method in ("POST", "DELETE")]
    with behind(store, *rules) as between:
        merge(half)
        assert merge(half).complete_before
        assert between.traffic().faults
    there = objects_of(store, half)
    assert {name: data for name, data in there.items() if not name.startswith("parts/")} == tree(tmp_path / "local")


@pytest.mark.complete
def test_messages_name_the_store_and_not_the_spool(store: Server, half: str, listing: Path) -> None:
    with pytest.raises(PackError, match=f"3 of 6 shards are missing from {half}: "):
        merge(half)
    with pytest.raises(OutputConflict, match=f"^{half} was packed by another plan.*, or remove it$"):
        pack(listing, half, PackOptions(store=OPTIONS.store, shard_size=384, seed=1), part="1/3")
    store.put(f"{store.key(half)}/parts/holiday.txt", b"mine")
    with pytest.raises(OutputConflict, match=f"^{half}/parts/holiday.txt belongs to no shard"):
        merge(half)
    with pytest.raises(OutputConflict, match=f"^{half}/none has no plan.json, so nothing was packed"):
        pack_status(f"{half}/none")


@pytest.mark.complete
def test_status_and_merge_of_a_finished_dataset_leave_its_index_alone(store: Server, half: str, listing: Path) -> None:
    pack(listing, half, OPTIONS, part="2/2")
    merge(half)
    with behind(store) as between:
        assert pack_status(half).complete
        assert merge(half).complete_before
        requests = [each.request for each in between.traffic().exchanges]
    assert requests
    assert not [each for each in requests if "/index/" in each.path or each.method == "PUT"]


def test_a_machine_without_a_spool_makes_its_own_and_removes_it(store: Server, half: str, tmp_path: Path) -> None:
    url, spools = Url.parse(half), tmp_path / "own"
    with spooled(url, spools) as made:
        output = pickle.loads(pickle.dumps(made))
    with output.arrive("") as there:
        assert (there.folder / "parts").is_dir()
        # Somebody asks on this machine how far it is.
        with spooled(url, spools):
            assert list(there.folder.parent.glob("*"))
        assert there.folder.is_dir()
    assert not list(spools.iterdir())
