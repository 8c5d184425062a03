"""`redoubt user`, `key`, `keygen`, `rotate-key` and `audit`: options, questions and output.

`administration.py` does the work, and is imported only when a command runs.
"""

import datetime
import getpass
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.commands.one_line import fail, one_line_errors

if TYPE_CHECKING:
    from app.commands.administration import Administration, OverHttp
    from app.messages.accounts import UserInfo, UserLimits

user = typer.Typer(help="Add, list, change and delete the users of a service.", no_args_is_help=True)
key = typer.Typer(help="Your own API keys of a service.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")]
Url = Annotated[str, typer.Option(help="The address of the running service.")]
As = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="NAME",
        help="Log in as this user; asks for the password. [default: the API key in REDOUBT_API_KEY]",
        show_default=False,
    ),
]
ApiKey = Annotated[str | None, typer.Option(envvar="REDOUBT_API_KEY", hidden=True)]
Config = Annotated[
    Path | None,
    typer.Option(
        help="Work in the database of this configuration file instead, while no service has it open.",
        show_default=False,
    ),
]
RequestsPerMinute = Annotated[int | None, typer.Option(min=1, help="Requests in any minute.", show_default=False)]
TokensPerDay = Annotated[int | None, typer.Option(min=1, help="Tokens of a day in UTC.", show_default=False)]
Concurrent = Annotated[int | None, typer.Option(min=1, help="Requests at the same time.", show_default=False)]
MemoryBytes = Annotated[int | None, typer.Option(min=0, help="Bytes of saved pages.", show_default=False)]
SERVICE = "http://127.0.0.1:8000"


@user.command()
def add(
    name: Name,
    admin: Annotated[bool, typer.Option("--admin", help="Let the user administer.")] = False,
    requests_per_minute: RequestsPerMinute = None,
    tokens_per_day: TokensPerDay = None,
    concurrent: Concurrent = None,
    memory_bytes: MemoryBytes = None,
    url: Url = SERVICE,
    as_: As = None,
    api_key: ApiKey = None,
    config: Config = None,
) -> None:
    """Add a user; asks for a password for the first login, at which the user chooses another.

    The first administrator is added with --config, before the service starts.
    """
    limits = _limits(requests_per_minute, tokens_per_day, concurrent, memory_bytes)
    with _administration(url, as_, api_key, config) as administration:
        password = _new_password(name)
        _print_new(administration.add_user(name, password, "admin" if admin else "user", limits))


@user.command("list")
def list_(url: Url = SERVICE, as_: As = None, api_key: ApiKey = None, config: Config = None) -> None:
    """List all users."""
    with _administration(url, as_, api_key, config) as administration:
        for each in administration.users():
            expires = each.first_password_expires
            until = None if expires is None else f"first login until {_date(expires)}"
            told = "  ".join(filter(None, (f"since {_date(each.created)}", until, _shown(each.limits))))
            print(f"{each.name:<24} {each.role:<6} {each.state:<9} {told}")


@user.command()
def disable(name: Name, url: Url = SERVICE, as_: As = None, api_key: ApiKey = None, config: Config = None) -> None:
    """Refuse a user from now on, and end what the user runs. Nothing is lost."""
    from app.messages.accounts import UserChange

    with _administration(url, as_, api_key, config) as administration:
        print(f"{administration.change_user(name, UserChange(state='disabled')).name} is disabled.")


@user.command()
def enable(name: Name, url: Url = SERVICE, as_: As = None, api_key: ApiKey = None, config: Config = None) -> None:
    """Let a disabled user in again."""
    from app.messages.accounts import UserChange

    with _administration(url, as_, api_key, config) as administration:
        print(f"{administration.change_user(name, UserChange(state='active')).name} is enabled.")


@user.command()
def limits(
    name: Name,
    requests_per_minute: RequestsPerMinute = None,
    tokens_per_day: TokensPerDay = None,
    concurrent: Concurrent = None,
    memory_bytes: MemoryBytes = None,
    url: Url = SERVICE,
    as_: As = None,
    api_key: ApiKey = None,
    config: Config = None,
) -> None:
    """Set a user's own limits, all of them at once; the service's hold for those that are left out."""
    from app.messages.accounts import UserChange

    own = _limits(requests_per_minute, tokens_per_day, concurrent, memory_bytes)
    with _administration(url, as_, api_key, config) as administration:
        changed = administration.change_user(name, UserChange(limits=own))
        print(f"{changed.name}: {_shown(changed.limits) or 'no limits of its own'}")


@user.command()
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: Url = SERVICE,
    as_: As = None,
    api_key: ApiKey = None,
    config: Config = None,
) -> None:
    """Delete a user and destroy the keys of all that was saved."""
    if not yes:
        typer.confirm(f"Delete {name}? Nothing that was saved can be opened again.", abort=True)
    with _administration(url, as_, api_key, config) as administration:
        administration.delete_user(name)
        print(f"{name} is deleted.")


@user.command()
def reset(
    name: Name,
    url: Url = SERVICE,
    as_: As = None,
    api_key: ApiKey = None,
    config: Config = None,
) -> None:
    """Set a password for a user's next login, at which the recovery code keeps what was saved. Keys, sessions end."""
    with _administration(url, as_, api_key, config) as administration:
        _print_new(administration.reset_password(name, _new_password(name)))


@key.command("add")
def add_key(
    label: Annotated[str, typer.Option(help="What it is for; only you see it.")] = "",
    days: Annotated[
        int | None, typer.Option(min=1, max=3650, help="How long it holds. [default: for ever]", show_default=False)
    ] = None,
    url: Url = SERVICE,
    as_: As = None,
    api_key: ApiKey = None,
) -> None:
    """Make an API key and print it, this once."""
    with service(url, as_, api_key) as asked:
        print(asked.add_key(label, days).secret)


@key.command("list")
def list_keys(url: Url = SERVICE, as_: As = None, api_key: ApiKey = None) -> None:
    """List your API keys."""
    with service(url, as_, api_key) as asked:
        for each in asked.own_keys():
            ends = "" if each.expires is None else f"until {_time(each.expires)}  "
            print(f"{each.id}  since {_time(each.created)}  {ends}{each.label}".rstrip())


@key.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="As `redoubt key list` shows it.")],
    url: Url = SERVICE,
    as_: As = None,
    api_key: ApiKey = None,
) -> None:
    """Revoke one of your API keys; what runs with it ends."""
    with service(url, as_, api_key) as asked:
        asked.revoke_key(key_id)
        print(f"{key_id} is revoked.")


def keygen(out: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")]) -> None:
    """Make the key that `accounts.key` names. Keep a copy apart from the database: without it nothing there opens."""
    from app.accounts.key_source import write_kek

    with one_line_errors(OSError):
        write_kek(out)
    print(f"{out}: a new key of 32 bytes")


def rotate_key(
    new: Annotated[Path, typer.Argument(metavar="FILE", help="The new key, of `redoubt keygen`.")],
    config: Annotated[Path, typer.Option(help="The configuration file, with the key so far.")],
) -> None:
    """Seal the accounts with a new key, while no service runs. Users notice nothing."""
    from app.commands.administration import ERRORS, rotate

    with one_line_errors(*ERRORS):
        rotate(config, new)
    print(f"Done. Now set accounts.key: file:{new.absolute()}")


def audit(
    before: Annotated[
        int | None, typer.Option(min=1, help="Only rows with lower numbers. [default: all]", show_default=False)
    ] = None,
    after: Annotated[
        int | None,
        typer.Option(min=0, help="Rows with higher numbers, the oldest first, as for an archive.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many rows.")] = 100,
    url: Url = SERVICE,
    as_: As = None,
    api_key: ApiKey = None,
    config: Config = None,
) -> None:
    """Print who did what, the newest first, and check that nobody has changed it; status 1 if somebody has."""
    if before is not None and after is not None:
        fail("give either --before or --after", 2)
    with _administration(url, as_, api_key, config) as administration:
        names = {user.id: user.name for user in administration.users()}
        if after is not None:
            page = administration.audit(after, limit)
        else:
            end = administration.audit(0, 1).last + 1 if before is None else before
            first = max(end - limit, 1)
            page = administration.audit(first - 1, max(end - first, 1))
            page = replace(page, rows=[row for row in reversed(page.rows) if row.seq < end])
    for row in page.rows:
        who, what = names.get(row.actor, row.actor), names.get(row.object, row.object)
        where = None if row.address is None else f"from {row.address}"
        told = " ".join(filter(None, (row.action, what, row.outcome, where)))
        print(f"{row.seq:>6}  {_time(row.at)}  {who:<20}  {told}")
    if page.rows:
        seq = page.rows[-1].seq
        more, option = (page.last - seq, "--after") if after is not None else (seq - 1, "--before")
        if more > 0:
            print(f"{more} more: redoubt audit {option} {seq}", file=sys.stderr)
    if not page.intact:
        fail("the audit was changed: rows are missing or are not what was written", 1)


@contextmanager
def _administration(url: str, name: str | None, api_key: str | None, config: Path | None) -> "Iterator[Administration]":
    """Opens the service, or the configuration's database; prints errors of the block in one line."""
    from app.commands.administration import ERRORS, in_database

    if config is None:
        with service(url, name, api_key) as asked:
            yield asked
        return
    with one_line_errors(*ERRORS), in_database(config) as database:
        yield database


@contextmanager
def service(url: str, name: str | None, api_key: str | None) -> "Iterator[OverHttp]":
    """Opens the running service; prints errors of the block in one line. name: the user; None: the key is used."""
    from app.commands.administration import ERRORS, OverHttp

    if name is None and api_key is None:
        fail("who are you? --as NAME asks for your password; or set REDOUBT_API_KEY to a key of yours", 2)
    with one_line_errors(*ERRORS), OverHttp(url, api_key if name is None else None) as asked:
        if name is not None:
            password = _secret(f"Password of {name}: ")
            if asked.log_in(name, password):
                _choose_password(asked, name, password)
        yield asked


def _limits(
    requests_per_minute: int | None, tokens_per_day: int | None, concurrent: int | None, memory_bytes: int | None
) -> "UserLimits":
    from app.messages.accounts import UserLimits

    return UserLimits(requests_per_minute, tokens_per_day, concurrent, memory_bytes)


def _shown(own: "UserLimits") -> str:
    given = {name: getattr(own, name) for name in own.__slots__}
    return ", ".join(f"{name} {value}" for name, value in given.items() if value is not None)


def _print_new(new: "UserInfo") -> None:
    until = "" if new.first_password_expires is None else f", until {_date(new.first_password_expires)}"
    where = "on the page /login or in redoubt chat, and chooses another there"
    print(f"{new.name} has a password for one login{until}, {where}.")


def _choose_password(asked: "OverHttp", name: str, given: str) -> None:
    """Lets the user who runs the command replace an administrator's password at the first login."""
    print("An administrator has set this password: choose one of your own.", file=sys.stderr)
    code = _secret("Recovery code (none: what was saved of yours is deleted): ") if asked.can_recover else ""
    kept = asked.choose_password(given, _new_password(name, "New password of"), code or None)
    print(f"Recovery code, for {name} to keep; it is shown this once:\n{kept}", file=sys.stderr)


def _new_password(name: str, what: str = "Password for the next login of") -> str:
    password = _secret(f"{what} {name}: ")
    if sys.stdin.isatty() and _secret("Once more: ") != password:
        fail("these were two different passwords", 2)
    return password


def _secret(question: str) -> str:
    """Asks without echo; without a terminal it reads a line of the input."""
    if sys.stdin.isatty():
        return getpass.getpass(question)
    line = sys.stdin.readline()
    if not line:
        fail(f"{question.rstrip(': ')}: there is no line of input for it", 2)
    return line.rstrip("\n")


def _date(seconds: int) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).date().isoformat()


def _time(seconds: int) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%SZ")
