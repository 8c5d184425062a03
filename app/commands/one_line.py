"""A user's mistake is one line on stderr and an exit status, never a traceback."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer


@contextmanager
def one_line_errors(*expected: type[Exception]) -> Iterator[None]:
    """Prints the errors that a user can correct in one line; any other is a bug and keeps its traceback."""
    try:
        yield
    except expected as error:
        fail(str(error), 2)
    except KeyboardInterrupt:
        fail("interrupted", 130)


def fail(message: str, status: int) -> NoReturn:
    """Ends the command."""
    print(f"redoubt: {message}", file=sys.stderr)
    raise typer.Exit(status)
