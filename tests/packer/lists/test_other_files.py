"""Laws of what is given in place of a list: it is named, its bytes are not shown, and the message can be typed."""

from __future__ import annotations

import bz2
import gzip
import os
import pickle
import re
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.shards import jpeg, npy, write_tar
from helpers.support import image_set, packed

from packtrain import Columns
from packtrain._core.options import LabelSpec
from packtrain._packer.lists.reader import read_list
from packtrain.errors import ListError


def tar_of(folder: Path) -> bytes:
    return write_tar(folder / "made.tar", [("a.jpg", jpeg()), ("a.cls", b"1")]).read_bytes()


OTHERS: dict[str, tuple[Callable[[Path], bytes], str]] = {
    "00000.tar": (tar_of, r"is a tar archive, not a list: `packtrain index {} OUT` makes a dataset of it"),
    "list.txt": (tar_of, r"is a tar archive, not a list: `packtrain index {} OUT`"),
    "a b.tar.gz": (
        lambda folder: gzip.compress(tar_of(folder)),
        "with gzip, .*`packtrain index --unpack DIR '{}' OUT`",
    ),
    "list.txt.bz2": (
        lambda _: bz2.compress(b"a.jpg 1\n"),
        r"is compressed with bzip2. Type: bunzip2 < {} > \S+/list.txt.new, and pack \S+/list.txt.new in its place",
    ),
    "a.jpg": (lambda _: jpeg(), "is a binary file, not a list: give a file with one `path label` per line"),
    "a.zip": (lambda _: b"PK\x03\x04" + bytes(26), "is compressed with zip, not a list: decompress it first"),
    "a.pickle": (lambda _: pickle.dumps([("a.jpg", 0)]), "is a binary file"),
    "a.npy": (lambda _: npy(np.ones(3)), "is a binary file"),
    "a.bin": (lambda _: bytes(range(256)) * 16, "is a binary file, not a list: give a file with one"),
}


def test_a_link_that_leads_nowhere_is_not_suggested_itself(tmp_path: Path) -> None:
    (tmp_path / "dang").symlink_to("nowhere")
    with pytest.raises(ListError, match=r"the list \S+/dang is a link to nowhere, which is not there$"):
        read_list(tmp_path / "dang", LabelSpec())


@pytest.mark.parametrize("columns", [None, Columns("path", "label")])
@pytest.mark.parametrize("name", OTHERS)
def test_a_file_that_is_no_list_is_named_with_what_to_type(tmp_path: Path, name: str, columns: Columns | None) -> None:
    make, message = OTHERS[name]
    path = tmp_path / name
    path.write_bytes(make(tmp_path))
    with pytest.raises(ListError, match=message.format(re.escape(str(path)))) as caught:
        read_list(path, LabelSpec("int"), columns=columns)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (tar_of, "is a tar archive, not a list: `packtrain index FILE OUT`"),
        (lambda _: b"PAR1" + bytes(100), "Parquet file that comes through a pipe: give the path of the file"),
    ],
)
def test_so_is_what_comes_through_a_pipe(tmp_path: Path, content: Callable[[Path], bytes], message: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=[content(tmp_path)])
    writer.start()
    with pytest.raises(ListError, match=message):
        read_list(tmp_path / "pipe", LabelSpec("int"))
    writer.join()


@pytest.mark.parametrize(
    ("format", "what"), [("tar", "a tar archive"), ("hdf5", "a binary file"), ("lmdb", "a binary file")]
)
def test_files_of_a_dataset_are_packed_with_it(tmp_path: Path, format: str, what: str) -> None:
    folder = packed(image_set(tmp_path / "images", 2), tmp_path / "packed", format)
    shard = min(path for path in folder.iterdir() if path.suffix in (".tar", ".h5", ".mdb"))
    for path in (folder / "manifest.json", folder / "plan.json", shard):
        with pytest.raises(ListError, match=f"`packtrain pack {folder} OUT` packs it once more"):
            read_list(path, LabelSpec("int"))
    with pytest.raises(ListError, match=f"is {what}, not a list"):
        read_list(shard.rename(tmp_path / "alone"), LabelSpec("int"))


def test_a_folder_of_tars_is_indexed(tmp_path: Path) -> None:
    tar = tar_of(tmp_path)
    with pytest.raises(ListError, match=f"folder of tar archives, not of images: `packtrain index {tmp_path} OUT`"):
        read_list(tmp_path, LabelSpec("int"))
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress(tar))
    with pytest.raises(ListError, match=f"`packtrain index --unpack DIR {tmp_path} OUT` makes a dataset of it"):
        read_list(tmp_path, LabelSpec("int"))


def test_images_beside_a_tar_or_a_document_stay_images(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.jpg").write_bytes(jpeg())
    tar_of(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    assert len(read_list(tmp_path, LabelSpec("int"))) == 1
    (tmp_path / "a.JPG").write_bytes(jpeg())
    (tmp_path / "cat" / "a.jpg").unlink()
    (tmp_path / "cat").rmdir()
    assert len(read_list(tmp_path, LabelSpec("none"))) == 1
