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


def xml(code: str, message: str = "") -> str:
    return f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'


def refused(scheme: str, host: str, number: int, answer: str) -> RemoteError | Temporary:
    """The error for an answer, as obstore tells of it; without a number, for what it says itself."""
    status = f"Server returned non-2xx status code: {number} No: {answer}\n\nDebug source:\n..." if number else answer
    error = OSError(f"Error performing GET https://{host or 'store.example.org/bucket/object'} in 1ms - {status}")
    return refusal(Url(scheme, "bucket", "object"), "read", error)


BROKEN = "HTTP error: error sending request"
CLOCK = r"its clock and that of this machine differ \(\w+\)\. It is [-\d]+ .* set the clock"
NOBODY = "there are no credentials in the environment, .* They are looked for in .*"
REGION = "the bucket lies in another region.* AWS_REGION"
OLD = "Token must be a short-lived token (60 minutes)"
LOST = "Received redirect without LOCATION, this normally indicates an incorrectly configured region"


@pytest.mark.parametrize(
    ("scheme", "host", "number", "answer", "kind", "words"),
    [
        ("s3", "", 403, xml("AccessDenied"), Denied, r"let these credentials .*\(AccessDenied\)"),
        ("s3", "", 400, xml("ExpiredToken"), Expired, r"credentials have expired \(ExpiredToken\)"),
        ("s3", "", 404, xml("NoSuchBucket"), NotThere, "says NoSuchBucket"),
        ("s3", "", 416, "", RemoteError, "is shorter than it was"),
        ("s3", "", 503, xml("SlowDown"), Busy, r"answers 503 No \(SlowDown\)"),
        ("s3", "", 400, xml("AuthorizationHeaderMalformed"), RemoteError, r"\(AuthorizationHeaderMalformed\)"),
        ("s3", "", 301, xml("PermanentRedirect"), RemoteError, REGION),
        ("s3", "", 0, LOST, RemoteError, REGION),
        ("s3", "", 0, "Generic S3 error: Missing SecretAccessKey", Denied, "are not complete"),
        # Not there, though its name is that of a server of credentials.
        ("s3", "s3.amazonaws.com/sts.1", 404, "", NotThere, "there"),
        ("gs", "", 401, xml("AuthenticationRequired"), Denied, r"\(AuthenticationRequired\)"),
        ("gs", "", 403, '{"error": {"code": 403, "errors": [{"reason": "forbidden"}]}}', Denied, r"\(forbidden\)"),
        ("gs", "oauth2.googleapis.com", 400, '{"error":"invalid_grant"}', Denied, r"\(invalid_grant\)"),
        ("az", "", 404, xml("ContainerNotFound"), NotThere, "says ContainerNotFound"),
        ("az", "", 409, xml("PublicAccessNotPermitted"), RemoteError, r"\(PublicAccessNotPermitted\)"),
        ("az", "", 0, "Account must be specified", RemoteError, "set AZURE_STORAGE_ACCOUNT_NAME"),
        (
            "az",
            "",
            403,
            xml("AuthenticationFailed") + "Signature not valid in the specified time frame: S",
            Expired,
            "",
        ),
        # A wrong clock is not taken for wrong credentials.
        ("s3", "s3.amazonaws.com", 403, xml("RequestTimeTooSkewed", "Too large."), RemoteError, CLOCK),
        ("s3", "sts.amazonaws.com", 403, xml("SignatureDoesNotMatch", "Signature expired: it"), RemoteError, CLOCK),
        ("gs", "oauth2.googleapis.com", 400, f'{{"error":"invalid_grant","why":"{OLD}"}}', RemoteError, CLOCK),
        ("az", "a.net", 403, xml("AuthenticationFailed") + "<D>Request date header too old: 'Mon'", RemoteError, CLOCK),
        # A machine without credentials, which asks who it is.
        (
            "s3",
            "169.254.169.254/latest/api/token",
            0,
            BROKEN,
            Denied,
            NOBODY + "AWS_ACCESS_KEY_ID .*AWS_SKIP_SIGNATURE",
        ),
        ("s3", "sts.eu-west-1.amazonaws.com/?Action=AssumeRole", 404, "", Denied, NOBODY),
        ("s3", "127.0.0.1:7/credentials", 500, "", Denied, NOBODY),
        ("gs", "metadata.google.internal/token", 403, "", Denied, NOBODY + "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az", "169.254.169.254/metadata/identity", 401, "", Denied, NOBODY + "AZURE_STORAGE_ACCOUNT_KEY"),
    ],
)
def test_an_answer_is_called_what_it_is(
    scheme: str,
    host: str,
    number: int,
    answer: str,
    kind: type[RemoteError | Temporary],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "https://127.0.0.1:7/")
    found = refused(scheme, host, number, answer)
    assert type(found) is kind and str(found).startswith(f"{scheme}://bucket/object")
    assert re.search(words, str(found))
    assert words != CLOCK or "environment" not in str(found)


def test_what_repeats_a_secret_is_not_taken_for_a_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    assert KEY_ID not in str(refused("s3", "", 403, xml(KEY_ID)))


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
