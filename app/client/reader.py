"""What a person types: lines and blocks with a history at a terminal, else the lines of the input.

The history is kept in memory only. Knows nothing of what is done with a line.
"""

import contextlib
import getpass
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # loaded where a person types
    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyBindings

PROMPT = "> "


class Reader(Protocol):
    """Where a chat's lines come from. Reading raises EOFError at the end, and KeyboardInterrupt at Ctrl-C."""

    def message(self, begun: str = "") -> str:
        """The next message, which may have several lines. begun: what stands there already, to be changed."""
        ...

    def ask(self, question: str) -> str:
        """A short answer, which is not in the history."""
        ...

    def secret(self, question: str) -> str:
        """The same, and not shown."""
        ...

    def forget(self) -> None:
        """Forgets the history."""
        ...

    def quiet(self) -> AbstractContextManager[None]:
        """What is typed meanwhile is not shown, where it would move what is drawn; the next line begins with it."""
        ...


def own_reader(completions: Callable[[str], Iterable[str]]) -> Reader:
    """This process's. completions: of what has been typed so far."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        return TerminalReader(completions)
    return PlainReader()


class PlainReader:
    """A line of the input is a message."""

    def message(self, begun: str = "") -> str:
        """See Reader."""
        return self._line(PROMPT)

    def ask(self, question: str) -> str:
        """See Reader."""
        return self._line(question)

    def secret(self, question: str) -> str:
        """See Reader."""
        return getpass.getpass(question) if sys.stdin.isatty() else self._line(question)

    def forget(self) -> None:
        """There is none."""

    def quiet(self) -> AbstractContextManager[None]:
        """Nothing is drawn."""
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

    def message(self, begun: str = "") -> str:
        """See Reader."""
        return self._session.prompt(PROMPT, default=begun)

    def ask(self, question: str) -> str:
        """See Reader."""
        from prompt_toolkit import prompt

        return prompt(question)

    def secret(self, question: str) -> str:
        """See Reader."""
        return getpass.getpass(question)

    def forget(self) -> None:
        """See Reader."""
        self._session = self._new_session()

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """See Reader."""
        import termios

        keyboard = sys.stdin.fileno()
        before = termios.tcgetattr(keyboard)
        changed = termios.tcgetattr(keyboard)
        changed[3] = changed[3] & ~(termios.ECHO | termios.ICANON) | termios.NOFLSH
        termios.tcsetattr(keyboard, termios.TCSADRAIN, changed)
        try:
            yield
        finally:
            termios.tcsetattr(keyboard, termios.TCSADRAIN, before)

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
