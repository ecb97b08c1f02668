"""Credentials, keys and queries of addresses appear in no message, log or repr, whatever goes wrong."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest
from helpers.objects.faults import Fault, Reset, Rule, Status, Truncate
from helpers.objects.proxy import Proxy
from helpers.objects.servers import KEY_ID, SECRET, Server

from packtrain._core.errors import Denied, RemoteError
from packtrain._storage.remote.client import ObjectStore
from packtrain._storage.remote.objects import Objects
from packtrain._storage.remote.store_errors import refusal
from packtrain._storage.remote.urls import Url

WRONG = "V3JvbmcgZHVtbXkgc2VjcmV0IG9mIHRoZSB0ZXN0cywgOTg3NjU0MzIx"
SECRETS = (SECRET, WRONG, KEY_ID, "sig=" + WRONG, "Signature=", "versionid=")

_STATUS = "Server returned non-2xx status code: {} Reason"
TELLING = Status(400, f"The key {KEY_ID} and the signature {WRONG} are not what they should be.")
"""An answer that repeats what it was sent, as stores do."""


def asked(objects: Objects, url: Url, file: Path) -> Iterator[Callable[[], object]]:
    """Every member that reaches the store."""
    yield lambda: objects.size(url)
    yield lambda: objects.read(url, 100)
    yield lambda: objects.read_into(url, 0, memoryview(bytearray(10)))
    yield lambda: objects.checksum(url)
    yield lambda: list(objects.list(url))
    yield lambda: objects.write(url, b"data")
    yield lambda: objects.write(url, b"data", new=True)
    yield lambda: objects.upload(url, file)
    yield lambda: objects.remove(url)


def all_text(error: BaseException) -> str:
    """All that a program or a log may show of an error, and of whatever it came from."""
    chain: list[BaseException] = []
    rest: list[BaseException | None] = [error]
    while rest:
        if (one := rest.pop()) is not None and one not in chain:
            chain.append(one)
            rest += [one.__cause__, one.__context__]
    return "\n".join([*traceback.format_exception(error), *map(str, chain), *map(repr, chain)])


def without_secrets(text: str) -> bool:
    """True if a text gives nothing away."""
    return not any(each in text for each in SECRETS)


@pytest.fixture(params=["seaweedfs", "azurite"])
def strict_server(request: pytest.FixtureRequest, started_server: Callable[[str], Server]) -> Server:
    """A store that checks credentials."""
    return started_server(request.param)


@pytest.mark.complete
def test_wrong_credentials_are_refused_and_not_shown(
    objects: Objects,
    strict_server: Server,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    url = Url.parse(strict_server.fresh()) / "object"
    strict_server.put(strict_server.key(str(url)), b"0123456789")
    with strict_server.in_environment():
        for name in ("AWS_SECRET_ACCESS_KEY", "AZURE_STORAGE_ACCOUNT_KEY"):
            monkeypatch.setenv(name, WRONG)
        for ask in asked(objects, url, file):
            with pytest.raises(Denied, match="does not let these credentials") as caught:
                ask()
            assert without_secrets(all_text(caught.value))
            assert str(url) in str(caught.value)
    assert without_secrets(repr(objects) + repr(url) + caplog.text + "".join(capfd.readouterr()))


@pytest.fixture
def signed(azure_server: Server, through: Callable[[Server], Proxy], monkeypatch: pytest.MonkeyPatch) -> Proxy:
    """A proxy in front of a store that is reached with a signature in the query."""
    between = through(azure_server)
    for name in ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_USE_EMULATOR"):
        monkeypatch.delenv(name)
    account = azure_server.environment["AZURE_STORAGE_ACCOUNT_NAME"]
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"http://127.0.0.1:{between.port}/{account}")
    monkeypatch.setenv("AZURE_STORAGE_SAS_KEY", f"sv=2021-08-06&versionid=1&sig={WRONG}")
    return between


@pytest.mark.complete
@pytest.mark.parametrize(
    "fault", [TELLING, Reset(0.5), Truncate(0.5, admit=True)], ids=["telling", "reset", "truncated"]
)
def test_a_signature_in_the_query_is_not_shown(
    hasty: Objects, service: ObjectStore, signed: Proxy, fault: Fault, file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    signed.script(Rule(fault, method="", times=None))
    url = Url.parse("az://bucket/folder/object")
    both = [*asked(hasty, url, file), *(asked(service, url, file) if fault is TELLING else ())]
    for ask in both:
        with pytest.raises(RemoteError) as caught:
            ask()
        assert without_secrets(all_text(caught.value))
    assert without_secrets("".join(capfd.readouterr()))


def test_a_configuration_that_cannot_be_understood_is_not_shown(
    objects: Objects, azure_server: Server, gcs_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for server in (azure_server, gcs_server):
        with server.in_environment():
            monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", f"not base64: {WRONG}")
            monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", f'{{"private_key": "{WRONG}"')
            with pytest.raises(RemoteError) as caught:
                objects.size(Url.parse(server.url) / "object")
        assert without_secrets(all_text(caught.value))


def test_a_reason_that_nobody_foresaw_shows_no_secret_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", WRONG)
    error = ValueError(f"bad token {WRONG} in https://store/object?sig={WRONG}\n\nDebug source:\n {SECRET}")
    assert str(refusal(Url("s3", "bucket", "object"), "read", error)) == (
        "s3://bucket/object cannot be read: bad token *** in ..."
    )


def test_expired_credentials_are_asked_for_again(hasty: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    import obstore

    stores = count(1)
    monkeypatch.setattr(obstore.store, "from_url", lambda base, **_: next(stores))

    def head(store: int, key: str) -> dict[str, object]:
        if store < valid:
            raise ValueError(f"{_STATUS.format(400)}: <Error><Code>ExpiredToken</Code><Message>{SECRET}</Message>")
        return {"size": store, "e_tag": None, "last_modified": datetime.now(UTC)}

    monkeypatch.setattr(obstore, "head", head)
    valid = 2
    assert hasty.size(Url("s3", "bucket", "object")) == 2
    valid = 9
    with pytest.raises(Denied, match="have expired") as caught:
        hasty.size(Url("s3", "bucket", "object"))
    assert type(caught.value) is Denied
    assert without_secrets(all_text(caught.value))
