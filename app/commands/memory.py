"""`redoubt memory`: shows and forgets a user's saved pages, and checks the folder of all.

`administration.py` and `app.memory.check` do the work, and are imported only when a command runs.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from app.commands.accounts import SERVICE, ApiKey, As, Url, service
from app.commands.one_line import fail, one_line_errors

memory = typer.Typer(help="Your saved pages, and the folder of everybody's.", no_args_is_help=True)
_MOST_LINES = 20


@memory.command()
def show(url: Url = SERVICE, as_: As = None, api_key: ApiKey = None) -> None:
    """Print what your saved pages take."""
    with service(url, as_, api_key) as asked:
        use = asked.memory()
    print(f"{use['pages']:,} pages, {_mb(use['bytes'])} of {_mb(use['quota_bytes'])}")
    _print_unacknowledged(use["unacknowledged"])


@memory.command()
def forget(
    conversation: Annotated[
        str | None, typer.Option(metavar="NAME", help="The id or `prompt_cache_key` of one.", show_default=False)
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Of all your conversations.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: Url = SERVICE,
    as_: As = None,
    api_key: ApiKey = None,
) -> None:
    """Destroy the keys of your saved pages. Nobody can open these any more; the texts of stored conversations stay."""
    if (conversation is None) != all_:
        fail("say what to forget: --conversation NAME, or --all", 2)
    what = "all your saved pages" if conversation is None else f"the saved pages of {conversation}"
    if not yes and not typer.confirm(f"Forget {what}? They are computed again when they are needed."):
        fail("nothing was forgotten", 1)
    with service(url, as_, api_key) as asked:
        forgotten = asked.forget(conversation)
    print(f"Forgotten: {forgotten['conversations']:,} conversations, {forgotten['files']:,} files removed.")
    _print_unacknowledged(forgotten["unacknowledged"])


@memory.command()
def check(folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="`memory.folder` of the service.")]) -> None:
    """Look over the folder without any key; ends with status 1 if there is what can't be a page. Changes nothing."""
    from app.memory.check import check_folder

    with one_line_errors(OSError):
        report = check_folder(folder)
    for (owner, model), pages in sorted(report.pages.items()):
        print(f"{owner}  {model}  {pages:>8,} pages  {_mb(report.bytes[owner, model]):>12}")
    owners = {owner for owner, _ in report.pages}
    print(f"{sum(report.pages.values()):,} pages of {len(owners):,} users, {_mb(sum(report.bytes.values()))}")
    if report.temporary:
        print(f"{report.temporary:,} files are being written, or were left by a killed worker and will be swept.")
    for line in _lines(report.wrong):
        print(line)
    if report.wrong:
        fail(f"{len(report.wrong):,} entries are no pages; workers ignore them, or remove them when they read them", 1)


def _lines(wrong: list[tuple[Path, str]]) -> Iterator[str]:
    for path, reason in wrong[:_MOST_LINES]:
        yield f"{path}: {reason}"
    if len(wrong) > _MOST_LINES:
        yield f"... and {len(wrong) - _MOST_LINES:,} more"


def _print_unacknowledged(workers: int) -> None:
    if workers:
        print(f"{workers} workers did not answer.")


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
