"""The chat page's main path in Debian's Firefox, by WebDriver BiDi, which it speaks itself.

python -m tests.firefox    (`make conformance` runs it)

Playwright drives a Firefox of its own making only. Prints a line for each step; the exit status is 1 where one fails.
"""

import itertools
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.browser import AXE
from tests.fake_v1 import FakeV1, running

WAIT_S = 30.0
KEYS = {"Enter": "\ue006", "Escape": "\ue00c"}
CODE = "1. Code:\n\n   ```python\n   print('a')\n   ```"
ANSWER = f"Hello from the **fake**.\n\n{CODE}\n\nA note[^1], H<sub>2</sub>O.\n\n[^1]: Of it."


class Firefox:
    """One page of a running Firefox."""

    def __init__(self, line: ClientConnection) -> None:
        self._line = line
        self._ids = itertools.count(1)
        self.complaints: list[str] = []
        self.version = str(self.do("session.new", capabilities={})["capabilities"]["browserVersion"])
        self.do("session.subscribe", events=["log.entryAdded"])
        self._page = self.do("browsingContext.getTree")["contexts"][0]["context"]

    def do(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command's result. Raises RuntimeError where it fails."""
        number = next(self._ids)
        self._line.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._line.recv(timeout=WAIT_S))
            if message.get("method") == "log.entryAdded" and message["params"]["level"] in ("error", "warn"):
                self.complaints.append(str(message["params"]["text"]))
            if message.get("id") == number:
                if message["type"] == "error":
                    raise RuntimeError(f"{method}: {message['message']}")
                return dict(message["result"])

    def go(self, url: str) -> None:
        self.do("browsingContext.navigate", context=self._page, url=url, wait="complete")

    def run(self, expression: str) -> Any:
        """The value of an expression, awaited, as JSON has it. Raises RuntimeError where it throws."""
        wrapped = f"(async () => JSON.stringify(await ({expression}) ?? null))()"
        target = {"context": self._page}
        result = self.do("script.evaluate", expression=wrapped, target=target, awaitPromise=True)
        if result["type"] == "exception":
            raise RuntimeError(result["exceptionDetails"]["text"])
        return json.loads(result["result"]["value"])

    def press(self, *keys: str) -> None:
        """Keys by their names, other texts letter by letter."""
        letters = [KEYS[key]] if (key := keys[0]) in KEYS else [*key]
        actions = [{"type": kind, "value": letter} for letter in letters for kind in ("keyDown", "keyUp")]
        source = {"type": "key", "id": "keyboard", "actions": actions}
        self.do("input.performActions", context=self._page, actions=[source])
        if keys[1:]:
            self.press(*keys[1:])

    def until(self, expression: str, wanted: Any = True) -> None:
        """Waits until an expression has a value. Raises AssertionError."""
        deadline = time.monotonic() + WAIT_S
        while (found := self.run(expression)) != wanted:
            assert time.monotonic() < deadline, f"{expression} is {found!r}, not {wanted!r}"
            time.sleep(0.05)

    def focused(self) -> str:
        return str(self.run("(e => e.ariaLabel || e.textContent.trim() || e.id)(document.activeElement)"))

    def click(self, name: str) -> None:
        """Clicks on a button. name: how its label or text begins."""
        found = (
            "[...document.querySelectorAll('button, summary')].find(e => !e.disabled"
            " && e.checkVisibility({visibilityProperty: true})"
            f" && (e.ariaLabel || e.textContent.trim()).startsWith({json.dumps(name)}))"
        )
        self.until(f"!!{found}")
        self.run(f"{found}.scrollIntoView({{block: 'nearest'}})")
        x, y = self.run(f"(box => [box.x + box.width / 2, box.y + box.height / 2])({found}.getBoundingClientRect())")
        actions = [
            {"type": "pointerMove", "x": round(x), "y": round(y)},
            {"type": "pointerDown", "button": 0},
            {"type": "pointerUp", "button": 0},
        ]
        source = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": actions}
        self.do("input.performActions", context=self._page, actions=[source])


@contextmanager
def firefox(executable: str) -> Iterator[Firefox]:
    with tempfile.TemporaryDirectory() as profile:
        command = [executable, "--headless", "--no-remote", "--profile", profile, "--remote-debugging-port", "0"]
        process = subprocess.Popen(
            [*command, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        try:
            found = next(filter(None, (re.search(r"listening on (ws://\S+)", line) for line in process.stderr)))
            threading.Thread(target=process.stderr.read, daemon=True).start()  # a full pipe would stop it
            with connect(f"{found[1]}/session", max_size=None) as line:
                yield Firefox(line)
        finally:
            process.terminate()
            process.wait(30)


def main_path(page: Firefox, fake: FakeV1) -> Iterator[tuple[str, Callable[[], None]]]:
    """What is tried, step by step."""
    texts = "[...document.querySelectorAll('.answer .body')].map(e => e.innerText)"

    def opens() -> None:
        page.go(f"{fake.url}/")
        page.until("document.activeElement.id", "message")
        page.until("!!document.querySelector('.dot.ready')")

    def answers() -> None:
        page.press("Hello?", "Enter")
        page.until("document.querySelectorAll('.answer .tools').length", 1)
        page.until("!!document.querySelector('li figure.code .hljs-string') && !!document.querySelector('.body sub')")
        page.until("document.querySelector('.aloud').textContent.endsWith('End of the answer.')")

    def footnote() -> None:
        page.run("document.querySelector('[role=doc-noteref]').click()")
        page.until("document.activeElement.className", "note")
        page.until("location.hash", "")

    def stops() -> None:
        fake.words, fake.pause_s = [f"word{i} " for i in range(3000)], 0.01
        page.run("document.querySelector('#message').focus()")
        page.press("Count", "Enter")
        page.until("!!document.querySelector('.answer[data-status=writing]')")
        page.press("Escape")
        page.until("!!document.querySelector('.answer[data-status=stopped]')")
        fake.words, fake.pause_s = ["Fine."], 0

    def edits() -> None:
        page.click("Edit")
        page.until("document.activeElement.ariaLabel", "Edit the question")
        page.press(" Really?", "Enter")
        page.until(f"{texts}.at(-1).trim()", "Fine.")
        page.until("document.activeElement.id", "message")

    def menu() -> None:
        page.click("Menu of")
        page.until("document.activeElement.textContent", "Rename")
        page.press("Escape")
        page.until("document.activeElement.tagName", "SUMMARY")
        page.click("Menu of")
        page.click("Rename")
        page.until("document.activeElement.ariaLabel", "Title")
        page.press("Renamed", "Enter")
        page.until("document.querySelector('.sidebar .title').textContent", "Renamed")

    def dialog() -> None:
        page.click("Settings")
        page.until("!!document.querySelector('dialog[open]')")
        page.press("Escape")
        page.until("document.activeElement.textContent.trim()", "Settings")

    def reload() -> None:
        before = page.run(texts)
        opens()
        page.until(texts, before)

    def deletes() -> None:
        page.click("Menu of")
        page.click("Delete")
        page.until("document.querySelectorAll('.sidebar .title').length", 0)
        page.click("Undo")
        page.until("document.querySelectorAll('.sidebar .title').length", 1)
        page.until("document.activeElement.tagName", "SUMMARY")

    def is_accessible() -> None:
        page.run(f"(() => {{ {AXE.read_text(encoding='utf-8')} }})()")
        found = page.run("axe.run(document).then(all => all.violations.map(one => `${one.id}: ${one.nodes[0].html}`))")
        assert found == [], found

    def is_quiet() -> None:
        assert page.complaints == [], page.complaints

    steps = (opens, answers, footnote, stops, edits, menu, dialog, reload, is_accessible, deletes, is_quiet)
    yield from ((step.__name__, step) for step in steps)


def main() -> int:
    """Runs the steps; returns the exit status."""
    executable = shutil.which("firefox-esr") or shutil.which("firefox")
    if executable is None:
        raise SystemExit("firefox is needed: apt-get install firefox-esr")
    fake = FakeV1(words=[ANSWER])
    with running(fake), firefox(executable) as page:
        print(f"Firefox {page.version}", flush=True)
        for name, step in main_path(page, fake):
            began_s = time.monotonic()
            try:
                step()
            except (AssertionError, RuntimeError) as error:
                print(f"{name}: FAILED: {error}; focus: {page.focused()}")
                return 1
            print(f"{name}: {time.monotonic() - began_s:.2f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
