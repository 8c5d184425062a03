"""A chat in the terminal, over HTTP: the service is a URL. Knows nothing of models, tokens or Ray.

Line editing and history are readline's; what was typed is kept in memory only. A login is kept in the user's file of
sessions, so that the next chat goes on with it. A user's conversation is kept by the service; a guest's is sent with
each question.
"""

import contextlib
import getpass
import sys
import unicodedata
from collections.abc import Iterator

from openai import APIConnectionError, APIStatusError, AuthenticationError, NotFoundError, OpenAIError, omit
from openai.types.chat import ChatCompletionMessageParam

from app.client import kept_chat, login, v1
from app.client.session_file import SavedSession, SessionFile, SessionFileError, user_file

_SHOWN_TURNS = 4
_SHOWN_CHARS = 300
"""Of each turn of an earlier chat."""
LEAVE = frozenset({"exit", "quit"})
DIM, PLAIN = "\033[2m", "\033[0m"


class ChatError(Exception):
    """The chat cannot go on; the message says why and what to do."""


class TerminalChat:
    """One conversation. Raises ChatError where `url` is no address."""

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        system: str | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        api_key: str | None = None,
        conversation: str | None = None,
        is_new: bool = False,
    ) -> None:
        """api_key: used instead of a session. conversation: the user's to go on with; None: the newest one.

        is_new: whether a new one begins.
        """
        self._url = url.rstrip("/").removesuffix("/v1")
        if not self._url.startswith(("http://", "https://")):
            raise ChatError(f"--url {url}: not an address such as http://127.0.0.1:8000")
        self._has_key = bool(api_key)
        self._without_session = self._client = v1.connect(self._url, api_key)
        self._temperature = omit if temperature is None else temperature
        self._max_tokens = omit if max_tokens is None else max_tokens
        self._instructions = system
        self._said: list[ChatCompletionMessageParam] = []
        """What the service does not keep."""
        self._keeps: bool | None = None
        """Whether the service keeps the chat; None: not known yet."""
        self._conversation = conversation
        """None: there is none yet."""
        self._is_new = is_new
        self._sessions = SessionFile(user_file())
        self._session: SavedSession | None = None
        self._user: str | None = None
        """Whose chat it is; None: nobody's who has logged in."""
        self._wanted = model
        self._model: str | None = None
        """None: to be chosen, which may need a login first."""

    def run(self) -> None:
        """Reads lines and prints answers until exit, quit or the end of input. May be called once.

        Raises ChatError where the service is not there or has no such model when the chat begins.
        """
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (input() edits lines once it is loaded)
        with self._without_session:  # its connections are those of a session, too
            self._begin()
            self._read_lines()

    def _begin(self) -> None:
        has_ended = not self._has_key and not self._resume()
        self._model = self._choose_model()
        if self._model is not None:
            _say(self._greeting())
            self._go_on()
        elif not has_ended:
            _say(self._login_needed())

    def _go_on(self) -> None:
        """Goes on with the user's conversation, if the service keeps any: shows how it ended, and warms it."""
        assert self._model is not None
        try:
            self._keeps = login.is_held(self._client)
            if not self._keeps or self._said or self._is_new:
                return
            if self._conversation is None:
                self._conversation = kept_chat.newest(self._client)
            if self._conversation is None:
                return
            for turn in kept_chat.last_turns(self._client, self._conversation, _SHOWN_TURNS):
                _say(f"{'> ' if turn.role == 'user' else ''}{_shortened(turn.text)}")
            warmed = kept_chat.warm(self._client, self._conversation, self._model, self._instructions)
            _say(f"{warmed.remembered_tokens:,} of {warmed.tokens:,} tokens remembered.")
        except OpenAIError as error:
            if isinstance(error, NotFoundError) and self._conversation is not None:
                raise ChatError(f"there is no conversation {self._conversation} of yours") from error
            _say(_reason(error, self._url))

    def _read_lines(self) -> None:
        while True:
            try:
                line = input("> ").strip()
                word = line.lower()
                if word in LEAVE:
                    return
                if word == "login":
                    self._log_in()
                elif word == "logout":
                    self._log_out()
                elif line:
                    self._turn(line)
            except KeyboardInterrupt:
                print()
            except EOFError:
                print()
                return

    def _resume(self) -> bool:
        """Goes on with the session of an earlier chat, if there is one; False: it has ended."""
        try:
            session = self._sessions.get(self._url)
        except SessionFileError as error:
            _say(str(error))
            return True
        if session is None:
            return True
        self._use(session)
        try:
            if login.is_held(self._client):
                return True
        except OpenAIError as error:
            raise ChatError(_reason(error, self._url)) from error
        _say(self._forget_ended())
        self._user = None  # there is no chat yet
        return False

    def _log_in(self) -> None:
        """Asks for name and password. What goes wrong is one line, and the chat goes on as it was."""
        if self._session is not None:
            _say(f"You are logged in as {self._session.name}; logout comes first.")
            return
        try:
            if not login.has_users(self._client):
                _say(f"{self._url} has no users: there is nothing to log in to.")
                return
            if self._has_key:
                _say("This chat uses an API key: start it without --api-key and REDOUBT_API_KEY to log in.")
                return
            name = input("Name: ").strip()
            session = login.log_in(self._client, name, _password())
        except EOFError:
            print()
            return
        except OpenAIError as error:
            wait_s = login.retry_after_s(error)
            _say(_reason(error, self._url) + ("" if wait_s is None else f" Wait {wait_s} s."))
            return
        if self._user not in (None, session.name):
            self._forget_chat()
        self._use(session)
        try:
            self._sessions.keep(self._url, session)
        except SessionFileError as error:
            _say(f"The login holds for this chat only. {error}")
        if self._find_model():
            _say(self._greeting())
            if self._conversation is None:
                self._go_on()
            else:
                self._keeps = True

    def _log_out(self) -> None:
        """Ends the session at the service first: while that fails it is kept, so that one can try again."""
        if self._user is None:
            _say("You are not logged in.")
            return
        left = login.LeftPages()
        if self._session is not None:
            try:
                left = login.log_out(self._client)
            except OpenAIError as error:
                _say(f"You are still logged in: {_reason(error, self._url)}")
                return
            try:
                self._sessions.remove(self._url, self._session)
            except SessionFileError as error:
                _say(str(error))
        self._use(None)
        self._forget_chat()
        _say(f"Logged out; this chat is forgotten here.{_left(left)}")

    def _use(self, session: SavedSession | None) -> None:
        """Sends this session's token from now on; None: as without a login."""
        self._session = session
        self._model = None
        self._keeps = None
        if session is None:
            self._client = self._without_session
        else:
            self._user = session.name
            self._client = self._without_session.with_options(api_key=session.token)

    def _forget_ended(self) -> str:
        """Goes on without the session, and gives the line to say. The chat stays, for the same user's next one."""
        assert self._session is not None
        with contextlib.suppress(SessionFileError):  # it opens nothing any more
            self._sessions.remove(self._url, self._session)
        ended = f"The session of {self._session.name} has ended: type login to log in again."
        self._use(None)
        return ended

    def _forget_chat(self) -> None:
        self._said = []
        self._conversation = None
        self._is_new = False
        self._user = None
        with contextlib.suppress(ImportError):
            import readline

            readline.clear_history()

    def _turn(self, question: str) -> None:
        """One question and its answer; a question that failed is taken back, to be asked again."""
        if self._session is None and self._user is not None:  # a user's chat is not sent as a guest's
            _say(f"Type login to go on as {self._user}, or logout to forget this chat.")
            return
        if self._model is None and not self._find_model():
            return
        answer = ""
        try:
            if self._keeps is None:
                self._keeps = login.is_held(self._client)
            for text in self._stream_kept(question) if self._keeps else self._stream(question):
                answer += text
                print(_harmless(text), end="", flush=True)
            print()
        except KeyboardInterrupt:
            print(f" {DIM}(stopped){PLAIN}")
        except OpenAIError as error:
            is_over = self._session is not None and login.has_ended(error)
            _say(self._forget_ended() if is_over else self._what_now(error))
        if answer and not self._keeps:
            self._said += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]

    def _what_now(self, error: OpenAIError) -> str:
        if self._keeps and isinstance(error, NotFoundError) and error.code == "not_found":
            self._conversation = None
            return "This conversation was deleted elsewhere. Your next line begins a new one."
        return _reason(error, self._url)

    def _stream_kept(self, question: str) -> Iterator[str]:
        """The next turn of a conversation that the service keeps; what was said before it did is handed over first."""
        assert self._model is not None
        if self._conversation is None:
            self._conversation = kept_chat.begin(self._client, self._said)
            self._said = []
        yield from kept_chat.answer(
            self._client,
            self._conversation,
            question,
            model=self._model,
            instructions=self._instructions,
            temperature=self._temperature,
            max_tokens=self._max_tokens,
        )

    def _stream(self, question: str) -> Iterator[str]:
        """The answer as it is made. Leaving early closes the connection, and so ends the work."""
        assert self._model is not None
        system: list[ChatCompletionMessageParam] = []
        if self._instructions:
            system.append({"role": "system", "content": self._instructions})
        with self._client.chat.completions.create(
            model=self._model,
            messages=[*system, *self._said, {"role": "user", "content": question}],
            stream=True,
            temperature=self._temperature,
            max_tokens=self._max_tokens,
        ) as chunks:
            for chunk in chunks:
                if text := v1.text_of(chunk):
                    yield text

    def _find_model(self) -> bool:
        """Chooses the model while the chat runs, or says why there is none."""
        try:
            self._model = self._choose_model()
        except ChatError as error:
            _say(str(error))
            return False
        if self._model is None:
            _say(self._login_needed())
        return self._model is not None

    def _choose_model(self) -> str | None:
        """None: the service tells its models to users only, so a login is needed. Raises ChatError."""
        try:
            served = v1.models(self._client)
        except OpenAIError as error:
            if isinstance(error, AuthenticationError) and not self._has_key and self._has_users():
                if self._session is not None:
                    self._forget_ended()
                return None
            raise ChatError(_reason(error, self._url)) from error
        if not served:
            raise ChatError(f"{self._url} serves no model")
        if self._wanted is not None and self._wanted not in served:
            raise ChatError(f"{self._url} does not serve {self._wanted}, only {', '.join(served)}")
        return self._wanted or served[0]

    def _has_users(self) -> bool:
        try:
            return login.has_users(self._client)
        except OpenAIError as error:
            raise ChatError(_reason(error, self._url)) from error

    def _greeting(self) -> str:
        user = "" if self._session is None else f", logged in as {self._session.name}"
        return f"{self._model} at {self._url}{user}. Ctrl-C stops an answer; exit or Ctrl-D leaves."

    def _login_needed(self) -> str:
        return f"{self._url} serves its users only: type login; exit or Ctrl-D leaves."


def _say(line: str) -> None:
    print(f"{DIM}{_harmless(line)}{PLAIN}")


def _harmless(text: str) -> str:
    """Without characters that would be commands to the terminal: a model or another client may have written them."""
    return "".join(character if character in "\n\t" or not _is_control(character) else "\ufffd" for character in text)


def _is_control(character: str) -> bool:
    return unicodedata.category(character) == "Cc"


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]} ..."


def _left(pages: login.LeftPages) -> str:
    """What a logout has saved, for a sentence of its own; empty where nothing was to be saved."""
    saved = f" {pages.saved:,} pages ({pages.saved_bytes / 1e6:,.1f} MB) saved." if pages.saved else ""
    unsaved = f" {pages.unsaved:,} pages could not be saved: they are computed again." if pages.unsaved else ""
    return saved + unsaved


def _password() -> str:
    """Asks without showing what is typed; without a terminal it is a line of the input."""
    question = "Password: "
    return getpass.getpass(question) if sys.stdin.isatty() else input(question)


def _reason(error: OpenAIError, url: str) -> str:
    if isinstance(error, APIConnectionError):
        return f"no answer from {url}: is the service running? (`redoubt serve`)"
    if isinstance(error, APIStatusError):
        return f"{url} says: {v1.reason(error)}"
    return v1.reason(error)
