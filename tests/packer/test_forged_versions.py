"""Documents of versions that are forged, with sums that are right: no change makes of them what cannot be read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.support import image_set, tree
from helpers.versions import changed_dataset

from packtrain import append, drop_rows, open_dataset, stage
from packtrain._core.document import MOST_BYTES, dump_document
from packtrain._core.typed import MOST
from packtrain._core.version_files import version_name
from packtrain._core.versions import newest_version
from packtrain._storage.staging.version_documents import VersionDocuments
from packtrain.errors import CorruptFile, PacktrainError, UsageError

Forge = Callable[[dict[str, Any]], object]


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return changed_dataset(image_set(tmp_path / "images", 8), tmp_path)


def forged(dataset: Path, change: Forge, number: int = 4) -> None:
    body = json.loads((dataset / version_name(4)).read_text())
    del body["checksum"]
    change(body)
    (dataset / version_name(number)).write_bytes(dump_document(body))


def test_the_last_number_that_a_version_can_have_is_the_end(dataset: Path) -> None:
    forged(dataset, lambda body: body.update(number=MOST), MOST)
    before = tree(dataset / "versions")
    with pytest.raises(UsageError, match=f"{MOST + 1}.json cannot be written"):
        drop_rows(dataset, [0])
    assert tree(dataset / "versions") == before
    assert newest_version(dataset).number == MOST
    assert len(open_dataset(dataset)) > 0


FORGED: dict[str, Forge] = {
    "no row is left": lambda body: body["segments"][0].update(records=body["segments"][0]["dropped"]["records"]),
    "created: expected": lambda body: body.update(created=MOST),
    "labels": lambda body: body.update(labels="int*3"),
    "field caption: kind": lambda body: body["fields"][1].update(kind="json"),
    "manifest.bytes: expected": lambda body: body["segments"][0]["manifest"].update(bytes=MOST_BYTES + 1),
    "npy is said to have": lambda body: body["segments"][0]["dropped"].update(bytes=1 << 40),
    "surrogate": lambda body: body.update(classes=["\ud800"] * 3),
}


@pytest.mark.parametrize("what", FORGED)
def test_what_no_writer_says_is_refused(dataset: Path, what: str) -> None:
    forged(dataset, FORGED[what])
    with pytest.raises(CorruptFile, match=what):
        open_dataset(dataset)


def test_rows_are_read_into_memory_when_their_segments_are_there(
    dataset: Path, memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forged version may have more dropped rows than there is memory, in a file with holes."""

    def forged_rows(body: dict[str, Any]) -> None:
        segment, more = body["segments"][0], 1 << 40
        segment["records"] += more
        segment["dropped"]["records"] += more
        segment["dropped"]["bytes"] += 8 * more

    forged(dataset, forged_rows)
    monkeypatch.setattr(VersionDocuments, "column", lambda *_: pytest.fail("rows were read"))
    with pytest.raises(CorruptFile, match="it is not what the version names"):
        stage(dataset, memory_path)


@pytest.mark.parametrize(("target", "what"), [("versions", "cannot be read: .*link"), ("nowhere", "has no version")])
def test_versions_that_cannot_be_listed_are_an_error_of_our_own(dataset: Path, target: str, what: str) -> None:
    shutil.rmtree(dataset / "versions")
    (dataset / "versions").symlink_to(target)
    with pytest.raises(CorruptFile, match=what):
        open_dataset(dataset)


def test_a_plan_that_leads_nowhere_is_an_error_of_our_own(dataset: Path, tmp_path: Path) -> None:
    (dataset / "plan.json").unlink()
    (dataset / "plan.json").symlink_to("nowhere")
    with pytest.raises(PacktrainError, match=r"plan\.json is missing"):
        append(dataset, tmp_path / "images" / "train.txt")
