"""The identity with which a terminal chat asks: none, a user's session, or an API key.

A login is kept in the user's file of sessions, so that the next chat uses it. Knows nothing of the conversation.
"""

import contextlib
from collections.abc import Callable

from openai import APIConnectionError, APIStatusError, OpenAIError

from app.client import login, v1
from app.client.reader import Reader
from app.client.session_file import SavedSession, SessionFile, SessionFileError, user_file


class ChatError(Exception):
    """The chat can't go on; the message says why and what to do."""


class UnreachableError(ChatError):
    """No service answers at the address; it may a little later."""


class Account:
    """The identity at one service. Raises ChatError if `url` is no address."""

    def __init__(self, url: str, api_key: str | None, say: Callable[[str], None]) -> None:
        """api_key: used instead of a session. say: shows a line."""
        self.url = url.rstrip("/").removesuffix("/v1")
        if not self.url.startswith(("http://", "https://")):
            raise ChatError(f"--url {url}: not an address such as http://127.0.0.1:8000")
        self.has_key = bool(api_key)
        self.client = self.without_session = v1.connect(self.url, api_key)
        self.session: SavedSession | None = None
        self.user: str | None = None
        """The logged-in user; None: nobody."""
        self._sessions = SessionFile(user_file())
        self._say = say

    @property
    def is_left(self) -> bool:
        """Whether the user's session has ended: the chat must then not be sent as a guest's."""
        return self.session is None and self.user is not None

    def resume(self) -> bool:
        """Resumes the session of an earlier chat, if there is one; False: it has ended. Raises ChatError."""
        if self.has_key:
            return True
        try:
            session = self._sessions.get(self.url)
        except SessionFileError as error:
            self._say(str(error))
            return True
        if session is None:
            return True
        self._use(session)
        try:
            if login.is_held(self.client):
                return True
        except OpenAIError as error:
            raise chat_error(error, self.url) from error
        self._say(self.forget_ended())
        self.user = None  # there is no chat yet
        return False

    def log_in(self, reader: Reader) -> bool:
        """Asks for name and password, and logs in. An error is shown in one line and changes nothing."""
        if self.session is not None:
            self._say(f"You are logged in as {self.session.name}; logout comes first.")
            return False
        try:
            if not login.has_users(self.client):
                self._say(f"{self.url} has no users: there is nothing to log in to.")
                return False
            if self.has_key:
                self._say("This chat uses an API key: start it without --api-key and REDOUBT_API_KEY to log in.")
                return False
            name = reader.ask("Name: ").strip()
            password = reader.secret("Password: ")
            session = login.log_in(self.client, name, password)
            self._choose_password(reader, session, password)
        except EOFError:
            self._say("")
            return False
        except OpenAIError as error:
            wait_s = login.retry_after_s(error)
            self._say(reason(error, self.url) + ("" if wait_s is None else f" Wait {wait_s} s."))
            return False
        self._use(session)
        try:
            self._sessions.keep(self.url, session)
        except SessionFileError as error:
            self._say(f"The login holds for this chat only. {error}")
        return True

    def _choose_password(self, reader: Reader, session: SavedSession, given: str) -> None:
        """Replaces an administrator's password by the user's own.

        Raises OpenAIError, EOFError: then nobody is logged in.
        """
        client = self.client.with_options(api_key=session.token)
        first = login.first_login(client)
        if first is None:
            return
        self._say("An administrator has set this password: choose one of your own.")
        code = reader.secret("Recovery code (none: what was saved of yours is deleted): ") if first.can_recover else ""
        new = reader.secret("New password: ")
        if reader.secret("Once more: ") != new:
            raise OpenAIError("These were two different passwords: log in again.")
        kept = login.choose_password(client, given, new, code.strip() or None)
        self._say(f"Your recovery code; keep it, it is shown this once: {kept}")

    def log_out(self) -> login.LeftPages | None:
        """Ends the session at the service first.

        If that fails the session is kept for another try, and the result is None.
        """
        if self.user is None:
            self._say("You are not logged in.")
            return None
        left = login.LeftPages()
        if self.session is not None:
            try:
                left = login.log_out(self.client)
            except OpenAIError as error:
                self._say(f"You are still logged in: {reason(error, self.url)}")
                return None
            try:
                self._sessions.remove(self.url, self.session)
            except SessionFileError as error:
                self._say(str(error))
        self._use(None)
        self.user = None
        return left

    def forget_ended(self) -> str:
        """Drops the ended session and returns the line to show. The chat stays for the same user's next session."""
        assert self.session is not None
        with contextlib.suppress(SessionFileError):  # it is useless now
            self._sessions.remove(self.url, self.session)
        ended = f"The session of {self.session.name} has ended: type login to log in again."
        self._use(None)
        return ended

    def _use(self, session: SavedSession | None) -> None:
        """Sends this session's token from now on; None: sends none."""
        self.session = session
        if session is None:
            self.client = self.without_session
        else:
            self.user = session.name
            self.client = self.without_session.with_options(api_key=session.token)


def reason(error: OpenAIError, url: str) -> str:
    """Why a request to the service has failed, in one line."""
    if isinstance(error, APIConnectionError):
        return f"no answer from {url}: is the service running? (`redoubt serve`)"
    if isinstance(error, APIStatusError):
        return f"{url} says: {v1.reason(error)}"
    return v1.reason(error)


def chat_error(error: OpenAIError, url: str) -> ChatError:
    """Makes the ChatError for a failure without which the chat can't go on."""
    kind = UnreachableError if isinstance(error, APIConnectionError) else ChatError
    return kind(reason(error, url))
