import builtins
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from app.client.reader import PlainReader
from app.client.screen import PlainScreen
from app.client.terminal import TerminalChat
from app.interface.text.chat_model import ChatModel
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.users.here import Site
from tests.app.service import MODEL, loopback_server


class TypeIn(Protocol):
    def __call__(self, *lines: str | type[BaseException] | Callable[[], object]) -> None:
        """Makes input() return the lines one by one, or raise; a function is called before the next line."""


class MakeSite(Protocol):
    def __call__(self, *, guests: bool = False, model: ChatModel = MODEL) -> tuple[Site, str]:
        """Serves an ingress with the users ann and ben on a loopback socket; gives it and its address."""


@pytest.fixture(autouse=True)
def config_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's, without a file of sessions."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config"


@pytest.fixture
def type_in(monkeypatch: pytest.MonkeyPatch) -> TypeIn:
    def prepare(*lines: str | type[BaseException] | Callable[[], object]) -> None:
        typed = iter(lines)

        def read() -> str:
            line = next(typed)
            if isinstance(line, str):
                return line
            if isinstance(line, type):
                raise line
            line()
            return read()

        monkeypatch.setattr(builtins, "input", read)

    return prepare


def plain_chat(url: str, **options: Any) -> TerminalChat:
    """A chat whose notices and answers are one output, in order; its lines are what input() returns."""
    return TerminalChat(url, screen=PlainScreen(sys.stdout, sys.stdout), reader=PlainReader(), **options)


@pytest.fixture
def make_site(tmp_path: Path) -> Iterator[MakeSite]:
    with ExitStack() as open_ones:

        def make(*, guests: bool = False, model: ChatModel = MODEL) -> tuple[Site, str]:
            worker = FakeWorker(lambda _: deltas([5, 6]))
            # Nothing here follows revocations, so identities are not kept.
            site = Site(str(tmp_path / "accounts.db"), worker, guests=guests, revocation_s=1e-6, http={"model": model})
            open_ones.callback(site.service.close)
            site.add("ann")
            site.add("ben")
            return site, open_ones.enter_context(loopback_server(site.app))

        yield make
