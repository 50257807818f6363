"""A headless Chromium driven over its debugging pipe: no package, no port. Loads a page, listens, runs scripts."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--mute-audio",
    "--autoplay-policy=no-user-gesture-required",
    "--remote-debugging-pipe",
)
# Chromium reads file descriptor 3 and writes 4; a child that threads of this process cannot disturb puts them there.
PLACE = """
import os, sys
spare = [os.dup(int(number)) for number in sys.argv[1:3]]
for number, target in zip(spare, (3, 4)):
    os.dup2(number, target)
    os.set_inheritable(target, True)  # also where it was there already
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_browser() -> str | None:
    """Where Chromium is, if it is."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One process and one page; a context manager. ``complaints`` are console errors, exceptions and refused loads."""

    def __init__(self, program: str, scratch: Path) -> None:
        to_read, self._to_write = os.pipe()
        self._to_read, to_write = os.pipe()

        options = [*QUIET, f"--user-data-dir={scratch / 'profile'}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", PLACE, str(to_read), str(to_write), program, *options],
            pass_fds=(to_read, to_write),
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer = b""
        self._number = 0
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.loads = 0
        targets = self.call("Target.getTargets", session=None)["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", session=None, targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._to_write)
        os.close(self._to_read)

    def call(self, method: str, *, session: str | None = "", **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; what happens meanwhile is noted."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = self._session
        os.write(self._to_write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            more = os.read(self._to_read, 1 << 20)
            assert more, "the browser is gone"
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        said = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(str(said["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if said["type"] in ("error", "warning", "assert"):
                self.complaints.append(str(said["args"]))
            case "Log.entryAdded" if said["entry"]["level"] in ("error", "warning"):
                self.complaints.append(f"{said['entry']['text']} {said['entry'].get('url', '')}")
            case "Network.requestWillBeSent":
                self.requests.append(said["request"]["url"])
            case "Page.loadEventFired":
                self.loads += 1
            case _:
                pass

    def open(self, path: Path, *, width: int, height: int = 900, dark: bool = False, phone: bool = False) -> None:
        """Load a file in a window of so many CSS pixels and wait for its load event."""
        self.size(width, height, phone=phone)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        loads = self.loads
        self.call("Page.navigate", url=path.resolve().as_uri())
        while self.loads == loads:
            self._receive()

    def size(self, width: int, height: int, *, phone: bool = False) -> None:
        """Another window."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression, awaited where it is a promise."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def picture(self, path: Path) -> None:
        """The whole page as a PNG."""
        result = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(result["data"]))

    def pdf(self) -> bytes:
        """The page as it is printed."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)["data"])
