"""The hang map in a real browser, driven as a person drives it: keys, clicks, a phone's width, light and dark.

Chromium is spoken to through its own protocol over two pipes; nothing has to be installed for it.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import unhang
from unhang import _core, _state

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE = 300

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed"),
    pytest.mark.skipif(not hasattr(torch, "compile"), reason="torch plays no part in it: run once, with the newest"),
]


class Browser:
    """A page in a headless browser, and everything that it complained about or asked the network for."""

    def __init__(self, folder: Path) -> None:
        command = [
            str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
            "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
            "--remote-debugging-pipe", f"--user-data-dir={folder}",
        ]  # fmt: skip
        their_input, self._out = _high_pipe()
        self._in, their_output = _high_pipe()
        # The browser expects its pipes under the numbers 3 and 4.
        wrapper = (
            "import os, sys\n"
            f"os.dup2({their_input}, 3); os.dup2({their_output}, 4)\n"
            "os.execv(sys.argv[1], sys.argv[1:])"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", wrapper, *command], pass_fds=(their_input, their_output),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(their_input)
        os.close(their_output)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.complaints: list[Any] = []
        self.requests: list[str] = []
        self._events: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + PATIENCE
        while True:
            answer = self._read(until)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _read(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._in, 1 << 16)
            assert part, "the browser is gone"
            self._buffer += part
        text, self._buffer = self._buffer.split(b"\0", 1)
        message = json.loads(text)
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        loud = method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning")
        if method == "Runtime.exceptionThrown" or loud or method == "Log.entryAdded":
            self.complaints.append(parameters)
        if method:
            self._events.append(method)
        return message

    def open(self, url: str) -> None:
        self._events.clear()
        self.call("Page.navigate", url=url)
        until = time.monotonic() + PATIENCE
        while "Page.loadEventFired" not in self._events:
            self._read(until)

    def value(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str, code: int, text: str | None = None) -> None:
        same = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        more = {"text": text} if text else {}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **same, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", **same)

    def click(self, selector: str) -> None:
        script = (
            f"(() => {{ const it = document.querySelector({selector!r}); it.scrollIntoView({{block: 'center'}});"
            "const at = it.getBoundingClientRect(); return [at.x + at.width / 2, at.y + at.height / 2]; })()"
        )
        x, y = self.value(script)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE)
        os.close(self._in)
        os.close(self._out)


def _high_pipe() -> tuple[int, int]:
    """A pipe whose numbers are not 3 or 4."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high[0], high[1]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    opened = Browser(tmp_path_factory.mktemp("browser"))
    yield opened
    opened.close()


@pytest.fixture
def page(tmp_path: Path, browser: Browser) -> str:
    """The report of a tracked model, on a machine where something is known of MIOpen too."""
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 1))
    unhang.track(model)
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        for _ in range(3):
            model(torch.randn(1, 3, 16, 16)).sum().backward()
        F.conv2d(torch.randn(1, 3, 16, 16), torch.randn(8, 3, 3, 3))
    session = _state.state().session
    for size, verdict, seconds in ((32, "works", 1e-3), (42, "works", 3e-3), (44, "hangs", None), (64, "hangs", None)):
        for direction in ("forward", "backward-data"):
            key = f"{direction}:f32:nchw:1x16x{size}x{size}:32x3x3:s1x1:p1x1:d1x1:g1"
            detail = "did not return within 60 s" if verdict == "hangs" else ""
            session.learn(_core.Problem.from_key(key), "miopen", verdict, seconds, detail)
    half = _core.Problem.from_key("forward:f16:nchw:1x16x32x32:32x3x3:s1x1:p1x1:d1x1:g1")
    session.learn(half, "miopen", "crashes", None, "signal 6 <b>not markup</b>")
    path = tmp_path / "map.html"
    unhang.report().html(path)
    browser.complaints.clear()
    browser.requests.clear()
    browser.open(path.as_uri())
    return path.as_uri()


def cell_with(browser: Browser, words: str) -> str:
    name = browser.value(
        f"[...document.querySelectorAll('.cell')].find((it) => it.ariaLabel.includes({words!r})).dataset.cell"
    )
    return f"[data-cell='{name}']"


def test_it_asks_for_nothing_and_complains_of_nothing(browser: Browser, page: str) -> None:
    assert browser.value("document.querySelectorAll('.cell').length") == 4
    assert browser.value("document.querySelector('#layers').innerText").count("forward:f32") >= 2, "the model's layers"
    assert browser.requests == [page]
    assert browser.complaints == []


def test_a_click_opens_the_evidence_and_the_plan(browser: Browser, page: str) -> None:
    browser.click(cell_with(browser, "44: hangs"))
    assert browser.value("document.querySelector('dialog').open")
    shown = browser.value("document.querySelector('dialog').innerText")
    assert "did not return within 60 s" in shown
    assert "plan: " in shown
    assert "1x16x44x44" in shown
    browser.click("dialog button")
    assert not browser.value("document.querySelector('dialog').open")
    assert browser.complaints == []


def test_keys_are_enough(browser: Browser, page: str) -> None:
    for _ in range(12):
        browser.press("Tab", 9)
        if browser.value("document.activeElement.classList.contains('cell')"):
            break
    label = browser.value("document.activeElement.ariaLabel")
    assert label, "the first map is reached with the tabulator key"
    browser.press("ArrowRight", 39)
    assert browser.value("document.activeElement.ariaLabel") != label
    browser.press("Enter", 13, "\r")
    assert browser.value("document.querySelector('dialog').open")
    assert browser.value("document.querySelector('dialog').contains(document.activeElement)")
    browser.press("Escape", 27)
    assert not browser.value("document.querySelector('dialog').open")
    assert browser.value("document.activeElement.classList.contains('cell')"), "back where it was"


def test_filters_act(browser: Browser, page: str) -> None:
    def choose(which: str, name: str) -> str:
        browser.value(
            f"(() => {{ const it = document.querySelector('#filter-{which}');"
            f"it.value = [...it.options].find((option) => option.text === {name!r}).value;"
            "it.dispatchEvent(new Event('change')); })()"
        )
        return browser.value("[...document.querySelectorAll('.cell')].map((it) => it.ariaLabel).join('\\n')")

    assert ": hangs" in browser.value("[...document.querySelectorAll('.cell')].map((it) => it.ariaLabel).join('\\n')")
    cells = choose("data-type", "f16")
    assert ": crashes" in cells
    assert ": hangs" not in cells
    browser.click(cell_with(browser, ": crashes"))
    assert "<b>not markup</b>" in browser.value("document.querySelector('dialog').innerText")
    browser.press("Escape", 27)
    choose("data-type", "f32")
    assert choose("direction", "backward-data").count(": hangs") == 2


def test_light_dark_and_a_phone(browser: Browser, page: str) -> None:
    looks = []
    for scheme in ("light", "dark"):
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        numbers = browser.value("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
        looks.append(sum(numbers[:3]) / 3)
    assert looks[0] > 200
    assert looks[1] < 60
    browser.call("Emulation.setEmulatedMedia", features=[])
    browser.call("Emulation.setDeviceMetricsOverride", width=360, height=740, deviceScaleFactor=2, mobile=True)
    try:
        browser.open(page)
        assert browser.value("innerWidth") == 360
        assert browser.value("document.documentElement.scrollWidth") <= 360, "the page itself does not scroll sideways"
        browser.click(cell_with(browser, ": hangs"))
        width = browser.value("document.querySelector('dialog').getBoundingClientRect().width")
        assert 300 <= width <= 360
        smallest = browser.value("Math.min(...[...document.querySelectorAll('.cell')].map((it) => it.offsetHeight))")
        assert smallest >= 36, "large enough for a finger"
    finally:
        browser.call("Emulation.clearDeviceMetricsOverride")
    assert browser.complaints == []
