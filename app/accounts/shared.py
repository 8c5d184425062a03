"""The accounts as a Serve deployment: one replica owns the database, and those of other Rays forward calls to it.

When `redoubt serve` starts a new Ray beside the running one, both have a replica of the accounts. The owner of the
database listens on a Unix socket in the service's private folder, and the others forward their calls to it. Once the
new Ray gets requests, its replica takes over: the owner finishes the calls that it has begun, closes, and hands over
its in-memory state; then it forwards its own ingresses' calls to the new owner. So the newest Ray's settings apply, and
nothing depends on how the old one ends. If an owner dies, another replica takes its place. Calls in between wait.

Without such a folder, as on a cluster, a replica waits until Postgres is free; an SQLite file serves one service only.
"""

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from app.accounts.database import InUseError
from app.accounts.key_source import read_kek
from app.accounts.owner_line import Line, LineLostError, LineServer, MovedError, call_once, connect
from app.accounts.service import AccountsService, Remembered
from app.accounts.store import opened_root
from app.messages.accounts import Refusal
from app.settings.accounts import AccountsSettings
from app.settings.environment import RAY_FOLDER
from app.settings.knobs import SettingsError

logger = logging.getLogger(__name__)

_POLL_S = 0.1
_LONG_POLL_S = 1.0
_START_TIMEOUT_S = 20.0
"""How long a start waits for an owner that is handing over or restarting."""
_WARN_PERIOD_S = 15.0
_BACK_OFF_S = 5.0
"""After handing over, how long this replica leaves the database to the one that asked for it."""
_KNOWN_AFTER_S = 60.0
"""After the loss of an owner, how long until all ingresses of other Rays have asked for revocations again."""
_REVOCATIONS, _TAKE_OVER, _OWNER_START = "revocations", "take the database", "start of the owner"
_CLAIM, _KEEP = "claim_batches", "keep_batch"
_OF_ANY: Final = frozenset({_REVOCATIONS, _CLAIM})
"""Calls that ingresses make by themselves, and that wait for news: a newer Ray that nobody uses yet need not own the
database for them."""
_NOT_RETRIED: Final = frozenset({
    "done", "login", "logout", "change_password", "new_recovery_code", "end_session", "add_key", "revoke_key", "forget",
    "add_user", "change_user", "delete_user", "reset_password", "new_conversation", "change_conversation",
    "delete_conversation", "restore_conversation",
    "add_items", "delete_item", "add_question", "begin_response", "store_response", "delete_response",
    "change_collection", "delete_collection", "share_collection", "add_documents", "end_document",
    "change_document", "delete_document",
})  # fmt: skip
"""Calls that a lost owner may have carried out: they are refused, not retried."""


class SharedAccounts:
    """Answers ingresses' calls (`call`) as the owner, or forwards them to it."""

    _is_closed = True  # until the constructor is done: Python may call __del__ even if it fails

    def __init__(
        self,
        settings: AccountsSettings,
        open_service: Callable[..., AccountsService] = AccountsService,
        *,
        ray_folder: Path | None = None,
    ) -> None:
        """Raises SettingsError if the key can't be read or is wrong, or the database can't be opened or is in use."""
        self._settings = settings
        self._open_service = open_service
        if ray_folder is None and RAY_FOLDER in os.environ:
            ray_folder = Path(os.environ[RAY_FOLDER])
        self._start = 0 if ray_folder is None else int(ray_folder.name)
        self._path = None if ray_folder is None else ray_folder.parent / _socket_name(settings.database)
        self._service: AccountsService | None = None
        self._line: Line | None = None
        self._owner_start = 0
        self._must_own = asyncio.Event()  # set when this replica must take over the database
        self._changed = asyncio.Event()  # replaced whenever the service or the line changes
        self._calls: set[asyncio.Task[Any]] = set()
        self._has_handed_over = asyncio.Event()
        self._not_before_s = 0.0
        self._following: asyncio.Task[None] | None = None
        self._open_or_check()
        self._is_closed = False

    async def check_health(self) -> None:
        """Starts following the owner. Serve calls this before the replica is used, and then every few seconds."""
        if self._following is None:
            self._following = asyncio.create_task(self._follow())

    async def call(self, method: str, *arguments: Any) -> Any:
        """Calls that method of the accounts service, here or at the owner."""
        await self.check_health()
        while True:
            changed = self._changed
            try:
                if self._service is not None:
                    return await self._call_here(method, *arguments)
                if self._line is not None and (method in _OF_ANY or self._start <= self._owner_start):
                    if self._start < self._owner_start and method in (_CLAIM, _KEEP):
                        return _of_newer(method)
                    return await self._line.call(method, *arguments)
                self._must_own.set()
            except MovedError:
                pass
            except LineLostError:
                if method in _NOT_RETRIED:
                    return Refusal("service_unavailable", "The accounts were lost meanwhile. Try again later.")
            await changed.wait()

    def close(self) -> None:
        """Releases the database. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            if self._following is not None:
                self._following.cancel()
            service, self._service = self._service, None
            if service is not None:
                service.close()

    def __del__(self) -> None:
        """Serve calls this when it stops the replica."""
        self.close()

    # --- internals

    def _open_or_check(self) -> None:
        """Opens the database, or checks our key against the owner that has it open."""
        give_up_s = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                self._service = self._open_service(self._settings)
                return
            except InUseError:
                if self._path is None and "://" in self._settings.database:
                    return
                if self._path is None or time.monotonic() > give_up_s:
                    raise
            with suppress(OSError, EOFError, MovedError):
                sealed = call_once(self._path, "sealed_root")
                opened_root(self._settings, read_kek(self._settings.key), sealed)
                return
            time.sleep(_POLL_S)

    async def _call_here(self, method: str, *arguments: Any) -> Any:
        """Calls a method here. Raises MovedError, having done nothing, if this is not the owner."""
        service = self._service
        if method == _OWNER_START:
            return self._start
        if service is None:
            raise MovedError
        if method == _TAKE_OVER:
            return await self._hand_over(service)
        task = asyncio.ensure_future(service.call(method, *arguments))
        self._calls.add(task)
        task.set_name(method)
        try:
            return await task
        except asyncio.CancelledError:
            if self._service is not service and method in _OF_ANY:
                raise MovedError from None  # `_hand_over` has cancelled it
            raise
        finally:
            self._calls.discard(task)

    async def _hand_over(self, service: AccountsService) -> Remembered:
        """Finishes the running calls and releases the database."""
        self._set(None, None)
        self._not_before_s = time.monotonic() + _BACK_OFF_S
        for call in self._calls:
            if call.get_name() in _OF_ANY:
                call.cancel()
        try:
            while self._calls:
                await asyncio.wait(set(self._calls))
            return await service.hand_over()
        finally:
            self._has_handed_over.set()

    def _set(self, service: AccountsService | None, line: Line | None) -> None:
        self._service, self._line = service, line
        self._changed.set()
        self._changed = asyncio.Event()

    async def _follow(self) -> None:
        """Owns the database, or follows the owner, until cancelled."""
        while True:
            try:
                if self._service is not None:
                    await self._serve_as_owner()
                else:
                    await self._forward_to_owner()
            except Exception as error:  # a full disk, for example
                logger.error("the accounts can't be opened: %s", type(error).__qualname__, exc_info=error)
                await asyncio.sleep(_LONG_POLL_S)

    async def _serve_as_owner(self) -> None:
        if self._path is None:
            await self._has_handed_over.wait()
            return
        server = LineServer(self._path, self._call_here)
        try:
            await server.open()
            await self._has_handed_over.wait()
        finally:
            self._has_handed_over.clear()
            await server.close()

    async def _forward_to_owner(self) -> None:
        options: dict[str, float] = {}
        before: Remembered | None = None
        warned_s = time.monotonic()
        while True:
            if time.monotonic() >= self._not_before_s and await self._try_open(before=before, **options):
                return
            line = None if self._path is None else await connect(self._path)
            if line is None:
                if time.monotonic() >= warned_s + _WARN_PERIOD_S:
                    warned_s = time.monotonic()
                    logger.warning("accounts.database: another process has it open. Calls wait until it lets go.")
                await asyncio.sleep(_LONG_POLL_S if self._path is None else _POLL_S)
                continue
            options = {"known_after_s": _KNOWN_AFTER_S}
            try:
                self._owner_start = await line.call(_OWNER_START)
                before = None  # somebody else has the database now
                self._set(None, line)
                before = await self._wait_for_owner(line)
            except (LineLostError, MovedError):
                await asyncio.sleep(_POLL_S)
            finally:
                self._set(None, None)
                line.close()

    async def _wait_for_owner(self, line: Line) -> Remembered | None:
        """Waits until the owner dies (None) or must hand over (its state)."""
        self._must_own.clear()
        waits = [asyncio.create_task(event.wait()) for event in (line.lost, self._must_own)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if line.lost.is_set():
            return None
        remembered: Remembered = await line.call(_TAKE_OVER)
        self._not_before_s = 0.0
        return remembered

    async def _try_open(self, **options: Any) -> bool:
        """Tries to open the database; returns whether this process owns it now."""
        try:
            service = await asyncio.to_thread(self._open_service, self._settings, **options)
        except InUseError:
            return False
        except SettingsError as error:
            logger.error("the accounts can't be opened: %s", error)
            await asyncio.sleep(_LONG_POLL_S)
            return False
        if self._is_closed:
            service.close()
            raise asyncio.CancelledError
        self._set(service, None)
        return True


def _of_newer(method: str) -> Any:
    """The answer to an ingress whose Ray is being replaced: batches are for the ingresses of the newer one."""
    return [] if method == _CLAIM else Refusal("conflict", "An ingress of a newer Ray is to have this batch.")


def _socket_name(database: str) -> str:
    place = database if "://" in database else str(Path(database).resolve())
    return f"accounts-{hashlib.sha256(place.encode()).hexdigest()[:8]}"
