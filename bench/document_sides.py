"""The two servers of `bench.documents`: ours and llama.cpp's, asked about documents, killed, and started again.

Knows neither which lengths are measured nor in which order.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import httpx
import yaml  # type: ignore[import-untyped]

from bench.common import ROOT
from bench.faults.service import Service
from bench.faults.users import accounts_of, add_user, log_in
from bench.peers.http_server import Sizes, announced
from bench.peers.llama_cpp_state import drop_page_cache
from bench.peers.llama_server import PEER, slot_file_options
from bench.processes import free_port

_ANSWER_TIMEOUT_S: Final = 3000.0
_START_TIMEOUT_S: Final = 300.0
_SAVED_TIMEOUT_S: Final = 300.0
_SAVE_AFTER_S: Final = 1.0
_STILL_S: Final = 3.0
"""How long nothing more was saved when all is."""
_NAME: Final = "contract.txt"
_ONE_TOKEN: Final[Mapping[str, object]] = {"max_tokens": 1, "temperature": 0}


@dataclass(frozen=True, slots=True)
class Asked:
    """A question about a document, answered with one token."""

    seconds: float
    prompt_tokens: int
    cached_tokens: int


class Side(Protocol):
    """A server."""

    def about(self) -> dict[str, object]:
        """Says what it is, for the result."""
        ...

    def ask(self, document: str, question: str) -> Asked:
        """Asks in a new chat. Raises httpx.HTTPError."""
        ...

    def keep(self, name: str) -> None:
        """Returns when what was computed last is on disk. name: of the document."""
        ...

    def recall(self, name: str) -> float:
        """Gets ready to be asked about a document that was kept; the seconds that an order for that takes."""
        ...

    def kill(self) -> float:
        """Kills what computes with signal 9; the seconds until the server is whole again."""
        ...

    def restart(self) -> float:
        """Ends it, drops what it kept from the page cache, and starts it; the seconds until it is whole again."""
        ...


class OurService:
    """The service as `redoubt serve` starts it, with a user and saved pages."""

    def __init__(self, service: Service, model: str, pages: Path) -> None:
        """service: one that is whole, with its user's headers. pages: the folder of saved pages."""
        self._service = service
        self._model = model
        self._pages = pages
        self._chats = 0

    def about(self) -> dict[str, object]:
        return {"version": "this commit", "settings": "redoubt serve, one worker, a user with saved pages"}

    def tokens_of(self, text: str) -> int:
        """How many tokens a text has."""
        return int(self._call("POST", "/tokenize", {"model": self._model, "prompt": text})["count"])

    def ask(self, document: str, question: str) -> Asked:
        self._chats += 1
        file = {"type": "file", "file": {"filename": _NAME, "text": document}}
        content = [file, {"type": "text", "text": question}]
        messages = [{"role": "user", "content": content}]
        body = {"model": self._model, "messages": messages, "prompt_cache_key": f"chat {self._chats}", **_ONE_TOKEN}
        began_s = time.perf_counter()
        answer = self._call("POST", "/v1/chat/completions", body)
        return _asked(time.perf_counter() - began_s, answer)

    def keep(self, name: str) -> None:
        """By itself, as the chat is idle."""
        deadline_s, before, since_s = time.monotonic() + _SAVED_TIMEOUT_S, 0, time.monotonic() + _SAVE_AFTER_S
        while time.monotonic() - since_s < _STILL_S:
            if (now := self._call("GET", "/v1/memory")["bytes"]) != before:
                before, since_s = now, time.monotonic()
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"the document's pages were not saved within {_SAVED_TIMEOUT_S:.0f} s")
            time.sleep(0.2)

    def recall(self, name: str) -> float:
        """It finds them by itself."""
        return 0.0

    def kill(self) -> float:
        service, began_s = self._service, time.monotonic()
        before = {row["worker_id"] for row in service.rows()}
        for pid in service.processes("worker"):
            os.kill(pid, signal.SIGKILL)
        while not [row for row in service.rows() if row["state"] == "alive" and row["worker_id"] not in before]:
            if time.monotonic() - began_s > _START_TIMEOUT_S:
                raise RuntimeError(f"no worker came in place of the killed one:\n{service.log.read_text()[-2000:]}")
            time.sleep(0.1)
        return time.monotonic() - began_s

    def restart(self) -> float:
        self._service.end()
        for path in self._pages.rglob("*.kv"):
            drop_page_cache(path)
        began_s = time.monotonic()
        self._service.start()
        self._service.wait_until_whole(1)
        return time.monotonic() - began_s

    def _call(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
        url, headers = self._service.url + path, self._service.headers
        return _json(httpx.request(method, url, json=body, headers=headers, timeout=_ANSWER_TIMEOUT_S))


@contextmanager
def our_service(model: Path, threads: int, kv_bytes: int, folder: Path) -> Iterator[OurService]:
    """A service of this model, which is ended with the block. Raises RuntimeError, httpx.HTTPError."""
    values = yaml.safe_load((ROOT / "ray_configs/local.yaml").read_text(encoding="utf-8"))
    arguments = values["applications"][0]["args"]
    pages, config = folder / "pages", folder / "service.yaml"
    with accounts_of("sqlite", folder) as accounts:
        arguments["accounts"] = accounts
        arguments["model"]["folder"] = str(model.absolute())
        arguments["memory"] = {"folder": str(pages), "save_after_s": _SAVE_AFTER_S}
        arguments["worker"] |= {"threads": threads, "ray_num_cpus": 0.1}
        arguments["engine"]["kv_memory_bytes"] = kv_bytes
        config.write_text(yaml.safe_dump(values), encoding="utf-8")
        add_user(config)
        service = Service(config, folder / "service.log")
        try:
            service.start()
            service.wait_until_answering()
            service.headers = log_in(service.url)
            service.wait_until_whole(1)
            yield OurService(service, model.name, pages)
        finally:
            service.end()


class LlamaServer:
    """llama.cpp's server: one slot with its prompt cache, and files of the slot."""

    def __init__(self, command: Callable[[int], tuple[str, ...]], version: str, folder: Path) -> None:
        """command: starts it on a port. folder: of slot files and the log."""
        self._command = command
        self._version = version
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._url = ""

    def about(self) -> dict[str, object]:
        said = announced(self._folder / "log")
        return {"version": self._version, "settings": "one slot, cache_prompt, slot files, f16 KV", **said}

    def start(self) -> float:
        """Starts it; the seconds until it is ready. Raises RuntimeError with its last output."""
        began_s, port = time.monotonic(), free_port()
        self._url = f"http://127.0.0.1:{port}"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        log = self._folder / "log"
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                ("setpriv", "--pdeathsig", "KILL", *self._command(port)),
                cwd=ROOT, env=environment, stdout=out, stderr=out,
            )  # fmt: skip
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() - began_s > _START_TIMEOUT_S:
                raise RuntimeError(f"llama.cpp's server did not start: {log.read_text(errors='replace')[-1500:]}")
            time.sleep(0.1)
        return time.monotonic() - began_s

    def ask(self, document: str, question: str) -> Asked:
        content = f'<document name="{_NAME}">\n{document}\n</document>\n\n{question}'
        messages = [{"role": "user", "content": content}]
        began_s = time.perf_counter()
        body = {"messages": messages, "cache_prompt": True, "id_slot": 0, **_ONE_TOKEN}
        answer = self._call("/v1/chat/completions", body)
        return _asked(time.perf_counter() - began_s, answer)

    def keep(self, name: str) -> None:
        self._call("/slots/0?action=save", {"filename": f"{name}.bin"})

    def recall(self, name: str) -> float:
        began_s = time.perf_counter()
        self._call("/slots/0?action=restore", {"filename": f"{name}.bin"})
        return time.perf_counter() - began_s

    def kill(self) -> float:
        self._end(signal.SIGKILL)
        return self.start()

    def restart(self) -> float:
        self._end(signal.SIGTERM)
        for path in self._folder.glob("*.bin"):
            drop_page_cache(path)
        return self.start()

    def end(self) -> None:
        if self._process is not None:
            self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(60)

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self._url}/health", timeout=5).is_success
        except httpx.HTTPError:
            return False

    def _call(self, path: str, body: Mapping[str, object]) -> Any:
        return _json(httpx.post(self._url + path, json=body, timeout=_ANSWER_TIMEOUT_S))


@contextmanager
def llama_server(
    gguf: Path, threads: int, context_tokens: int, environments: Path, folder: Path
) -> Iterator[LlamaServer]:
    """llama.cpp's server with this model, ended with the block; installed before. Raises InstallError, RuntimeError."""
    PEER.install(environments)
    python = PEER.python(environments).absolute()
    sizes = Sizes(threads=threads, slots=1, context_tokens=context_tokens, kv_bytes=0)

    def command(port: int) -> tuple[str, ...]:
        return (*PEER.start(python, gguf.absolute(), port, sizes).command, *slot_file_options(folder))

    server = LlamaServer(command, PEER.version, folder)
    try:
        server.start()
        yield server
    finally:
        server.end()


def _json(response: httpx.Response) -> Any:
    if not response.is_success:
        raise RuntimeError(f"{response.request.url.path} answered {response.status_code}: {response.text[:300]}")
    return json.loads(response.content)


def _asked(seconds: float, answer: Mapping[str, Any]) -> Asked:
    usage = answer["usage"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Asked(seconds, usage["prompt_tokens"], cached)
