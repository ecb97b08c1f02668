"""Objects are asked for ahead of their turn, as many as fit into memory."""

from __future__ import annotations

import pytest

from packtrain._core.options import LabelSpec
from packtrain._packer import fetching
from packtrain._packer.fetching import ObjectsAhead
from packtrain._packer.lists.reader import read_list
from packtrain._storage.remote.urls import Url
from packtrain.errors import ListError, PackError, UsageError

MIB = 1 << 20


class Store:
    """Takes the place of an `ObjectStore`: all objects have one size."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.asked: list[str] = []

    def read(self, url: Url, most: int) -> bytes:
        self.asked.append(str(url))
        return bytes(self.size)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("size", "most"), [(1, 48), (16 * MIB, 10), (64 * MIB, 8)])
def test_few_large_objects_wait_in_memory_and_many_small_ones(
    monkeypatch: pytest.MonkeyPatch, size: int, most: int
) -> None:
    store = Store(size)
    monkeypatch.setattr(fetching, "ObjectStore", lambda **_: store)
    addresses = [f"s3://bucket/{number}" for number in range(120)]
    with ObjectsAhead(addresses) as ahead:
        for number, address in enumerate(addresses[:60], 1):
            assert len(ahead.read(address)) == size
            # At first nobody knows how large they are.
            assert len(ahead._asked) < (most if number > 40 else 48)
        assert len(ahead._asked) >= most - 4
    assert len(store.asked) == len(set(store.asked))


def test_a_list_that_does_not_fit_on_the_disk_is_an_error_that_names_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "ObjectStore", lambda: Store(1))
    name = 300 * "a"
    with (
        pytest.raises(PackError, match=f"cannot write to .*/{name}: File name too long"),
        fetching.fetched_list(Url("s3", "bucket", name)),
    ):
        pass


def test_a_message_about_a_list_gives_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "ObjectStore", lambda: Store(1))
    url = Url("s3", "bucket", "train.json")
    with pytest.raises(UsageError, match=f"^{url} is one JSON document"), fetching.fetched_list(url) as (path, root):
        read_list(path, LabelSpec(), root=root)


def test_a_bucket_is_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "ObjectStore", lambda: Store(1))
    with pytest.raises(ListError, match=r"such as s3://bucket/train\.txt"), fetching.fetched_list(Url("s3", "bucket")):
        pass
