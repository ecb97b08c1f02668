"""What a store refuses is told with the store's own code, and with what to do."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from helpers.objects.faults import Rule, Status
from helpers.objects.proxy import Proxy
from helpers.objects.servers import KEY_ID, Server

from packtrain._core.errors import Denied, NotThere, RemoteError
from packtrain._storage.remote.objects import Objects
from packtrain._storage.remote.store_errors import Busy, Expired, Temporary, refusal
from packtrain._storage.remote.urls import Url


def refused(scheme: str, number: int, body: str, host: str = "store.example.org") -> RemoteError | Temporary:
    """The error for an answer, as obstore tells of it."""
    text = (
        f"Error performing GET https://{host}/bucket/object in 1ms - Server returned non-2xx status code: {number} No"
    )
    return refusal(Url(scheme, "bucket", "object"), "read", OSError(f"{text}: {body}\n\nDebug source:\n..."))


def xml(code: str, message: str = "") -> str:
    return f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'


@pytest.mark.parametrize(
    ("scheme", "number", "code", "kind"),
    [
        ("s3", 403, "AccessDenied", Denied),
        ("s3", 403, "SignatureDoesNotMatch", Denied),
        ("s3", 403, "InvalidAccessKeyId", Denied),
        ("s3", 400, "ExpiredToken", Expired),
        ("s3", 404, "NoSuchBucket", NotThere),
        ("s3", 404, "NoSuchKey", NotThere),
        ("s3", 503, "SlowDown", Busy),
        ("s3", 400, "AuthorizationHeaderMalformed", RemoteError),
        ("gs", 403, "AccessDenied", Denied),
        ("gs", 401, "AuthenticationRequired", Denied),
        ("az", 403, "AuthenticationFailed", Denied),
        ("az", 403, "AuthorizationPermissionMismatch", Denied),
        ("az", 404, "ContainerNotFound", NotThere),
        ("az", 409, "PublicAccessNotPermitted", RemoteError),
    ],
)
def test_the_code_of_the_store_is_kept(
    scheme: str, number: int, code: str, kind: type[RemoteError | Temporary]
) -> None:
    found = refused(scheme, number, xml(code))
    assert type(found) is kind
    assert (f"says {code}" if kind is NotThere else f"({code})") in str(found)


@pytest.mark.parametrize(
    ("host", "number", "body", "code"),
    [
        (
            "storage.googleapis.com",
            403,
            '{"error": {"code": 403, "errors": [{"domain": "global", "reason": "forbidden"}]}}',
            "forbidden",
        ),
        ("oauth2.googleapis.com", 400, '{"error":"invalid_grant","error_description":"Bad."}', "invalid_grant"),
        ("sts.amazonaws.com", 403, xml("AccessDenied"), "AccessDenied"),
    ],
)
def test_a_code_in_json_or_of_who_gives_credentials_is_kept(host: str, number: int, body: str, code: str) -> None:
    found = refused("gs", number, body, host)
    assert type(found) is Denied and f"({code})" in str(found)


@pytest.mark.parametrize(
    ("scheme", "host", "number", "body"),
    [
        ("s3", "s3.amazonaws.com", 403, xml("RequestTimeTooSkewed", "The difference is too large.")),
        ("s3", "sts.amazonaws.com", 403, xml("SignatureDoesNotMatch", "Signature expired: it is earlier than")),
        ("gs", "storage.googleapis.com", 403, xml("RequestTimeTooSkewed")),
        (
            "gs",
            "oauth2.googleapis.com",
            400,
            '{"error":"invalid_grant","error_description":"Token must be a short-lived token (60 minutes)"}',
        ),
        (
            "az",
            "account.blob.core.windows.net",
            403,
            xml("AuthenticationFailed") + "<AuthenticationErrorDetail>Request date header too old: 'Mon'",
        ),
    ],
)
def test_a_wrong_clock_is_not_taken_for_wrong_credentials(scheme: str, host: str, number: int, body: str) -> None:
    found = refused(scheme, number, body, host)
    assert type(found) is RemoteError
    assert re.search(r"its clock and that of this machine differ \(\w+\)\. It is [-\d]+ .* set the clock", str(found))
    assert "environment" not in str(found)


def test_a_signature_that_has_expired_is_not_taken_for_a_wrong_one() -> None:
    body = xml("AuthenticationFailed") + "Signature not valid in the specified time frame: Start [x] - Expiry [y]"
    assert "the credentials have expired (AuthenticationFailed)" in str(refused("az", 403, body))


def test_what_repeats_a_secret_is_not_taken_for_a_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    assert KEY_ID not in str(refused("s3", 403, xml(KEY_ID)))


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [
        (403, "RequestTimeTooSkewed", "its clock and that of this machine differ"),
        (403, "InvalidAccessKeyId", r"does not let these credentials read it \(InvalidAccessKeyId\)"),
        (400, "ExpiredToken", r"the credentials have expired \(ExpiredToken\)"),
    ],
)
def test_where_an_answer_has_no_body_the_reason_is_asked_for(
    hasty: Objects,
    moto_server: Server,
    through: Callable[[Server], Proxy],
    number: int,
    code: str,
    message: str,
) -> None:
    """The answer to a HEAD request says nothing but the number."""
    url = Url.parse(moto_server.fresh()) / "object"
    moto_server.put(url.key, b"0123456789")
    through(moto_server).script(Rule(Status(number, name=code), method="", times=None))
    for ask in (hasty.size, hasty.head):
        with pytest.raises(RemoteError, match=message):
            ask(url)
