"""Keeps requests, which may hold credentials, from following redirects to other servers.

obstore follows redirects to any host, and has no option against it. But a proxy applies to redirects, too. So every
host gets a proxy where nobody can listen, except those that a store needs.
"""

from __future__ import annotations

import os
import re
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from .urls import Url

if TYPE_CHECKING:
    from obstore.store import ClientConfig

NOWHERE: Final = "127.0.0.1:0"
"""An address that refuses every connection at once."""
IDENTITIES: Final = ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_ENDPOINT_URL_STS", "IDENTITY_ENDPOINT")
"""Variables that say where this machine asks who it is."""

_MORE_IDENTITIES: Final = (*IDENTITIES, "AWS_METADATA_ENDPOINT", "MSI_ENDPOINT", "AZURE_AUTHORITY_HOST")
_KNOWN_IDENTITIES: Final = (
    "169.254.0.0/16",
    "fd00:ec2::/32",
    "sts.amazonaws.com",
    "login.microsoftonline.com",
    "oauth2.googleapis.com",
    "metadata.google.internal",
)
_PROXY: Final = re.compile(r"(HTTPS?|ALL)_PROXY|(AWS|AZURE|GOOGLE)_PROXY_URL", re.IGNORECASE)


def confined(url: Url) -> ClientConfig:
    """Return obstore's options by which requests go to the server of `url` and to no other.

    A server of a cloud that no variable names is trusted. Behind a proxy of the user, only https is insisted on.
    """
    named = _named(url)
    plain = any(urlsplit(each).scheme == "http" for each in named) or (url.kind.plain_by_key_file and not named)
    if not named or any(value for name, value in os.environ.items() if _PROXY.fullmatch(name)):
        return {"allow_http": plain}
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    asked = [os.environ[name] for name in _MORE_IDENTITIES if name in os.environ]
    hosts = [_spelt(host) for each in (*named, *asked) if (host := urlsplit(each).hostname)]
    allowed = (*hosts, *_KNOWN_IDENTITIES, f"sts.{region}.amazonaws.com")
    return {"allow_http": plain, "proxy_url": f"http://{NOWHERE}", "proxy_excludes": ",".join(allowed)}


def _spelt(host: str) -> str:
    """A host as the client spells it: ``127.1`` is 127.0.0.1, and other letters than ASCII's are in Punycode."""
    with suppress(OSError):
        return socket.inet_ntoa(socket.inet_aton(host))
    with suppress(UnicodeError):
        return host.encode("idna").decode()
    return host


def _named(url: Url) -> list[str]:
    """The addresses of the server of a store, as far as the user has given any."""
    if not url.writable:
        return [url.base]
    found = [os.environ.get(name) for name in url.kind.endpoints]
    return [server for server in (*found, url.kind.emulator()) if server]
