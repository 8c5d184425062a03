"""Connections that carry nothing before their machine is verified: network backends for httpcore and httpcore2.

A backend connects to the pinned origin alone. TLS starts, the nonce goes out, the evidence is judged; only then is
there a stream to write to. A key that was verified is not asked again for the policy's `reverify_after`.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from redoubt_verify import sslcontext
from redoubt_verify.errors import AttestationError
from redoubt_verify.exchange import Exchange
from redoubt_verify.policy import Policy
from redoubt_verify.verify import Verdict, decode_answer, decode_collateral, judge

_READ_BYTES = 64 << 10
EXCHANGE_TIMEOUT_S = 15.0
"""Timeout of a connection's handshake, and of its evidence, which takes the server a moment."""


class Verifier:
    """One origin, one policy, and the keys that were verified."""

    def __init__(
        self,
        url: str,
        policy: Policy,
        collateral: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
        timeout_s: float = EXCHANGE_TIMEOUT_S,
    ) -> None:
        """collateral: instead of the server's. clock: Unix time.

        Raises AttestationError: origin, policy_expired, and what `decode_collateral` raises.
        """
        parts = urlsplit(url)
        if parts.scheme != "https" or not parts.hostname or not url.isascii() or parts.username is not None:
            raise AttestationError("origin", "the service's address begins with https:// and names its host in ASCII")
        self.host, self.port = parts.hostname, parts.port or 443
        self.policy = policy
        self.timeout_s = timeout_s
        self._collateral = decode_collateral(collateral)
        self._clock = clock
        self._verified: dict[str, tuple[float, Verdict]] = {}
        self.last_answer = b""
        """The body of the last answer, for `--save`."""
        policy.check_date(clock())

    @property
    def verdicts(self) -> list[Verdict]:
        """Verdicts on the currently verified keys."""
        return [verdict for key, (_, verdict) in list(self._verified.items()) if self.is_fresh(key)]

    def now(self) -> float:
        """Returns the Unix time by which verdicts are judged."""
        return self._clock()

    def verdict_of(self, key: str) -> Verdict | None:
        """Returns the verdict on a key while it holds."""
        verified = self._verified.get(key)
        return verified[1] if verified is not None and self.is_fresh(key) else None

    def check_origin(self, scheme: str, host: str, port: int | None) -> None:
        """Raises AttestationError (origin) unless a request goes to the pinned origin, and policy_expired."""
        if scheme != "https" or host.lower() != self.host or (port or 443) != self.port:
            raise AttestationError("origin", f"{scheme}://{host}:{port or 443} is not the pinned origin")
        self.policy.check_date(self._clock())

    def is_fresh(self, key: str) -> bool:
        """Whether a key's verdict still holds."""
        verified = self._verified.get(key)
        now = self._clock()
        # A clock that was set back makes no verdict younger.
        fresh = verified is not None and 0 <= now - verified[0] < self.policy.reverify_after_s
        return fresh and now < self.policy.expires.timestamp()

    def exchange(self) -> Exchange:
        """A new request for evidence."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return Exchange(host if self.port == 443 else f"{host}:{self.port}")

    def accept(self, body: bytes, nonce: str, key: str) -> Verdict:
        """Judges an answer and remembers its key. Raises AttestationError."""
        self.last_answer = body
        self._verified.pop(key, None)
        now = self._clock()
        verdict = judge(decode_answer(body, self._collateral), self.policy, nonce=nonce, spki_sha256=key, now=now)
        kept = {name: item for name, item in list(self._verified.items()) if self.is_fresh(name)}
        self._verified = kept | {key: (now, verdict)}
        return verdict


class _Stream:
    """A verified connection, sync or async: what httpcore asks of a stream, passed on."""

    def __init__(self, stream: Any, verifier: Verifier, key: str) -> None:
        self._verifier = verifier
        self._key = key
        self._stream = stream
        self.read, self.write = stream.read, stream.write

    @property
    def verdict(self) -> Verdict | None:
        """On this connection's key, while it holds."""
        return self._verifier.verdict_of(self._key)

    def start_tls(self, *_: object, **__: object) -> Any:
        raise AttestationError("origin", "no TLS within TLS")

    def get_extra_info(self, info: str) -> Any:
        # httpcore drops an idle connection that is readable and makes a new one, which verifies the key again.
        if info == "is_readable" and not self._verifier.is_fresh(self._key):
            return True
        return self._stream.get_extra_info(info)


class _SyncStream(_Stream):
    def close(self) -> None:
        self._stream.close()


class _AsyncStream(_Stream):
    async def aclose(self) -> None:
        await self._stream.aclose()


class _Plain:
    """A connection before TLS: takes no byte of a request."""

    def __init__(self, stream: Any, verifier: Verifier) -> None:
        self._stream = stream
        self._verifier = verifier

    def read(self, *_: object, **__: object) -> Any:
        raise AttestationError("origin", "nothing is said without TLS")

    write = read

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _SyncPlain(_Plain):
    def close(self) -> None:
        self._stream.close()

    def start_tls(self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None) -> Any:
        stream = self._stream
        deadline = time.monotonic() + self._verifier.timeout_s
        try:
            # The context of the request is not asked: this one refuses old TLS.
            stream = _reached(lambda: stream.start_tls(sslcontext.context(), server_hostname, _left(deadline)))
            key = sslcontext.peer_spki_sha256(stream.get_extra_info("ssl_object"))
            if not self._verifier.is_fresh(key):
                exchange = self._verifier.exchange()
                _reached(lambda: stream.write(exchange.request(), _left(deadline)))
                body = None
                while body is None:
                    body = exchange.receive(_reached(lambda: stream.read(_READ_BYTES, _left(deadline))))
                self._verifier.accept(body, exchange.nonce, key)
            return _SyncStream(stream, self._verifier, key)
        except BaseException:
            stream.close()
            raise


class _AsyncPlain(_Plain):
    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> Any:
        stream = self._stream
        deadline = time.monotonic() + self._verifier.timeout_s
        try:
            stream = await _reached_async(stream.start_tls(sslcontext.context(), server_hostname, _left(deadline)))
            key = sslcontext.peer_spki_sha256(stream.get_extra_info("ssl_object"))
            if not self._verifier.is_fresh(key):
                exchange = self._verifier.exchange()
                await _reached_async(stream.write(exchange.request(), _left(deadline)))
                body = None
                while body is None:
                    body = exchange.receive(await _reached_async(stream.read(_READ_BYTES, _left(deadline))))
                self._verifier.accept(body, exchange.nonce, key)
            return _AsyncStream(stream, self._verifier, key)
        except BaseException:
            await stream.aclose()
            raise


class SyncBackend:
    """A network backend for httpcore's ConnectionPool."""

    def __init__(self, backend: Any, verifier: Verifier) -> None:
        """backend: httpcore's own."""
        self._backend = backend
        self._verifier = verifier

    def connect_tcp(self, host: str, port: int, **options: Any) -> Any:
        """Connects to the pinned origin. Raises AttestationError."""
        self._verifier.check_origin("https", host, port)
        options["timeout"] = self._verifier.timeout_s
        return _SyncPlain(_reached(lambda: self._backend.connect_tcp(host, port, **options)), self._verifier)

    def connect_unix_socket(self, path: str, **options: Any) -> Any:
        """Refuses Unix sockets."""
        raise AttestationError("origin", "a Unix socket is not the pinned origin")

    def sleep(self, seconds: float) -> None:
        """Sleeps between attempts; httpcore is configured for one attempt."""
        time.sleep(seconds)


class AsyncBackend:
    """A network backend for httpcore's AsyncConnectionPool."""

    def __init__(self, backend: Any, verifier: Verifier) -> None:
        """backend: httpcore's own."""
        self._backend = backend
        self._verifier = verifier

    async def connect_tcp(self, host: str, port: int, **options: Any) -> Any:
        """Connects to the pinned origin. Raises AttestationError."""
        self._verifier.check_origin("https", host, port)
        options["timeout"] = self._verifier.timeout_s
        return _AsyncPlain(await _reached_async(self._backend.connect_tcp(host, port, **options)), self._verifier)

    async def connect_unix_socket(self, path: str, **options: Any) -> Any:
        """Refuses Unix sockets."""
        raise AttestationError("origin", "a Unix socket is not the pinned origin")

    async def sleep(self, seconds: float) -> None:
        """Sleeps between attempts; httpcore is configured for one attempt."""
        await asyncio.sleep(seconds)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise AttestationError("unreachable", "the server took too long")
    return left


def _reached(call: Callable[[], Any]) -> Any:
    """The call's result; a failure of the network as an AttestationError (unreachable)."""
    try:
        return call()
    except AttestationError:
        raise
    except Exception as error:
        raise AttestationError("unreachable", f"{type(error).__name__}: {error}") from error


async def _reached_async(call: Any) -> Any:
    try:
        return await call
    except AttestationError:
        raise
    except Exception as error:
        raise AttestationError("unreachable", f"{type(error).__name__}: {error}") from error
