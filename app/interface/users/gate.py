"""The cache of users in one ingress: identities for some seconds, and the running requests.

It follows the accounts' revocations and ends requests of users who may no longer be served. It knows no path.
"""

import asyncio
import hashlib
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from typing import Any, TypeVar

from app.interface.generate.answers.running import RunningAnswers
from app.interface.request import errors
from app.interface.request.observers import Observer
from app.interface.users.grants import Grants
from app.interface.users.kv_pages import AllForgotten, UserKvPages
from app.messages.accounts import AccountsClient, AccountsError, Admission, Forgotten, Identity, Revocations, UsageRow
from app.messages.batches import BatchStore
from app.messages.knowledge import CollectionStore
from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest
from app.messages.stored import ConversationStore
from app.running_mark import RunningMark

_MOST_IDENTITIES = 10_000
_RETRY_S = 1.0

Result = TypeVar("Result")


class Meter:
    """Counts the tokens of one user's request, and can end the request."""

    def __init__(self, identity: Identity, secret: str, *, in_batch: bool = False) -> None:
        """secret: the credential, to check again whether it is valid. in_batch: it is a line of a batch."""
        self.in_batch = in_batch
        self.identity = identity
        self.secret = secret
        self.is_detached = False
        """Whether the request continues after its HTTP request."""
        self._model = ""
        self._prompt_tokens = self._cached_tokens = self._output_tokens = 0
        self._has_begun = False
        self._refusal: AccountsError | None = None
        self._tasks: set[asyncio.Task[object]] = set()

    def check(self) -> None:
        """Raises AccountsError if `end` was called."""
        if self._refusal is not None:
            raise self._refusal

    def end(self, refusal: AccountsError) -> None:
        """Ends the request at once; its client gets this refusal."""
        self._refusal = refusal
        for task in self._tasks:
            task.cancel()

    def note_model(self, model: str, prompt_tokens: int) -> None:
        """Notes the model that is asked. prompt_tokens: of the request, each prompt counted once."""
        self._model, self._prompt_tokens = model, prompt_tokens

    @contextmanager
    def cancellable(self) -> Iterator[None]:
        """Wraps the reading of a sequence, so that `end` can cancel it. Raises AccountsError then."""
        self.check()
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if self._refusal is None:
                raise
            task.uncancel()  # cancelled by `end`
            raise self._refusal from None
        finally:
            self._tasks.discard(task)

    def observer(self, request: GenerateRequest) -> Observer:
        """Counts a sequence's tokens."""
        return Observer(self._count)

    def usage(self) -> UsageRow:
        """Returns the usage so far. The accounts fill in the day."""
        return UsageRow(
            user_id=self.identity.user_id,
            credential=self.identity.credential,
            day="",
            model=self._model,
            requests=1,
            prompt=self._prompt_tokens if self._has_begun else 0,
            cached=min(self._cached_tokens, self._prompt_tokens),
            output=self._output_tokens,
        )

    @property
    def has_begun(self) -> bool:
        """Whether a worker has begun."""
        return self._has_begun

    def _count(self, delta: TokenDelta) -> None:
        self._has_begun = self._has_begun or delta.has_output
        self._cached_tokens += delta.cached_tokens
        self._output_tokens += len(delta.token_ids) + sum(len(answer.token_ids) for answer in delta.more)


class AccountsGate:
    """The accounts as the routes of one ingress use them."""

    def __init__(
        self,
        accounts: AccountsClient,
        stored: ConversationStore,
        batches: BatchStore,
        collections: CollectionStore,
        *,
        guests: bool,
        revocation_s: float,
        kv_pages: UserKvPages | None = None,
        most_running: int = 512,
        mark: RunningMark | None = None,
    ) -> None:
        """stored: users' conversations and responses. batches: files and batches. collections: documents.

        guests: whether requests without a credential are served.
        revocation_s: how long an identity is cached.
        kv_pages: the workers' saved KV pages; None if they save none.
        most_running: the limit of answers that continue without their clients. mark: set while there are any.
        """
        self.accounts = accounts
        self.stored = stored
        self.batches = batches
        self.collections = collections
        self.kv_pages = kv_pages
        self.grants = None if kv_pages is None else Grants(accounts, revocation_s=revocation_s)
        self.guests = guests
        self._revocation_s = revocation_s
        self._identities: dict[bytes, tuple[Identity, float]] = {}
        """Maps the SHA-256 of a credential to its identity and the monotonic time until which it is cached."""
        self._open: set[Meter] = set()
        self._background_tasks: set[asyncio.Task[Any]] = set()
        self.running = RunningAnswers(most_running, mark or RunningMark(None))
        """Answers that continue without their clients."""

    async def identify(self, secret: str) -> Identity:
        """Returns the identity of a credential. Raises AccountsError."""
        digest = hashlib.sha256(secret.encode(errors="replace")).digest()
        identity, until_s = self._identities.get(digest, (None, 0.0))
        if identity is not None and time.monotonic() < until_s and not _has_expired(identity):
            return identity
        asked_s = time.monotonic()
        identity = await self.accounts.identify(secret)
        if len(self._identities) >= _MOST_IDENTITIES:
            self._identities.clear()
        # counted from the call: the answer may be that old
        self._identities[digest] = identity, asked_s + self._revocation_s
        return identity

    def forget(self, identity: Identity) -> None:
        """Drops what is cached of the user."""
        self._drop({identity.user_id})

    async def forget_destroyed(self, identity: Identity, forgotten: Forgotten) -> AllForgotten:
        """Drops what is cached of a user whose keys were destroyed, and has workers remove their KV pages."""
        self.forget(identity)
        if self.kv_pages is None:
            return AllForgotten(0, 0)
        return await self.kv_pages.forget(identity.pages.owner, forgotten.key_id)

    def register(self, meter: Meter) -> None:
        """Registers a request before its admission, so that no revocation in between is missed."""
        self._open.add(meter)

    async def admit(self, meter: Meter) -> Admission:
        """Asks the accounts for admission. Raises AccountsError."""
        admitting = asyncio.create_task(self.accounts.admit(meter.secret, in_batch=meter.in_batch))
        try:
            return await asyncio.shield(admitting)
        except asyncio.CancelledError:  # the client has gone, but the accounts may have counted the request
            self.in_background(self._give_back(admitting, meter))
            raise

    def unregister(self, meter: Meter, *, admitted: bool) -> None:
        """Unregisters a request; its usage is sent to the accounts in the background."""
        self._open.discard(meter)
        if admitted:
            self.in_background(self._report_usage(meter))

    async def to_the_end(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Finishes the work even if the client disconnects: a destroyed key must reach the workers too."""
        return await asyncio.shield(self._started(work))

    async def watch(self) -> None:
        """Follows revocations until cancelled."""
        instance, position = "", 0
        while True:
            try:
                news = await self.accounts.revocations(instance, position)
                await self._apply(news)
                instance, position = news.instance, news.position
            except Exception as error:
                if not isinstance(error, AccountsError):  # otherwise they are being replaced
                    errors.logger.error("revocations are not followed: %s", type(error).__qualname__)
                await asyncio.sleep(_RETRY_S)

    async def _apply(self, news: Revocations) -> None:
        if news.subjects is None:
            self._identities.clear()
            if self.grants is not None:
                self.grants.drop(None)
        else:
            self._drop(news.subjects)
        for meter in list(self._open):
            if news.subjects is None or _is_of(meter.identity, news.subjects):
                try:
                    await self.accounts.identify(meter.secret)
                except AccountsError as error:
                    if error.refusal.code not in errors.INVALID_CREDENTIAL:
                        raise  # all of it is tried again
                    meter.end(error)

    def _drop(self, subjects: frozenset[str] | set[str]) -> None:
        if self.grants is not None:
            self.grants.drop(subjects)
        dropped = [key for key, (identity, _) in self._identities.items() if _is_of(identity, subjects)]
        for key in dropped:
            del self._identities[key]

    def in_background(self, work: Coroutine[Any, Any, Result]) -> None:
        """Runs the work in the background; a failure is logged by its type."""
        self._started(work).add_done_callback(_log_failure)

    def _started(self, work: Coroutine[Any, Any, Result]) -> "asyncio.Task[Result]":
        # In its own context: Serve cancels calls that were made in the context of a request whose client has gone.
        task = asyncio.create_task(work, context=Context())
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)
        return task

    async def _give_back(self, admitting: "asyncio.Task[Admission]", meter: Meter) -> None:
        with suppress(AccountsError):
            if (await admitting).refusal is None:
                await self._report_usage(meter)

    async def _report_usage(self, meter: Meter) -> None:
        try:
            await self.accounts.done(meter.usage(), in_batch=meter.in_batch)
        except AccountsError:
            errors.logger.warning("the accounts do not answer: what a request took is not counted")


def _log_failure(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        code = error.refusal.code if isinstance(error, AccountsError) else type(error).__qualname__
        errors.logger.warning("work after a request has failed: %s", code)


def _is_of(identity: Identity, subjects: frozenset[str] | set[str]) -> bool:
    return identity.user_id in subjects or identity.credential in subjects


def _has_expired(identity: Identity) -> bool:
    return identity.expires is not None and identity.expires <= time.time()
