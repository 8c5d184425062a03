"""Reports a user's mistake in one line on stderr with an exit status, never as a traceback."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NoReturn

import typer
from typer.core import TyperGroup

_MOST_CHARACTERS: Final = 1200


class OneLineGroup(TyperGroup):
    """Typer's group of commands, with command-line errors in one line that says where to read on."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Runs the command and ends the process, as Typer's does. standalone_mode: False raises instead of ending."""
        run = partial(super().main, args, prog_name, complete_var, False, windows_expand_args, **extra)
        if not standalone_mode:
            return run()
        try:
            sys.exit(run() or 0)
        except typer.Abort:
            print("redoubt: aborted", file=sys.stderr)
            sys.exit(1)
        except Exception as error:
            # The base of Typer's own errors has these attributes, and no public name.
            message, status = getattr(error, "format_message", str)(), getattr(error, "exit_code", None)
            context = getattr(error, "ctx", None)
            if status is None:
                raise
            if message and context is not None and type(error).__name__ != "NoArgsIsHelpError":
                message = message.replace("Value error, ", "").removesuffix(".")
                print(f"redoubt: {message}; see {context.command_path} -h", file=sys.stderr)
            else:
                error.show()  # type: ignore[attr-defined]
            sys.exit(status)

    def invoke(self, ctx: Any) -> Any:
        """Runs the command. Ctrl-C prints one line too, also while the command still imports what it needs."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            fail(str(interrupt) or "interrupted", 130)


@contextmanager
def one_line_errors(*expected: type[Exception]) -> Iterator[None]:
    """Prints errors that a user can correct in one line; any other is a bug and keeps its traceback."""
    try:
        yield
    except expected as error:
        fail(worded(error), 2)


def worded(error: Exception) -> str:
    """Words the error for a user; for a system error the file and the reason, without number and quotes.

    Returns one short line: a message may quote a name from a file of any content.
    """
    text = str(error)
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        text = f"{error.filename}: {error.strerror}"
    text = " ".join(text.splitlines())
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."


def fail(message: str, status: int) -> NoReturn:
    """Prints the message and exits."""
    print(f"redoubt: {message}", file=sys.stderr)
    raise typer.Exit(status)
