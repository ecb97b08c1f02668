"""No redirect takes a request, and what it holds, to a server that nobody named."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TypeAlias

import pytest

from packtrain._core.errors import RemoteError
from packtrain._storage.remote.objects import Objects
from packtrain._storage.remote.redirects import _PROXY, confined
from packtrain._storage.remote.urls import Url

DATA = b"0123456789"
FIRST, OTHER = "127.0.0.1", "127.0.0.2"


@dataclass
class Seen:
    """A server, and what it was asked.

    Attributes:
        address: Its address.
        headers: Those of each request.
        to: The address that it redirects to; empty if it answers.
    """

    address: str
    headers: list[dict[str, str]] = field(default_factory=list)
    to: str = ""


@contextmanager
def serving(host: str, context: ssl.SSLContext | None = None) -> Iterator[Seen]:
    """A server that has `DATA` under every name, or redirects to another."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            seen.headers.append(dict(self.headers))
            self.send_response(307 if seen.to else 200)
            if seen.to:
                self.send_header("Location", seen.to + self.path)
            self.send_header("Content-Length", str(0 if seen.to else len(DATA)))
            self.send_header("ETag", '"1"')
            self.send_header("Last-Modified", "Mon, 23 Nov 2026 10:00:00 GMT")
            self.end_headers()
            if not seen.to and self.command == "GET":
                self.wfile.write(DATA)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            """Logs nothing."""

    server = ThreadingHTTPServer((host, 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    seen = Seen(f"http{'s' if context else ''}://{host}:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


Serve: TypeAlias = Callable[..., Seen]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts servers."""
    with ExitStack() as stack:
        yield lambda *args: stack.enter_context(serving(*args))


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials for each kind of store, and no proxy."""
    for name in os.environ:
        if _PROXY.fullmatch(name) or name.startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    for name, value in {
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_SESSION_TOKEN": "token",
        "AZURE_STORAGE_ACCOUNT_NAME": "account",
        "AZURE_STORAGE_ACCOUNT_KEY": "a2V5",
        "GOOGLE_SKIP_SIGNATURE": "true",
    }.items():
        monkeypatch.setenv(name, value)


def named(kind: str, server: Seen, monkeypatch: pytest.MonkeyPatch) -> Url:
    """The address of an object on a server that is named as the one of this kind of store."""
    for name in ("AWS_ENDPOINT_URL", "AZURE_STORAGE_ENDPOINT", "GOOGLE_BASE_URL"):
        monkeypatch.setenv(name, server.address)
    return Url.parse(f"{server.address}/folder/object" if kind == "http" else f"{kind}://bucket/object")


@pytest.mark.parametrize("kind", ["s3", "az", "gs", "http"])
def test_another_host_gets_no_request(
    hasty: Objects, kind: str, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = serve(FIRST), serve(OTHER)
    url = named(kind, first, monkeypatch)
    assert hasty.read(url, 100) == DATA
    first.to = other.address
    file = tmp_path / "file"
    file.write_bytes(DATA)
    asks: list[Callable[[], object]] = [
        lambda: hasty.read(url, 100),
        lambda: hasty.size(url),
        lambda: hasty.read_range(url, 1, 3),
    ]
    if kind in ("s3", "az"):
        asks += [lambda: hasty.write(url, DATA), lambda: list(hasty.list(url.parent)), lambda: hasty.upload(url, file)]
    for ask in asks:
        with pytest.raises(
            RemoteError, match=r"redirects to another (host|address).*give that address instead"
        ) as caught:
            ask()
        assert type(caught.value) is RemoteError and str(url.parent) in str(caught.value)
    assert other.headers == []


def test_another_place_on_the_same_host_is_followed(
    hasty: Objects, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = serve(FIRST), serve(FIRST)
    first.to = f"{other.address}/elsewhere"
    assert hasty.read(named("http", first, monkeypatch), 100) == DATA


@pytest.mark.parametrize("kind", ["s3", "https"])
def test_from_https_to_http_nothing_follows(
    hasty: Objects, kind: str, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes a certificate, is not installed")
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout key -out certificate -days 2"
    )
    command += f" -subj /CN=test -addext subjectAltName=IP:{FIRST} -addext basicConstraints=critical,CA:FALSE"
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
    from packtrain._storage.remote import bucket

    certificate = (tmp_path / "certificate").read_bytes()
    monkeypatch.setattr(bucket, "_CLIENT", {**bucket._CLIENT, "root_certificate": certificate})
    first, plain = serve(FIRST, context), serve(FIRST)
    url = named("http" if kind == "https" else kind, first, monkeypatch)
    assert hasty.read(url, 100) == DATA
    first.to = plain.address
    with pytest.raises(RemoteError, match="or from https to http"):
        hasty.read(url, 100)
    assert plain.headers == []
    # The other way round it is the same host, and nobody listens in.
    plain.to, first.to = first.address, ""
    assert hasty.read(named("http", plain, monkeypatch), 100) == DATA


def test_whoever_gives_credentials_is_asked_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine's identity, roles, and what a variable names: also where a store of one's own is used."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://store.example.org:9000")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.7:7/credentials")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    excludes = confined(Url.parse("s3://bucket/object"))["proxy_excludes"].split(",")
    assert {"store.example.org", "127.0.0.7", "169.254.0.0/16", "sts.eu-west-1.amazonaws.com"} <= {*excludes}


def test_the_users_own_proxy_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.example.org:3128")
    assert confined(Url.parse("https://example.org/object")) == {"allow_http": False}
