"""A real headless Chromium, spoken to in its own DevTools protocol over a pipe: no library, no port, no driver.

https://chromedevtools.github.io/devtools-protocol/; with --remote-debugging-pipe the browser reads JSON messages that
end with a NUL from file descriptor 3, and writes its own to 4.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "google-chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # root, in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-sync",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class Chromium:
    """One browser with one page. What its console says, what it throws and what it asks for is kept."""

    def __init__(self, profile: Path) -> None:
        path = next(filter(None, map(shutil.which, NAMES)), None)
        assert path is not None, "chromium is not installed: apt-get install chromium"
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        # the shell puts the two pipes where the browser looks for them
        script = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", script, path, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._number, self._session = b"", 0, ""
        self.said: list[str] = []
        """Errors and warnings of the console, and exceptions that nothing caught."""
        self.asked: list[str] = []
        """Addresses that the page asked for, its own aside."""
        self._address, self._loaded = "", False
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """Ends the browser."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Calls a method of the protocol and returns its result; events that come meanwhile are noted."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def open(self, page: Path, width: int, height: int = 900, scheme: str = "light", media: str = "") -> None:
        """Shows a page in a window of this size, in light or dark, and waits until it is loaded and painted."""
        phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)
        self._address, self._loaded = page.resolve().as_uri(), False
        self.call("Page.navigate", url=self._address)
        while not self._loaded:
            self._receive()
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression on the page; a promise is waited for."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def key(self, name: str) -> None:
        """Presses and releases a key."""
        code = {"Tab": 9, "Enter": 13}.get(name, 0)
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code)

    def point(self, x: float, y: float) -> None:
        """Moves the mouse."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def tap(self, x: float, y: float) -> None:
        """Touches the page for a moment."""
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def screenshot(self, path: Path, whole: bool = True) -> None:
        """Writes a PNG of the whole page, or of what the window shows."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def thumbnail(self, width: int) -> bytes:
        """A PNG of what the window shows, a tenth as wide."""
        clip = {"x": 0, "y": self.run("scrollY"), "width": width, "height": 800, "scale": 0.1}
        return base64.b64decode(self.call("Page.captureScreenshot", format="png", clip=clip)["data"])

    def pdf(self, path: Path) -> bytes:
        """The page as it is printed on A4."""
        data = self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, preferCSSPageSize=True)[
            "data"
        ]
        path.write_bytes(base64.b64decode(data))
        return path.read_bytes()

    def _receive(self) -> dict[str, Any]:
        limit = time.monotonic() + 60
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, limit - time.monotonic()))
            assert ready, "the browser says nothing for a minute"
            data = os.read(self._in, 1 << 20)
            assert data, f"the browser has ended, with code {self._process.poll()}"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        found = json.loads(message)
        self._note(found.get("method", ""), found.get("params", {}))
        return found

    def _note(self, method: str, what: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.said.append(json.dumps(what["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.said.append(json.dumps(what["args"]))
        elif method == "Log.entryAdded":
            self.said.append(f"{what['entry']['level']}: {what['entry']['text']}")
        elif method == "Network.requestWillBeSent" and what["request"]["url"].split("#")[0] != self._address:
            self.asked.append(what["request"]["url"])
