"""A headless Chromium, driven by its developer tools' protocol through pipes."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SECONDS = 60.0


class Page:
    """A page of the browser.

    Attributes:
        said: What was written to the console, errors of the network and of the content policy included.
        asked: Addresses of all requests.
    """

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive, self._number, self._rest = send, receive, 0, b""
        self._session: str | None = None
        self.said: list[str] = []
        self.asked: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Calls a method of the protocol, and returns its result."""
        self._number += 1
        request = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            request["sessionId"] = self._session
        os.write(self._send, json.dumps(request).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def run(self, script: str) -> Any:
        """The value of an expression in the page, of which a promise is awaited."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, script: str) -> Any:
        """Waits until an expression in the page is true, and returns its value."""
        deadline = time.monotonic() + SECONDS
        while not (found := self.run(script)):
            assert time.monotonic() < deadline, f"{script} stays false; the console says {self.said}"
            time.sleep(0.005)
        return found

    def open(self, address: str) -> None:
        """Goes to an address."""
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete'")

    def press(self, key: str, text: str = "") -> None:
        """Presses a key."""
        self.call(
            "Input.dispatchKeyEvent", type="keyDown", key=key, code=key, text=text or ("\r" if key == "Enter" else "")
        )
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    def look(self, width: int, height: int, theme: str) -> None:
        """Gives the window a size, narrow ones as on a phone, and the person a preference for light or dark."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])

    def photograph(self, path: Path) -> None:
        """Writes what is seen to a PNG file."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._receive], [], [], SECONDS)
            assert ready, "the browser does not answer"
            piece = os.read(self._receive, 1 << 20)
            assert piece, "the browser has ended"
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        parameters = found.get("params", {})
        match found.get("method"):
            case "Runtime.consoleAPICalled":
                self.said.append(str([each.get("value") for each in parameters["args"]]))
            case "Runtime.exceptionThrown":
                self.said.append(str(parameters["exceptionDetails"]))
            case "Log.entryAdded":
                self.said.append(parameters["entry"]["text"])
            case "Page.javascriptDialogOpening":
                self.said.append(f"a dialog: {parameters['message']}")
            case "Network.requestWillBeSent":
                self.asked.append(parameters["request"]["url"])
        return found


@contextmanager
def browser(program: str, folder: Path) -> Iterator[Page]:
    """Starts a browser, whose profile lies in a folder, and ends it.

    Args:
        program: Path of Chromium.
        folder: An empty folder.
    """
    (theirs, send), (receive, answers) = os.pipe(), os.pipe()
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={folder}")
    # It reads commands from descriptor 3 and answers on descriptor 4.
    script = f'exec "$0" "$@" 3<&{theirs} 4>&{answers}'
    process = subprocess.Popen(
        ["bash", "-c", script, program, *flags], pass_fds=(theirs, answers), stderr=subprocess.DEVNULL
    )
    os.close(theirs)
    os.close(answers)
    try:
        yield Page(send, receive)
    finally:
        os.close(send)
        os.close(receive)
        process.terminate()
        process.wait()
