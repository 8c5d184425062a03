"""Clients of httpx2 and httpx whose every connection is verified first (`connections`).

Goes to the pinned origin only, by HTTP/1.1, past the environment's proxies, and follows no redirect. Uses the public
parts of both libraries alone, which are the same in both.
"""

import contextlib
import importlib
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from redoubt_verify import policy as policy_file
from redoubt_verify import sslcontext
from redoubt_verify.connections import AsyncBackend, SyncBackend, Verifier
from redoubt_verify.errors import AttestationError
from redoubt_verify.policy import Policy
from redoubt_verify.verify import Verdict

_CORES = {"httpx2": "httpcore2", "httpx": "httpcore"}
_REDIRECTS = {301, 302, 303, 307, 308}
_MOST_CONNECTIONS = 100


def client(
    url: str,
    policy: str | Path | Policy,
    *,
    collateral: Mapping[str, str] | None = None,
    allow_insecure: bool = False,
    library: str = "httpx2",
    timeout_s: float = 600.0,
) -> Any:
    """A `Client` that speaks to a verified service only, for `OpenAI(base_url=..., http_client=...)`.

    url: the service's https address; its path does not count. policy: a file, or one already read. collateral: used
    instead of the server's. allow_insecure: accept a policy with a test root. library: httpx2 or httpx. timeout_s: of
    a request, unless the caller sets one. Raises PolicyError, AttestationError (origin, policy_expired). Requests raise
    AttestationError, also from calls of the openai package.
    """
    verifier = Verifier(url, _policy(policy, allow_insecure), collateral)
    return client_of(verifier, library=library, timeout_s=timeout_s)


def async_client(
    url: str,
    policy: str | Path | Policy,
    *,
    collateral: Mapping[str, str] | None = None,
    allow_insecure: bool = False,
    library: str = "httpx2",
    timeout_s: float = 600.0,
) -> Any:
    """Makes an `AsyncClient`, like `client` for asyncio."""
    verifier = Verifier(url, _policy(policy, allow_insecure), collateral)
    return async_client_of(verifier, library=library, timeout_s=timeout_s)


def client_of(verifier: Verifier, *, library: str = "httpx2", timeout_s: float = 600.0) -> Any:
    """A `Client` with a verifier of the caller's."""
    http = importlib.import_module(library)
    return http.Client(transport=sync_transport(verifier, library), trust_env=False, timeout=timeout_s)


def async_client_of(verifier: Verifier, *, library: str = "httpx2", timeout_s: float = 600.0) -> Any:
    """An `AsyncClient` with a verifier of the caller's."""
    http, core = importlib.import_module(library), importlib.import_module(_CORES[library])
    base = type("VerifiedAsyncTransport", (_AsyncTransport, http.AsyncBaseTransport), {})
    pool = core.AsyncConnectionPool(network_backend=AsyncBackend(core.AnyIOBackend(), verifier), **_pool_options())
    return http.AsyncClient(transport=base(http, core, pool, verifier), trust_env=False, timeout=timeout_s)


def sync_transport(verifier: Verifier, library: str = "httpx2") -> Any:
    """The transport below `client`."""
    http, core = importlib.import_module(library), importlib.import_module(_CORES[library])
    base = type("VerifiedTransport", (_SyncTransport, http.BaseTransport), {})
    pool = core.ConnectionPool(network_backend=SyncBackend(core.SyncBackend(), verifier), **_pool_options())
    return base(http, core, pool, verifier)


def verify_once(verifier: Verifier) -> Verdict:
    """Verifies the service on one connection that carries no request. Raises AttestationError."""
    core = importlib.import_module("httpcore2")
    backend = SyncBackend(core.SyncBackend(), verifier)
    stream = backend.connect_tcp(verifier.host, verifier.port, timeout=verifier.timeout_s)
    verified = stream.start_tls(sslcontext.context(), verifier.host)
    verified.close()
    if (verdict := verified.verdict) is None:
        raise AttestationError("unreachable", "the verdict had run out when it was there: reverify_after is too short")
    return cast("Verdict", verdict)


def _policy(policy: str | Path | Policy, allow_insecure: bool) -> Policy:
    return policy if isinstance(policy, Policy) else policy_file.load(policy, allow_insecure=allow_insecure)


def _pool_options() -> dict[str, Any]:
    return {
        "ssl_context": sslcontext.context(),
        "http1": True,
        "http2": False,
        "retries": 0,
        "max_connections": _MOST_CONNECTIONS,
        "keepalive_expiry": 60.0,
    }


class _Transport:
    """Both transports' work before a request and after a response."""

    def __init__(self, http: Any, core: Any, pool: Any, verifier: Verifier) -> None:
        self._http, self._core, self._pool, self._verifier = http, core, pool, verifier

    def _outgoing(self, request: Any) -> Any:
        url = request.url
        self._verifier.check_origin(url.scheme, url.raw_host.decode("ascii"), url.port)
        target = self._core.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        # Of the extensions only the timeouts: others would change the request's target or the server's name.
        extensions = {name: value for name, value in request.extensions.items() if name == "timeout"}
        return self._core.Request(
            method=request.method,
            url=target,
            headers=request.headers.raw,
            content=request.stream,
            extensions=extensions,
        )

    def _incoming(self, response: Any, stream: Any) -> Any:
        return self._http.Response(
            status_code=response.status, headers=response.headers, stream=stream, extensions=response.extensions
        )

    @contextlib.contextmanager
    def _mapped(self) -> Iterator[None]:
        """httpcore's errors as those of httpx, which have the same names."""
        try:
            yield
        except (self._core.TimeoutException, self._core.NetworkError, self._core.ProtocolError) as error:
            kind = getattr(self._http, type(error).__name__, self._http.TransportError)
            raise kind(str(error)) from error

    def _stream(self, response: Any, base: type) -> Any:
        kind = _SyncBody if base is self._http.SyncByteStream else _AsyncBody
        return type("VerifiedStream", (kind, base), {})(response.stream, self._mapped)


class _SyncTransport(_Transport):
    def handle_request(self, request: Any) -> Any:
        outgoing = self._outgoing(request)
        with self._mapped():
            response = self._pool.handle_request(outgoing)
        if response.status in _REDIRECTS:
            response.close()
            raise AttestationError("origin", f"the service redirects ({response.status})")
        return self._incoming(response, self._stream(response, self._http.SyncByteStream))

    def close(self) -> None:
        self._pool.close()


class _AsyncTransport(_Transport):
    async def handle_async_request(self, request: Any) -> Any:
        outgoing = self._outgoing(request)
        with self._mapped():
            response = await self._pool.handle_async_request(outgoing)
        if response.status in _REDIRECTS:
            await response.aclose()
            raise AttestationError("origin", f"the service redirects ({response.status})")
        return self._incoming(response, self._stream(response, self._http.AsyncByteStream))

    async def aclose(self) -> None:
        await self._pool.aclose()


class _SyncBody:
    def __init__(self, stream: Any, mapped: Any) -> None:
        self._stream, self._mapped = stream, mapped

    def __iter__(self) -> Iterator[bytes]:
        with self._mapped():
            yield from self._stream

    def close(self) -> None:
        if hasattr(self._stream, "close"):
            self._stream.close()


class _AsyncBody:
    def __init__(self, stream: Any, mapped: Any) -> None:
        self._stream, self._mapped = stream, mapped

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with self._mapped():
            async for part in self._stream:
                yield part

    async def aclose(self) -> None:
        if hasattr(self._stream, "aclose"):
            await self._stream.aclose()
