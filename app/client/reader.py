"""Reads a person's input: lines and blocks with a history at a terminal, otherwise the lines of standard input.

The history is kept in memory only. Knows nothing of what is done with a line.
"""

import contextlib
import getpass
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # loaded only at a terminal
    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyBindings

PROMPT = "> "


class Reader(Protocol):
    """The source of a chat's lines. Reading raises EOFError at the end, and KeyboardInterrupt at Ctrl-C."""

    def message(self, begun: str = "") -> str:
        """Reads the next message, which may have several lines. begun: text to edit."""
        ...

    def ask(self, question: str) -> str:
        """Reads a short answer, which is not added to the history."""
        ...

    def secret(self, question: str) -> str:
        """Reads like `ask`, without echo."""
        ...

    def forget(self) -> None: ...

    def quiet(self) -> AbstractContextManager[None]:
        """Hides typed characters, which would disturb the drawing; the next line begins with them.

        Around a whole chat it also keeps what is typed between two lines: a terminal would take a Ctrl-D for itself.
        """
        ...


def own_reader(completions: Callable[[str], Iterable[str]]) -> Reader:
    """Makes the reader for this process' input. completions: for the text typed so far."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        return TerminalReader(completions)
    return PlainReader()


class PlainReader:
    """Takes each input line as a message."""

    def message(self, begun: str = "") -> str:
        return self._line(PROMPT)

    def ask(self, question: str) -> str:
        return self._line(question)

    def secret(self, question: str) -> str:
        return getpass.getpass(question) if sys.stdin.isatty() else self._line(question)

    def forget(self) -> None: ...

    def quiet(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def _line(self, prompt: str) -> str:
        if not sys.stdin.isatty():
            return input()
        print(prompt, end="", file=sys.stderr, flush=True)
        try:
            return input()
        except (EOFError, KeyboardInterrupt):
            print(file=sys.stderr)
            raise


class TerminalReader:
    """A line editor. Enter sends; Alt+Enter, or Enter after a backslash, begins a line; a paste is one message."""

    def __init__(self, completions: Callable[[str], Iterable[str]]) -> None:
        self._completions = completions
        self._session = self._new_session()
        self._usual: list[Any] | None = None  # the terminal's attributes before all of this

    def message(self, begun: str = "") -> str:
        return self._session.prompt(PROMPT, default=begun)

    def ask(self, question: str) -> str:
        from prompt_toolkit import prompt

        return prompt(question)

    def secret(self, question: str) -> str:
        if self._usual is None:
            return getpass.getpass(question)
        with _attributes(self._usual):  # the terminal's own line editing
            return getpass.getpass(question)

    def forget(self) -> None:
        self._session = self._new_session()

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        import termios

        before = termios.tcgetattr(sys.stdin.fileno())
        is_first, self._usual = self._usual is None, self._usual or before
        changed = list(before)
        changed[3] = changed[3] & ~(termios.ECHO | termios.ICANON) | termios.NOFLSH
        try:
            with _attributes(changed):
                yield
        finally:
            if is_first:
                self._usual = None

    def _new_session(self) -> "PromptSession[str]":
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import CompleteEvent, Completer, Completion
        from prompt_toolkit.document import Document
        from prompt_toolkit.history import InMemoryHistory

        of = self._completions

        class Words(Completer):
            def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
                typed = document.text_before_cursor
                return (Completion(word, start_position=-len(typed)) for word in of(typed))

        return PromptSession(
            history=InMemoryHistory(),
            completer=Words(),
            complete_while_typing=False,
            multiline=True,
            prompt_continuation="  ",
            key_bindings=_keys(),
        )


@contextlib.contextmanager
def _attributes(wanted: list[Any]) -> Iterator[None]:
    """Gives the terminal these attributes for a while."""
    import termios

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    termios.tcsetattr(keyboard, termios.TCSADRAIN, wanted)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _keys() -> "KeyBindings":
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("enter")
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def break_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys
