"""`packtrain view`."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from packtrain._core.errors import UsageError

from .options import look_options
from .output import say
from .paths import PATH


@click.command("view", context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("dataset", type=PATH)
@look_options
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port of the page, the same at both ends of a tunnel; 0: any that is free.",
)
@click.option("--browser/--no-browser", default=True, help="Open the page in a browser, where there is a screen.")
def command(dataset: Path, where: str | None, port: int, browser: bool, **options: Any) -> None:
    """Show DATASET as a page in a browser on this machine, until Ctrl-C.

    Nobody else can open the page: its address, which is printed, holds a secret.
    """
    from packtrain._extras.looking.looker import Looker, LookOptions
    from packtrain._extras.looking.pages import Pages
    from packtrain._extras.looking.server import HOST, View, serving

    # For --transform module:attribute: like `python -m`, find modules in the current folder.
    sys.path.insert(0, "")
    looker = Looker(dataset, LookOptions(**options))
    chosen = None if where is None else looker.rows.where(where)
    if chosen is not None and not len(chosen):
        raise UsageError(f"--where {where!r} takes none of the {len(looker.rows):,} rows")
    with serving(View(looker, Pages(looker.rows, chosen)), port) as (server, address):
        say(address)
        if "SSH_CONNECTION" in os.environ:
            tunnel = f"ssh -L {server.server_port}:{HOST}:{server.server_port} {socket.gethostname()}"
            say(f"to open it on your own machine, first run there: {tunnel}", err=True)
        say("Ctrl-C ends it", err=True)
        # Without a screen, a browser would take over the terminal.
        if browser and ("DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ):
            import webbrowser

            webbrowser.open(address)
        with suppress(KeyboardInterrupt):
            server.serve_forever()
