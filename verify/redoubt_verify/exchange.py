"""The attestation request and its answer on a new connection: bytes in, bytes out, no socket.

Sends nothing but a fresh nonce. The answer is judged by `verify`; this is its size, form and end.
"""

import secrets

import h11

from redoubt_verify.errors import AttestationError
from redoubt_verify.verify import MOST_ANSWER_BYTES

PATH = "/v1/attestation"
_MOST_HEADER_BYTES = 64 << 10


class Exchange:
    """One request for evidence."""

    def __init__(self, host: str) -> None:
        """host: for the Host header, with the port unless it is 443."""
        self.nonce = secrets.token_hex(32)
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MOST_HEADER_BYTES)
        self._host = host
        self._body = bytearray()
        self._received = 0

    def request(self) -> bytes:
        headers = [("Host", self._host), ("Accept", "application/json"), ("Accept-Encoding", "identity")]
        get = h11.Request(method="GET", target=f"{PATH}?nonce={self.nonce}", headers=headers)
        return (self._http.send(get) or b"") + (self._http.send(h11.EndOfMessage()) or b"")

    def receive(self, data: bytes) -> bytes | None:
        """Takes what arrived (empty: the connection ended); returns the answer's body when it is whole.

        Raises AttestationError: unreachable, origin, malformed, too_large.
        """
        self._received += len(data)
        if self._received > MOST_ANSWER_BYTES + _MOST_HEADER_BYTES:
            raise _too_large()
        try:
            self._http.receive_data(data)
            while (event := self._http.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.Response):
                    _check_header(event)
                elif isinstance(event, h11.Data):
                    self._body += event.data
                    if len(self._body) > MOST_ANSWER_BYTES:
                        raise _too_large()
                elif isinstance(event, h11.EndOfMessage):
                    return self._end()
                elif event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                    raise AttestationError("unreachable", "the server closed the connection")
        except h11.RemoteProtocolError as error:
            reason = "unreachable" if not data else "malformed"
            raise AttestationError(reason, f"no whole answer: {error}") from error
        return None

    def _end(self) -> bytes:
        """The next request goes over the same connection: it must be open, and nothing may wait in it already."""
        if self._http.trailing_data[0] or self._http.their_state is not h11.DONE:
            raise AttestationError("malformed", "the server closes the connection, or sends more than the answer")
        return bytes(self._body)


def _check_header(response: h11.Response) -> None:
    if 300 <= response.status_code < 400:
        raise AttestationError("origin", f"the server redirects ({response.status_code})")
    if response.status_code != 200:
        raise AttestationError("unreachable", f"the server gives no evidence ({response.status_code})")
    encodings = [value for name, value in response.headers if name == b"content-encoding"]
    if any(value.lower() != b"identity" for value in encodings):
        raise AttestationError("malformed", "the answer is compressed")


def _too_large() -> AttestationError:
    return AttestationError("too_large", f"the answer is over {MOST_ANSWER_BYTES} bytes")
