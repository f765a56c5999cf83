"""Headless Chromium over its debugging pipe: pages from disk, their console, their requests, and what they show."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
TIMEOUT = 60.0

# Chromium reads commands from file 3 and answers on file 4; both are moved out of the way before they are put there.
_LAUNCHER = """
import fcntl, os, sys
commands, answers = (fcntl.fcntl(int(fd), fcntl.F_DUPFD, 20) for fd in sys.argv[1:3])
os.dup2(commands, 3)
os.dup2(answers, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def chromium() -> str | None:
    """Return the path of a Chromium or Chrome, None if there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for path in map(shutil.which, names) if path), None)


class Browser:
    """A running Chromium; messages are JSON texts that end in a zero byte."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._last, self._buffer = 0, b""
        self.events: list[dict[str, Any]] = []

    def send(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; events that arrive before it are kept."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def receive(self) -> dict[str, Any]:
        """Return the next message; AssertionError if none comes in time."""
        deadline = time.monotonic() + TIMEOUT
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"Chromium has not answered for {TIMEOUT:.0f} s"
            received = os.read(self._answers, 1 << 20)
            assert received, "Chromium has ended"
            self._buffer += received
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message


class Tab:
    """One open page: what it shows, what it asked the network for, and what it complained about."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._target: str = browser.send("Target.createTarget", url="about:blank")["targetId"]
        self._session: str = browser.send("Target.attachToTarget", targetId=self._target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command to this page."""
        return self._browser.send(method, self._session, **parameters)

    def close(self) -> None:
        """Close the page."""
        self._browser.send("Target.closeTarget", targetId=self._target)

    def view(self, width: int, height: int, dark: bool = False, scripts: bool = True) -> None:
        """Set the window's size, the colour scheme, and whether scripts run."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Emulation.setScriptExecutionDisabled", value=not scripts)

    def open(self, path: Path) -> None:
        """Open a page from disk and wait until it has loaded."""
        self.send("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self._own()):
            self._browser.events.append(self._browser.receive())

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page; promises are awaited."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer.get("exceptionDetails")
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """Return the value of an expression as soon as it is truthy."""
        deadline = time.monotonic() + TIMEOUT
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < deadline, f"the page never reached: {expression}"
            time.sleep(0.05)
        return value

    def move_mouse(self, x: float, y: float) -> None:
        """Move the mouse, as a reader would."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        """Click the middle of an element."""
        x, y, width, height = self.box(selector)
        place = {"x": x + width / 2, "y": y + height / 2, "button": "left", "clickCount": 1}
        for type_ in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=type_, **place)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Drag with the mouse from one place to another."""
        steps = (("mousePressed", start), ("mouseMoved", end), ("mouseReleased", end))
        for type_, (x, y) in steps:
            self.send("Input.dispatchMouseEvent", type=type_, x=x, y=y, button="left", buttons=1, clickCount=1)

    def box(self, selector: str) -> list[float]:
        """Return x, y, width and height of an element, scrolled into sight."""
        found = self.evaluate(
            f"(() => {{ const element = document.querySelector({json.dumps(selector)});"
            " element.scrollIntoView({block: 'center'}); const box = element.getBoundingClientRect();"
            " return [box.x, box.y, box.width, box.height]; })()"
        )
        return [float(number) for number in found]

    def screenshot(self, path: Path, whole: bool = False) -> None:
        """Write what the page shows as a PNG."""
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def complaints(self) -> list[str]:
        """Return console warnings and errors, uncaught exceptions, and the browser's own log entries."""
        found = []
        for event in self._own():
            method, details = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(str(details["exceptionDetails"]))
            elif method == "Log.entryAdded":
                found.append(f"{details['entry']['level']}: {details['entry']['text']}")
            elif method == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning", "assert"):
                found.append(f"{details['type']}: {[argument.get('value') for argument in details['args']]}")
        return found

    def requests(self) -> list[str]:
        """Return the addresses that the page asked for, itself included; data: addresses hold their own answer."""
        wanted = [event for event in self._own() if event.get("method") == "Network.requestWillBeSent"]
        addresses = [str(event["params"]["request"]["url"]) for event in wanted]
        return [address for address in addresses if not address.startswith("data:")]

    def _own(self) -> list[dict[str, Any]]:
        return [event for event in self._browser.events if event.get("sessionId") == self._session]


@contextmanager
def run(program: str, folder: Path) -> Iterator[Browser]:
    """Start Chromium with an empty profile under `folder`, and end it and what it started."""
    commands_out, commands_in = os.pipe()
    answers_out, answers_in = os.pipe()
    arguments = [program, *FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
    launcher = [sys.executable, "-c", _LAUNCHER, str(commands_out), str(answers_in), *arguments]
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(launcher, pass_fds=(commands_out, answers_in), stdout=log, stderr=log)
    os.close(commands_out)
    os.close(answers_in)
    browser = Browser(commands_in, answers_out)
    try:
        yield browser
        browser.send("Browser.close")
    finally:
        os.close(commands_in)
        os.close(answers_out)
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
