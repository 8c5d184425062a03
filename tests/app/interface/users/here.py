"""The accounts themselves in place of the Serve handle: an ingress calls them without Ray."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx2
from fastapi import FastAPI

from app.accounts.accounts import Accounts
from app.accounts.service import AccountsService
from app.accounts.store import open_store
from app.interface.users.gate import AccountsGate
from app.interface.users.kv_pages import UserKvPages
from app.messages.accounts import AccountsError, Refusal
from app.messages.memory import MemoryMethod, SavedPages
from app.settings.accounts import AccountsSettings
from tests.app.accounts import world
from tests.app.accounts.world import CHEAP, Added, added, prepare
from tests.app.fake_worker import FakeWorker
from tests.app.service import http_app, http_client

PASSWORD = world.PASSWORD
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


class LocalAccounts:
    """An AccountsClient that calls the service, and raises a Refusal as `ServeAccounts` does."""

    def __init__(self, service: AccountsService, ingress: str = "here") -> None:
        self.service = service
        self._ingress = ingress
        self.calls: list[str] = []
        self.is_down = False
        self.failing: list[str] = []
        """Methods that fail the next time they are called, once for each entry."""
        self.answers = asyncio.Event()
        """Answers wait until this is set."""
        self.answers.set()

    def __getattr__(self, method: str) -> Any:
        async def call(*arguments: Any, **named: Any) -> Any:
            self.calls.append(method)
            if self.is_down or method in self.failing:
                if method in self.failing:
                    self.failing.remove(method)
                raise AccountsError("service_unavailable", "The accounts do not answer. Try again later.")
            first = (
                (self._ingress,) if method in ("admit", "done", "revocations", "begin_turn", "begin_response") else ()
            )
            answer = await self.service.call(method, *first, *arguments, **named)
            await self.answers.wait()
            if isinstance(answer, Refusal):
                raise AccountsError.of(answer)
            return answer

        return call


class PageWorker:
    """A worker's answers to calls about saved KV pages; records the calls in order."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {
            "memory_use": (0, 0),
            "flush_memory": SavedPages(0, 0, 0),
            "clear_memory": SavedPages(0, 0, 0),
            "forget_memory": 0,
        }
        self.calls: list[tuple[object, ...]] = []

    def call(self, method: MemoryMethod, *arguments: object) -> Any:
        self.calls.append((method, *arguments))
        return self.answers[method]


class Site:
    """An ingress with accounts: its HTTP client, and direct access for administration."""

    def __init__(
        self,
        database: str,
        worker: FakeWorker,
        *,
        guests: bool = False,
        saves_pages: bool = True,
        keep_alive_comment_s: float = 15.0,
        http: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        settings = {"revocation_s": 60.0, **settings}  # an identity that is known stays so on a busy machine
        self.settings = AccountsSettings(database=database, key="file:/nowhere", guests=guests, **settings)
        self.worker = worker
        prepare(database)
        self.service = self._opened()
        self.accounts = LocalAccounts(self.service)
        self.page_workers = [PageWorker(), PageWorker()]
        kv_pages = UserKvPages(self._call_each, bytes_per_user=1 << 20) if saves_pages else None
        self.gate = AccountsGate(
            self.accounts,
            self.accounts,
            self.accounts,
            self.accounts,
            guests=guests,
            revocation_s=self.settings.revocation_s,
            kv_pages=kv_pages,
        )
        values = {"keep_alive_comment_s": keep_alive_comment_s, **(http or {})}
        self.app: FastAPI = http_app(worker.generate, accounts=self.gate, batches=self.settings.batches, **values)
        self.client = http_client(self.app)

    def _opened(self) -> AccountsService:
        return AccountsService(
            self.settings, lambda it: Accounts(open_store(it, bytes(32), make=True, password_cost=CHEAP))
        )

    async def _call_each(self, method: MemoryMethod, *arguments: object) -> list[Any]:
        return [worker.call(method, *arguments) for worker in self.page_workers]

    def restart(self) -> None:
        """Another process takes over the accounts, as after a kill."""
        self.service.close()
        self.service = self.accounts.service = self._opened()

    @property
    def inside(self) -> Accounts:
        return self.service._accounts

    def add(self, name: str, **options: Any) -> Added:
        return added(self.inside, name, options)

    async def log_in(self, name: str, password: str = PASSWORD) -> str:
        answer = await self.client.post("/v1/auth/login", json={"name": name, "password": password})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["token"])

    async def ask(
        self, method: str, path: str, secret: str | None, body: Any = None, **headers: str
    ) -> httpx2.Response:
        if secret is not None:
            headers["Authorization"] = f"Bearer {secret}"
        return await self.client.request(method, path, json=body, headers=headers)

    async def code(self, method: str, path: str, secret: str | None, body: Any = None, **headers: str) -> str:
        """The error's status and code."""
        answer = await self.ask(method, path, secret, body, **headers)
        assert answer.status_code >= 400, answer.text
        return f"{answer.status_code} {answer.json()['error']['code']}"

    async def give_up(self, method: str, path: str, secret: str, body: Any, asked: str) -> None:
        """A client goes while the accounts are asked for `asked`; returns when nothing of it runs any more."""
        self.accounts.answers.clear()
        gone = asyncio.create_task(self.ask(method, path, secret, body))
        while asked not in self.accounts.calls:
            await asyncio.sleep(0.01)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        self.accounts.answers.set()
        while self.gate._background_tasks:
            await asyncio.sleep(0.01)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Follows revocations, as the ingress does while it runs."""
        watch = asyncio.create_task(self.gate.watch())
        while "revocations" not in self.accounts.calls:
            await asyncio.sleep(0)
        try:
            yield
        finally:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch

    async def close(self) -> None:
        await self.client.aclose()
        for task in [*self.gate._background_tasks]:
            with suppress(AccountsError):  # nothing is stored for a user disabled meanwhile
                await task
        self.service.close()
