"""Kinds of object stores: what a new scheme of addresses touches, unless its cloud is new, too.

obstore speaks to them all. This table holds what packtrain has to know besides: what the addresses look like, where
requests may go, and what a user should do when a store refuses something.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class StoreKind:
    """Everything that differs between stores.

    Attributes:
        writable: Whether objects can be written and listed. Otherwise this is a web server, and what follows the scheme
            is a host.
        endpoints: Variables of the environment that name a server.
        emulator: Returns the server of an emulator, if the environment asks for one.
        plain_by_key_file: Whether a key file may name a server without TLS, which only tests do.
        checked: What to check if the server cannot be reached, besides the address.
        moved: Where to put the address of a server that redirects.
        credentials: What to do without valid credentials.
        whose: How to find out whose credentials these are.
        searched: Where credentials are looked for.
    """

    writable: bool = True
    endpoints: tuple[str, ...] = ()
    emulator: Callable[[], str | None] = lambda: None
    plain_by_key_file: bool = False
    checked: str = ""
    moved: str = ""
    credentials: str = ""
    whose: str = ""
    searched: str = "the environment"


def _azurite() -> str | None:
    return "http://127.0.0.1" if "AZURE_STORAGE_USE_EMULATOR" in os.environ else None


def _google_emulator() -> str | None:
    with suppress(ValueError, AttributeError, KeyError):
        return str(json.loads(os.environ["GOOGLE_SERVICE_ACCOUNT_KEY"])["gcs_base_url"])
    return None


_S3: Final = StoreKind(
    endpoints=("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    checked="AWS_ENDPOINT_URL and AWS_REGION",
    moved=", in AWS_ENDPOINT_URL",
    credentials='for a profile, run `eval "$(aws configure export-credentials --format env)"`; for a public bucket, '
    "set AWS_SKIP_SIGNATURE=true",
    whose=" (`aws sts get-caller-identity` says whose they are)",
    searched="AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY, AWS_WEB_IDENTITY_TOKEN_FILE, and the identity of the task "
    "or the machine",
)
_GOOGLE: Final = StoreKind(
    endpoints=("GOOGLE_BASE_URL",),
    emulator=_google_emulator,
    plain_by_key_file=True,
    credentials="set GOOGLE_APPLICATION_CREDENTIALS to the path of a key file; for a public bucket, set "
    "GOOGLE_SKIP_SIGNATURE=true",
    searched="GOOGLE_SERVICE_ACCOUNT, GOOGLE_APPLICATION_CREDENTIALS, what `gcloud auth application-default login` "
    "wrote, and the identity of the machine",
)
_AZURE: Final = StoreKind(
    endpoints=("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "AZURITE_BLOB_STORAGE_URL"),
    emulator=_azurite,
    checked="AZURE_STORAGE_ENDPOINT",
    moved=", in AZURE_STORAGE_ENDPOINT",
    credentials="set AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN; for a "
    "public container, set AZURE_SKIP_SIGNATURE=true",
    searched="AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, AZURE_CLIENT_ID with AZURE_CLIENT_SECRET and "
    "AZURE_TENANT_ID, and the identity of the machine",
)
_WEB: Final = StoreKind(writable=False, moved=": `curl -sI ADDRESS` shows it")

KINDS: Final[dict[str, StoreKind]] = {"s3": _S3, "gs": _GOOGLE, "az": _AZURE, "http": _WEB, "https": _WEB}
"""Each scheme that packtrain reads."""


def known_schemes(*, writable: bool = False) -> str:
    """List the beginnings of addresses for messages; with `writable`, of those that can be written to."""
    return ", ".join(f"{scheme}://" for scheme, kind in KINDS.items() if kind.writable or not writable)
