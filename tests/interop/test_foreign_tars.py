"""Shards that other programs wrote, indexed and read: by webdataset's writer, GNU tar, in img2dataset's layout."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from click.testing import CliRunner
from helpers.shards import Indexed, jpeg, npy, write_shards
from helpers.support import encoded, flip, output_of, picture, tool
from PIL import Image

from packtrain import Loader, open_dataset, pack, stage, verify
from packtrain._cli.main import group
from packtrain._core.errors import DatasetError, OutputConflict, UsageError
from packtrain._core.manifest import Manifest
from packtrain._packer.foreign.indexer import index_shards
from packtrain.orders import Shuffled

pytestmark = [
    # webdataset leaves it to the garbage collector to close its files.
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def theirs(folder: Path) -> list[dict[str, Any]]:
    """The samples as webdataset finds them."""
    shards = sorted(map(str, folder.glob("*.tar")))
    return list(webdataset.WebDataset(shards, shardshuffle=False))


def shards_of_webdataset(folder: Path) -> Path:
    folder.mkdir()
    with webdataset.ShardWriter(str(folder / "s-%06d.tar"), maxcount=4, verbose=0) as writer:
        for number in range(10):
            sample = {"__key__": f"train/{number:04d}", "jpg": jpeg(number), "cls": number % 3, "json": {"n": number}}
            sample["txt"] = f"größe {number}"
            if number % 2:
                sample |= {"npy": np.full((number, 2), number, "f4"), "seg.png": picture(number, 24, 16, "L")}
            writer.write(sample)
    return folder


def shards_of_gnu_tar(folder: Path) -> Path:
    files = folder.with_name("files")
    files.mkdir()
    folder.mkdir()
    for number in range(6):
        stem = "long" * 40 + str(number)
        (files / f"{stem}.jpg").write_bytes(jpeg(number))
        (files / f"{stem}.cls").write_text(f"{number}\n")
        (files / f"{stem}.json").write_text("{}")
        (files / f"{stem}.txt").write_text("é")
        (files / f"{stem}.npy").write_bytes(npy(np.arange(3)))
        (files / f"{stem}.seg.png").write_bytes(encoded(picture(number, 24, 16, "L"), "PNG"))
    for number, format in enumerate(["gnu", "pax", "oldgnu"]):
        output_of(
            tool("tar", "tar"), f"--format={format}", "--sort=name", "-cf", folder / f"{number}.tar", "-C", files, "."
        )
    return folder


@pytest.mark.parametrize("make", [shards_of_webdataset, shards_of_gnu_tar])
def test_what_webdataset_finds_is_what_the_index_says(tmp_path: Path, make: Any) -> None:
    shards = make(tmp_path / "shards")
    dataset = Indexed(index_shards(shards, tmp_path / "out", masks=["seg"]).dataset)
    names = {"jpg": "image", "cls": "label", "json": "json", "txt": "text", "npy": "npy", "seg.png": "seg"}
    found = theirs(shards)
    assert len(found) == dataset.manifest.records > 0
    for ours, sample in zip(dataset.samples(), found, strict=True):
        shard = Path(sample["__url__"]).name
        expected = {names[name]: value for name, value in sample.items() if not name.startswith("__")}
        expected["label"] = int(expected["label"])
        assert ours == {"path": f"{shard}/{sample['__key__']}", **expected}
    assert not verify(dataset.folder, decode_images=True).problems


def test_the_layout_of_img2dataset(tmp_path: Path) -> None:
    """As its `WebDatasetSampleWriter` writes it: key, jpg, txt and json; samples without a caption have no txt."""
    (tmp_path / "shards").mkdir()
    for shard in range(2):
        path = tmp_path / "shards" / f"{shard:05d}.tar"
        with path.open("wb") as file, webdataset.TarWriter(file) as writer:
            for number in range(5):
                key = f"{shard:05d}{number:04d}"
                facts = {"url": "https://example.com/é.jpg", "key": key, "status": "success", "exif": "{}", "width": 24}
                sample: dict[str, Any] = {"__key__": key, "jpg": jpeg(number)}
                if number:
                    sample["txt"] = f"caption {number}"
                writer.write({**sample, "json": json.dumps(facts, indent=4)})
        (tmp_path / "shards" / f"{shard:05d}_stats.json").write_text("{}")
        (tmp_path / "shards" / f"{shard:05d}.parquet").write_bytes(b"PAR1")
    dataset = Indexed(index_shards(tmp_path / "shards", tmp_path / "out").dataset)
    assert [(field.name, field.kind, field.missing) for field in dataset.manifest.fields] == [
        ("image", "image", 0),
        ("json", "json", 0),
        ("text", "text", 2),
    ]
    assert [sample.get("text") for sample in dataset.samples()][:3] == [None, b"caption 1", b"caption 2"]


def test_training_and_staging_take_an_indexed_dataset(tmp_path: Path, memory_path: Path) -> None:
    shards = write_shards(tmp_path / "shards", 3)
    out = index_shards(tmp_path / "shards", tmp_path / "out").dataset
    for folder in (out, stage(out, memory_path).path):
        dataset = open_dataset(folder)
        assert len(dataset) == 12
        for row in range(12):
            image, label = dataset[row]
            with Image.open(io.BytesIO(jpeg(row, 20 + row, 30))) as expected:
                assert np.array_equal(np.asarray(image), np.asarray(expected.convert("RGB")))
            assert label == row
    shards[0].write_bytes(shards[0].read_bytes())
    with pytest.raises(DatasetError, match="changed after it had been indexed"):
        open_dataset(out)[0]


def test_whoever_opens_it_during_an_update_finds_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = write_shards(tmp_path / "shards", 3)
    out = index_shards(shards[:2], tmp_path / "out").dataset
    load = Manifest.load

    def slow(folder: Path) -> Manifest:
        monkeypatch.setattr(Manifest, "load", load)
        manifest = load(folder)
        index_shards(shards, out, update=True)
        return manifest

    monkeypatch.setattr(Manifest, "load", slow)
    assert len(open_dataset(out)) == 12


def test_no_packer_works_in_its_folder(tmp_path: Path, images: Path) -> None:
    write_shards(tmp_path / "shards", 1)
    out = index_shards(tmp_path / "shards", tmp_path / "out").dataset
    with pytest.raises(OutputConflict, match="choose another folder"):
        pack(images, out)


def test_nobody_is_told_to_remove_shards_that_packtrain_cannot_make_again(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "shards", 2)
    out = index_shards(shards, tmp_path / "out").dataset
    times = shards[1].stat()
    flip(shards[1], 700)
    os.utime(shards[1], ns=(times.st_atime_ns, times.st_mtime_ns))
    outcome = CliRunner().invoke(group, ["verify", str(out), "--workers", "1"])
    assert f"To mend {shards[1].name}, restore it from a sound copy; do not remove it" in outcome.output
    assert "same pack command" not in outcome.output


def test_a_dataset_that_was_indexed_in_another_order_does_not_resume(tmp_path: Path) -> None:
    def state(path: Path) -> Any:
        return loader(path).state_dict()

    def loader(path: Path) -> Any:
        dataset = open_dataset(path, transform=lambda image: np.zeros((1, 1, 3), np.uint8))
        return Loader(dataset, 2, sampler=Shuffled(len(dataset)), seed=1, num_workers=0)

    shards = write_shards(tmp_path / "shards", 3)
    for name, order in {"one": shards, "same": shards, "other": shards[::-1]}.items():
        index_shards(order, tmp_path / name)
    saved = state(tmp_path / "one")
    loader(tmp_path / "same").load_state_dict(saved)
    with pytest.raises(UsageError, match="another dataset"):
        loader(tmp_path / "other").load_state_dict(saved)
    # States of before had no such entry.
    loader(tmp_path / "other").load_state_dict({name: value for name, value in saved.items() if name != "dataset"})
