"""Addresses of objects: what is read, what is written, and what is refused."""

from __future__ import annotations

import traceback
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.objects.servers import Server
from hypothesis import given
from hypothesis import strategies as st

from packtrain._core.errors import Denied, UsageError
from packtrain._core.paths import is_address, local_path, without_credentials
from packtrain._core.stores import KINDS, known_schemes
from packtrain._storage.remote.objects import Objects
from packtrain._storage.remote.redirects import confined
from packtrain._storage.remote.store_errors import refusal
from packtrain._storage.remote.urls import Url

PART = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/"), min_size=1).filter(
    lambda part: part not in (".", "..")
)


@given(scheme=st.sampled_from(sorted(KINDS)), parts=st.lists(PART, max_size=4))
def test_what_is_written_is_read(scheme: str, parts: list[str]) -> None:
    url = Url(scheme, "bucket.example", "/".join(parts))
    assert Url.parse(str(url)) == url
    assert is_address(str(url))


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("s3://bucket", Url("s3", "bucket")),
        ("S3://Bucket/Key/", Url("s3", "Bucket", "Key")),
        ("s3:/bucket/through/a/path", Url("s3", "bucket", "through/a/path")),
        ("gs://bucket/50%20off?", Url("gs", "bucket", "50%20off?")),
        ("https://host:8080/a%20b/%3F.jpg", Url("https", "host:8080", "a b/?.jpg")),
        ("http://[::1]:80/object", Url("http", "[::1]:80", "object")),
    ],
)
def test_an_address(text: str, url: Url) -> None:
    assert Url.parse(text) == url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "object",
        "/s3/object",
        "file:///object",
        "s3://",
        "s3:///",
        "s3://a bucket/object",
        "s3://b/../c",
        "s3://b/c//d",
        "http://h/%2e%2e/c",
        "http://host:port/object",
        "https://?",
        "az://account/container?sv=1&sig=SECRET",
        " https://user:SECRET@host/key",
        "s3://key:SECRET@bucket/object",
        "https://host/object?Signature=SECRET",
        "https://host/object#SECRET",
        "ftp://user:SECRET@host/object",
        "https://user:SECRET@host/../object",
        "https://host/../object?sig=SECRET",
        "s3:///?sig=SECRET",
        "https://user:SECRET/more@host/object",
        "https:////user:SECRET@host/object",
        "s3:////?sig=SECRET",
        "s3://bucket/key?X-Amz-Date=1&X-Amz-Signature=SECRET",
    ],
)
def test_what_is_not_an_address(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Url.parse(text)
    assert "SECRET" not in "".join(traceback.format_exception(caught.value))


def test_folders_and_names() -> None:
    url = Url.parse("s3://bucket/a/b.tar")
    assert (url.name, url.parent, url.base) == ("b.tar", Url.parse("s3://bucket/a"), "s3://bucket")
    assert url.parent.parent == Url.parse("s3://bucket")
    assert url.parent / "b.tar" == url
    assert Path(str(url)).name == "b.tar"


def test_escapes_of_a_web_address_are_those_of_the_server(objects: Objects, nginx_server: Server) -> None:
    nginx_server.put("escaped/a b%20c?.jpg", b"data")
    url = Url.parse(f"{nginx_server.url}/escaped/a%20b%2520c%3F.jpg")
    assert objects.read(url, 10) == b"data"


def test_a_new_scheme_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "abfs", replace(KINDS["az"], credentials="ask Ada"))
    url = Url.parse("abfs://container/set?")
    assert str(url / "x") == "abfs://container/set?/x"
    assert is_address(str(url)) and url.writable
    assert without_credentials("abfs://user@container/set?") == str(url)
    assert "abfs://" in known_schemes(writable=True)
    with pytest.raises(UsageError, match="packtrain stage"):
        local_path(str(url))
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "http://localhost:1")
    assert "localhost" in str(confined(url)["proxy_excludes"])
    denied = refusal(url, "read", PermissionError("response error: non-2xx status code: 403 Forbidden"))
    assert isinstance(denied, Denied) and "ask Ada" in str(denied)
