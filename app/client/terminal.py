"""A chat in the terminal, over HTTP: the service is a URL. Knows nothing of models, tokens or Ray.

Decides whether a line is a word of the chat's own, a command, or a question. Typed text is kept in memory only.
"""

from openai import OpenAIError

from app.client import commands, login
from app.client.account import Account, ChatError, UnreachableError, reason
from app.client.commands import Leave
from app.client.reader import Reader, own_reader
from app.client.screen import Screen, own_screen
from app.client.talk import Talk
from app.client.turns import Knobs


class TerminalChat:
    """A terminal chat. Raises ChatError if `url` is no address."""

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
        screen: Screen | None = None,
        reader: Reader | None = None,
    ) -> None:
        """api_key: used instead of a session. conversation: the user's conversation to continue; None: the newest one.

        is_new: whether to begin a new one. screen, reader: None: this process' own.
        """
        self._screen = screen or own_screen()
        self._reader = reader or own_reader(commands.completions)
        self._account = Account(url, api_key, self._screen.say)
        knobs = Knobs(system=system, temperature=temperature, max_tokens=max_tokens)
        self._talk = Talk(
            self._account, self._screen, self._reader, knobs, model=model, conversation=conversation, is_new=is_new
        )

    def run(self) -> bool:
        """Reads lines and prints answers until exit, quit or the end of input. May be called once.

        Returns False for failures in a script; a person at a terminal has seen the errors. Raises ChatError if the
        service lacks the model when the chat begins, or can't be reached and there is no person to tell.
        """
        with self._account.without_session, self._reader.quiet():  # its connections belong to a session, too
            try:
                self._begin()
            except KeyboardInterrupt:  # what was not loaded is computed with the first question
                self._screen.say("")
            self._read_lines()
        return self._screen.is_terminal or not self._talk.has_failed

    def _begin(self) -> None:
        has_ended = False
        try:
            has_ended = not self._account.resume()
            self._talk.choose_model()
        except UnreachableError as error:
            if not self._screen.is_terminal:
                raise
            self._screen.say(f"{error} A question that gets no answer is kept: /retry asks it again.")
            return
        if self._talk.model is not None:
            self._talk.begin()
        elif not has_ended:
            self._screen.say(self._talk.login_needed())

    def _read_lines(self) -> None:
        interrupts = 0
        while interrupts < 2:
            try:
                if interrupts:
                    self._screen.say("Ctrl-C again, or Ctrl-D, leaves.")
                line = self._reader.message().strip()
                interrupts = 0
                self._deal_with(line)
            except KeyboardInterrupt:
                interrupts += 1
            except (EOFError, Leave):
                return

    def _deal_with(self, line: str) -> None:
        """Processes a line and shows errors; the chat goes on. Raises Leave."""
        try:
            self._take(line)
        except ChatError as error:
            self._screen.say(str(error))
        except OpenAIError as error:
            self._screen.say(reason(error, self._account.url))
        except (KeyboardInterrupt, EOFError):  # while it asked the user something
            self._screen.say("")

    def _take(self, line: str) -> None:
        match line.lower():
            case "":
                pass
            case "exit" | "quit":
                raise Leave
            case "login":
                self._log_in()
            case "logout":
                self._log_out()
            case _ if line.startswith("//"):
                self._talk.ask(line[1:])
            case _ if line.startswith("/"):
                commands.run(self._talk, line)
            case _:
                self._talk.ask(line)

    def _log_in(self) -> None:
        before = self._account.user
        if not self._account.log_in(self._reader):
            return
        if before not in (None, self._account.user):
            self._talk.forget()
        self._talk.renew()
        if self._talk.find_model():
            self._talk.begin()

    def _log_out(self) -> None:
        left = self._account.log_out()
        if left is None:
            return
        self._talk.renew()
        self._talk.forget()
        self._screen.say(f"Logged out; this chat is forgotten here.{_left(left)}")


def _left(pages: login.LeftPages) -> str:
    """A sentence on what a logout has saved; empty if nothing was to be saved."""
    saved = f" {pages.saved:,} pages ({pages.saved_bytes / 1e6:,.1f} MB) saved." if pages.saved else ""
    unsaved = f" {pages.unsaved:,} pages could not be saved: they are computed again." if pages.unsaved else ""
    return saved + unsaved
