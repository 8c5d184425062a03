"""The servers of a run: which are there, and whose turn it is. Knows nothing of requests.

Each is started for its turn and ended after it, for an idle service of ours takes a share of the cores from the others.
Or all stay loaded and take turns.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from bench.common import available_memory_bytes
from bench.conversations.server import Launch, Server, ServerError, listed_models, undisturbed
from bench.places import shown_url, without_places


class Target(Protocol):
    """Something to measure, which serves models at an address."""

    name: str
    url: str
    models: tuple[str, ...]
    """Models that the conversations use, in turn."""

    def about(self) -> dict[str, Any]: ...


class RunningService:
    """A service that runs already, and that this bench neither starts nor ends."""

    def __init__(self, url: str) -> None:
        """Raises ServerError if it lists no model. The API key is REDOUBT_API_KEY."""
        key = os.environ.get("REDOUBT_API_KEY")
        self.name, self.url = "service", url.rstrip("/")
        self.models = listed_models(self.url, {"Authorization": f"Bearer {key}"} if key else None)[:1]
        if not self.models:
            raise ServerError(f"{self.url}/v1/models lists no model; is it an OpenAI API, and REDOUBT_API_KEY set?")

    def about(self) -> dict[str, Any]:
        return {"url": shown_url(self.url), "model": without_places(self.models[0])}


class Fleet:
    """Servers that this bench starts and ends."""

    def __init__(self, launches: Sequence[Launch], warm_up: Callable[[Target], None], *, together: bool) -> None:
        """warm_up: done to each server once after each start. together: whether all stay loaded."""
        self.together = together
        self.missing: dict[str, str] = {}
        self._servers = {launch.name: Server(launch) for launch in launches}
        self._warm_up = warm_up

    @property
    def names(self) -> list[str]:
        """Servers that have not failed to start."""
        return [name for name in self._servers if name not in self.missing]

    def about(self) -> dict[str, Mapping[str, Any]]:
        """Metadata of the started servers for a result."""
        return {name: server.about() for name, server in self._servers.items() if server.was_ready}

    def order(self, number: int) -> list[str]:
        """The servers in the order of a round: another one is first each time."""
        names = self.names
        first = number % len(names) if names else 0
        return names[first:] + names[:first]

    @contextlib.contextmanager
    def running(self) -> Iterator["Fleet"]:
        """Starts the block in which servers may run; ends all of them afterwards."""
        try:
            if self.together:
                for name in list(self._servers):
                    self._start(name)
            yield self
        finally:
            with undisturbed():
                for server in self._servers.values():
                    server.end()

    @contextlib.contextmanager
    def turn(self, name: str) -> Iterator[Server | None]:
        """The server, warm, within the block; None if it does not start."""
        server = self._servers[name]
        if name not in self.missing and not server.runs:
            self._start(name)
        if name in self.missing:
            yield None
            return
        with server.turn():
            yield server
        if not self.together or name in self.missing:
            server.end()

    def fails(self, name: str, reason: str) -> None:
        """Excludes a server and records the reason; the others go on."""
        self.missing[name] = reason
        print(f"{name} takes no further part: {reason}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def share_of_others(self, name: str) -> Iterator[Callable[[], float]]:
        """Yields a function that returns how many cores the other servers used within the block."""
        before_s, began_s = self.others_cpu_s(name), time.monotonic()
        yield lambda: round((self.others_cpu_s(name) - before_s) / (time.monotonic() - began_s), 3)

    def others_cpu_s(self, name: str) -> float:
        """Processor time that all servers but this one have taken so far."""
        return sum(server.cpu_s() for other, server in self._servers.items() if other != name)

    def _start(self, name: str) -> None:
        """Starts it, warms it up and lets it rest; if that fails it is missing."""
        server = self._servers[name]
        print(f"starting {name}", file=sys.stderr, flush=True)
        needed, available = server.launch.needed_bytes, available_memory_bytes()
        try:
            if needed > available:
                raise ServerError(f"needs about {needed / 1e9:.1f} GB of memory, {available / 1e9:.1f} GB are free")
            server.start()
            with server.turn():
                self._warm_up(server)
        except (ServerError, RuntimeError) as error:
            self.missing[name] = str(error)
            print(f"{name} is missing: {error}", file=sys.stderr, flush=True)
            server.end()


def fit_together(launches: Sequence[Launch]) -> bool:
    """Whether all have room in the memory that is available now."""
    return sum(launch.needed_bytes for launch in launches) < available_memory_bytes()
