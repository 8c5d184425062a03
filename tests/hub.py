"""A hub of our own: Hugging Face's routes as `huggingface_hub` calls them, in front of folders, misbehaving on demand.

It shows what it was asked for. Its files are those of a folder a revision; large ones are redirected to a second
address, as the hub does, where a token must not be seen.
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

LARGE = (".safetensors", ".gguf", ".bin")
"""What the hub keeps in Git LFS."""
TOKEN = "hf_secretsecretsecret"


@dataclass(slots=True)
class Repo:
    """A repository: a folder for each commit, and commits by the names of revisions."""

    commits: dict[str, Path] = field(default_factory=dict)
    revisions: dict[str, str] = field(default_factory=dict)
    licence: str = "apache-2.0"
    gated: bool = False
    """Files need TOKEN."""

    def publish(self, folder: Path, revision: str = "main") -> str:
        """Makes a commit of a folder, which the revision then has."""
        commit = hashlib.sha1(f"{folder}{len(self.commits)}".encode()).hexdigest()
        self.commits[commit] = folder
        self.revisions[revision] = commit
        return commit


@dataclass(slots=True)
class Hub:
    """A running one."""

    url: str
    repos: dict[str, Repo] = field(default_factory=dict)
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    """Method, path and Range of each request."""
    seen_at_storage: list[str] = field(default_factory=list)
    """Headers `Authorization` that came to the second address."""
    cuts: list[int] = field(default_factory=list)
    """After how many bytes the next answers with a large file break off."""
    wrong: set[str] = field(default_factory=set)
    """Names of files whose first byte is another one."""
    ranges: bool = True
    """Whether parts of files are sent."""
    stalls: threading.Event | None = None
    """Where it is set, large files stop half way until the event is."""

    def add(self, name: str, folder: Path, **more: Any) -> Repo:
        repo = self.repos.setdefault(name, Repo(**more))
        repo.publish(folder)
        return repo

    def sent_bytes(self, name: str) -> list[str | None]:
        """The ranges that were asked for of a file."""
        return [wanted for method, path, wanted in self.asked if method == "GET" and path.endswith(f"/{name}")]


def _git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _sibling(folder: Path, path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    entry = {"rfilename": str(path.relative_to(folder)), "size": len(content), "blobId": _git_sha1(content)}
    if path.suffix in LARGE:
        entry["lfs"] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "pointerSize": 130}
    return entry


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _answer(self) -> None:
            url = urlsplit(self.path)
            hub.asked.append((self.command, url.path, self.headers.get("Range")))
            parts = [unquote(part) for part in url.path.strip("/").split("/")]
            if parts[0] == "storage":
                if self.headers.get("Authorization"):
                    hub.seen_at_storage.append(self.headers["Authorization"])
                self._send_file(Path("/".join(["", *parts[1:]])), {"ETag": '"storage"'})
            elif parts[:2] == ["api", "models"]:
                self._info("/".join(parts[2:4]), parts[5] if len(parts) > 5 else "main", url.query)
            elif parts[2:3] == ["resolve"]:
                self._resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
            else:
                self._error(404, "EntryNotFound")

        def _found(self, name: str, revision: str) -> tuple[Repo, str] | None:
            repo = hub.repos.get(name)
            if repo is None:
                # The hub does not tell an account that it does not know whether there is such a repository.
                self._error(404 if self.headers.get("Authorization") else 401, "RepoNotFound")
                return None
            commit = repo.revisions.get(revision, revision)
            if commit not in repo.commits:
                self._error(404, "RevisionNotFound")
                return None
            return repo, commit

        def _info(self, name: str, revision: str, query: str) -> None:
            if (found := self._found(name, revision)) is None:
                return
            repo, commit = found
            folder = repo.commits[commit]
            siblings = [_sibling(folder, path) for path in sorted(folder.rglob("*")) if path.is_file()]
            if "blobs=" not in query:
                siblings = [{"rfilename": each["rfilename"]} for each in siblings]
            info = {
                "id": name, "sha": commit, "private": False, "gated": "manual" if repo.gated else False,
                "siblings": siblings, "tags": [f"license:{repo.licence}"], "cardData": {"license": repo.licence},
            }  # fmt: skip
            self._send(200, {"Content-Type": "application/json"}, json.dumps(info).encode())

        def _resolve(self, name: str, revision: str, file: str) -> None:
            if (found := self._found(name, revision)) is None:
                return
            repo, commit = found
            token = self.headers.get("Authorization")
            if repo.gated and token != f"Bearer {TOKEN}":
                self._error(401 if token is None else 403, "GatedRepo")
                return
            path = repo.commits[commit] / file
            if not path.is_file():
                self._error(404, "EntryNotFound")
                return
            content = path.read_bytes()
            headers = {"X-Repo-Commit": commit, "ETag": f'"{_git_sha1(content)}"'}
            if path.suffix in LARGE:
                linked = hashlib.sha256(content).hexdigest()
                headers |= {"X-Linked-Etag": f'"{linked}"', "X-Linked-Size": str(len(content))}
                # Another host name is another origin: a token is not to follow.
                place = hub.url.replace("127.0.0.1", "localhost")
                self._send(302, headers | {"Location": f"{place}/storage{path}?Signature=signed"}, b"")
            else:
                self._send_file(path, headers)

        def _send_file(self, path: Path, headers: dict[str, str]) -> None:
            content = path.read_bytes()
            if path.name in hub.wrong:
                content = bytes([content[0] ^ 1]) + content[1:]
            status, begin, end = 200, 0, len(content)
            if hub.ranges and (wanted := self.headers.get("Range")):
                first, last = wanted.removeprefix("bytes=").split("-")
                begin, end = int(first), min(end, int(last) + 1) if last else end
                status, headers = 206, headers | {"Content-Range": f"bytes {begin}-{end - 1}/{len(content)}"}
            part = content[begin:end]
            if path.suffix in LARGE and len(part) > 8:
                if hub.stalls is not None:
                    self._send(status, headers, part[: len(part) // 2], len(part))
                    hub.stalls.wait(300)
                    self.close_connection = True
                    return
                if hub.cuts:
                    self._send(status, headers, part[: hub.cuts.pop(0)], len(part))
                    self.close_connection = True
                    return
            self._send(status, headers, part)

        def _error(self, status: int, code: str) -> None:
            self._send(status, {"X-Error-Code": code, "X-Error-Message": code}, b"")

        def _send(self, status: int, headers: dict[str, str], content: bytes, length: int | None = None) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content) if length is None else length))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

    return Handler


@contextmanager
def running_hub() -> Iterator[Hub]:
    """A hub until the block ends."""
    hub = Hub("")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        if hub.stalls is not None:
            hub.stalls.set()
        server.shutdown()
        server.server_close()
        thread.join()
