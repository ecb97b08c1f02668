"""Laws of paths: a URL is never taken for a file of this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.support import image_set, packed

from packtrain import PackOptions, StageOptions, open_dataset, pack, stage, verify
from packtrain._core.paths import local_path, without_credentials
from packtrain._readers.dataset.summary import summarise
from packtrain.errors import UsageError
from packtrain.staging import entries

REFUSED = {
    "this has to be a path.*`packtrain stage .*://": ["s3://bucket/train", "https://host/a b", "s3:/bucket/train"],
    "kind that packtrain does not read: .*s3://": [
        "HF://x",
        "abfs+x://y/z",
        "ftp:/host/file",
        "ftp://me:secret@host/a?b",
    ],
    "a URL": ["s3://key:secret@bucket/a", "https://host/a?sig=secret"],
    "give the path alone, without file:": ["file:///data/train.txt"],
}
LOCAL = ["train.txt", "/data/a:b/c", "C:", "a:b", "./s3://bucket", "://x", "1s3://x", "\udcff://x"]


@pytest.mark.parametrize(("message", "url"), [(message, url) for message, urls in REFUSED.items() for url in urls])
def test_a_url_is_refused_also_as_a_path_without_its_credentials(message: str, url: str) -> None:
    for path in (url, Path(url)):
        with pytest.raises(UsageError, match=message) as caught:
            local_path(path)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:secret@host:80/a@b", "https://host:80/a@b"),
        ("https://user:secret/more@host/a", "https://host/a"),
        ("https:////user:secret@host/a", "https:////host/a"),
        ("https://host/a?sig=secret", "https://host/a"),
        ("https://host/a#secret", "https://host/a"),
        ("ftp:/me:secret@host/a?b", "ftp:/host/a"),
        ("s3://key:secret@bucket/a", "s3://bucket/a"),
        ("s3:////?sig=secret", "s3:////"),
        ("file://me:secret@host/a", "file://host/a"),
    ],
)
def test_what_is_left_of_an_address_holds_no_credential(url: str, shown: str) -> None:
    assert without_credentials(url) == shown == without_credentials(shown)


@pytest.mark.parametrize(
    "text",
    [*LOCAL, "s3://bucket/what?#me@home", "https://host:80/a@b", "https://[::1]:80/a@b", "gs:/bucket/a", "a?b@c"],
)
def test_what_holds_no_credential_stays(text: str) -> None:
    assert without_credentials(text) == text


@pytest.mark.parametrize("path", LOCAL)
def test_anything_else_is_a_path(path: str) -> None:
    assert local_path(path) == Path(path)


USES: dict[str, Callable[[str, Path, Path], object]] = {
    "list": lambda url, listing, data: pack(url, listing.parent / "out"),
    "output": lambda url, listing, data: pack(listing, url),
    "root": lambda url, listing, data: pack(listing, listing.parent / "out", PackOptions(root=Path(url))),
    "classes": lambda url, listing, data: pack(listing, listing.parent / "out", PackOptions(classes=Path(url))),
    "open_dataset": lambda url, listing, data: open_dataset(url),
    "verify": lambda url, listing, data: verify(url),
    "info": lambda url, listing, data: summarise(url),
    "stage": lambda url, listing, data: stage(url),
    "stage to": lambda url, listing, data: stage(data, StageOptions(Path(url))),
    "staged": lambda url, listing, data: entries(url),
}


@pytest.mark.parametrize("text", ["ipfs://bucket/train", "", "data\0"])
def test_every_function_that_takes_a_path_refuses_other_texts_and_makes_nothing(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = image_set(tmp_path / "images", 1)
    data = packed(listing, tmp_path / "data", "tar")
    monkeypatch.chdir(tmp_path)
    # The working folder is a path that pathlib makes of an empty text.
    for use in USES if text else USES.keys() - {"root", "classes", "stage to"}:
        with pytest.raises(UsageError, match=r"is a URL|address of an object store|empty|working folder|a NUL byte"):
            USES[use](text, listing, data)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "images"]
