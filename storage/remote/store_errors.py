"""Says in packtrain's words why an object store refuses something, and never more than anybody may read.

obstore's own errors hold addresses with their queries, in which signatures may be, and what the server answered, which
may repeat parts of a key.
"""

from __future__ import annotations

import os
import re
import time
from typing import Final

from packtrain._core.errors import Denied, NotThere, RemoteError

from .redirects import IDENTITIES, NOWHERE
from .urls import Url

_STATUS: Final = re.compile(r"non-2xx status code: (\d{3})( [A-Za-z' -]+)?")
# In XML, as all stores answer; in JSON, as Google does at times, and who gives out credentials.
_CODE: Final = re.compile(r'<Code>(\w{1,60})</Code>|"(?:reason|status|error)"\s*:\s*"(\w{1,60})"')
# S3; Azure; AWS's tokens; Google's; Microsoft's.
_CLOCK: Final = re.compile(
    r"<Code>Request(?:TimeTooSkewed|Expired)<|Request date header too old|Signature (?:expired|not yet current)"
    r"|Token must be a short-lived token|not within its valid time range"
)
_SILENT: Final = re.compile(r"performing HEAD .* status code: 40[013] ")
_ADDRESS: Final = re.compile(r"\S*://\S*")
_ASKED: Final = re.compile(r"performing [A-Z]+ (\S+)")
# Where machines in a cloud ask who they are, or for credentials of a role.
_IDENTITY: Final = re.compile(
    r"://(?:169\.254\.|metadata\b|sts\.|login\.microsoftonline\.|oauth2\.)|[?&]Action=AssumeRole"
)
_INCOMPLETE: Final = re.compile(r"S3 error: Missing (?:SecretAccessKey|AccessKeyId)")
_OTHER_REGION: Final = "PermanentRedirect"
_EXPIRED: Final = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken")
_EXPIRED_SIGNATURE: Final = "Signature not valid in the specified time frame"
_SECRET: Final = re.compile(r"(?:AWS|AZURE|GOOGLE)_\w*(?:KEY|SECRET|TOKEN|SAS|PASSWORD|ACCOUNT)\w*")
_HOST: Final = re.compile(r"://(?:[^/\s@]*@)?([\w.-]+(?::\d+)?)(?=[/?\s])")
_CONNECTING: Final = ("kind: Connect,", "Connect,\n")
_UNREACHED: Final = {"dns error": "its name is not known", "ConnectionRefused": "it refuses the connection"}
_BUSY: Final = (408, 429)
_PAST: Final = {"read": "read", "write": "written", "list": "listed", "remove": "removed"}


class Temporary(Exception):
    """A failure that need not last. Nobody outside of `bucket` meets it: what lasts after all is a `RemoteError`."""


class Passing(Temporary):
    """A failure that may not come again."""


class Expired(Temporary):
    """Credentials that are not valid any more; whoever gave them may have newer ones."""


class Busy(Temporary):
    """An answer that a store gives if it is overloaded or out of order."""


class Unreached(Passing):
    """No connection to the server could be made."""


def is_silent(error: Exception) -> bool:
    """True if an answer has no body, in which the reason would be: it was asked for the head alone."""
    return _SILENT.search(str(error)) is not None


def refusal(url: Url, verb: str, error: Exception) -> RemoteError | Temporary:
    """The error to raise for one of obstore's."""
    text, _, debug = str(error).partition("Debug source:")
    status = _STATUS.search(text)
    number = int(status[1]) if status else 0
    kind = type(error).__name__
    code = _without_secrets(found[1] or found[2]) if (found := _CODE.search(text)) else ""
    coded = f" ({code})" if code else ""
    help_ = f": {url.kind.credentials}" if url.kind.credentials else ""
    if _CLOCK.search(text):
        return RemoteError(
            f"{url} cannot be {_PAST[verb]}: the store refuses the request because its clock and that of this machine "
            f"differ{coded}. It is {_now()} here: set the clock (`timedatectl` says whether it is synchronised)"
        )
    # Before its answer is taken for the store's: that there is no role is no news about the object.
    if _of_identity(text):
        return Denied(
            f"{url}: there are no credentials in the environment, and this machine has no identity that the store "
            f"knows{coded}. They are looked for in {url.kind.searched}{help_}"
        )
    if isinstance(error, FileNotFoundError) or number == 404:
        says = f". The store says {code}" if code else ""
        return NotThere(f"{url} is not there: check the address, and the region and endpoint in the environment{says}")
    if number == 416:
        return RemoteError(
            f"{url} is shorter than it was: it was changed, or its upload did not finish. `packtrain verify` of its "
            "folder lists all damage"
        )
    if code in _EXPIRED or _EXPIRED_SIGNATURE in text:
        return Expired(f"{url}: the credentials have expired{coded}. Put new ones into the environment{help_}")
    if kind in ("PermissionDeniedError", "UnauthenticatedError") or number in (401, 403):
        return Denied(
            f"{url}: the store does not let these credentials {verb} it{coded}. Check those in the environment"
            f"{url.kind.whose}{help_}"
        )
    if _INCOMPLETE.search(text):
        return Denied(f"{url}: the credentials in the environment are not complete. Give all of them{help_}")
    begin = f"{url} cannot be {_PAST[verb]}: "
    if code == _OTHER_REGION or ("AWS_REGION" in url.kind.checked and "Received redirect without LOCATION" in text):
        return RemoteError(
            f"{begin}the bucket lies in another region{coded}. Set AWS_REGION to the bucket's region (`aws s3api "
            f"get-bucket-location --bucket {url.bucket}` prints it), and AWS_ENDPOINT_URL to an endpoint of that region"
        )
    if "Range request not supported" in text or "non-partial response" in text:
        return RemoteError(
            f"{begin}the server sends whole files, not ranges of them. Use one that answers ranged requests, as nginx "
            "and Apache do, or copy the files to this machine"
        )
    if 300 < number < 400 or "error following redirect" in text or f" {NOWHERE},\n" in debug:
        where = "address" if number else "host, or from https to http"
        return RemoteError(
            f"{begin}the server redirects to another {where}. packtrain does not follow, because requests may hold "
            f"credentials. If you trust it, give that address instead{url.kind.moved}"
        )
    if status:
        reason = f"{number}{(status[2] or '').rstrip()}{coded}"
        return (Busy if number >= 500 or number in _BUSY else RemoteError)(f"{begin}the server answers {reason}")
    if "Account must be specified" in text:
        return RemoteError(f"{begin}nothing says in which account: set AZURE_STORAGE_ACCOUNT_NAME")
    if "HTTP error: " in text and any(sign in debug for sign in _CONNECTING):
        host = _HOST.search(text)
        why = next((words for sign, words in _UNREACHED.items() if sign in debug), "no connection can be made")
        also = f", {url.kind.checked} in the environment, and" if url.kind.checked else " and"
        return Unreached(
            f"{begin}the server{' ' + host[1] if host else ''} cannot be reached: {why}. Check the address"
            f"{also} the network"
        )
    if "HTTP error: " in text or "response body" in text or "invalid list response" in text:
        return Passing(
            f"{begin}the server cannot be reached, does not answer, or breaks off: {_harmless(text)}. If this stays "
            "so, check the network, and the endpoint in the environment"
        )
    return RemoteError(begin + _harmless(text))


def _of_identity(text: str) -> bool:
    """True if not the store was asked, but who this machine is."""
    asked = found[1] if (found := _ASKED.search(text)) else ""
    endpoints = [where for name in IDENTITIES if (where := os.environ.get(name))]
    return bool(_IDENTITY.search(asked)) or asked.startswith(tuple(endpoints))


def _harmless(text: str) -> str:
    """The reason at the end of a message: without addresses, and without anything that is a secret of ours."""
    reason = _ADDRESS.sub("...", " ".join(text.split()).rpartition("HTTP error: ")[2] or "no reason is given")
    return _without_secrets(reason)[:200]


def _without_secrets(text: str) -> str:
    for name, value in os.environ.items():
        if _SECRET.fullmatch(name) and not name.endswith("_FILE") and len(value) > 3:
            text = text.replace(value, "***")
    return text


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
