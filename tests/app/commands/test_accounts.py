"""`redoubt user`, `key`, `keygen`, `rotate-key` and `audit`: against a service's HTTP, and in its database."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]
from sqlalchemy import delete
from typer.testing import CliRunner

from app.accounts import tables
from app.cli import cli
from tests.app.accounts.world import FIRST
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.users.here import PASSWORD, Site
from tests.app.service import loopback_server
from tests.service.running import free_port

CODE = re.compile(r"\b([A-Z2-7]{4}-){7}[A-Z2-7]{4}\b")


def run(*arguments: str, lines: str = "", key: str | None = None) -> tuple[int, str]:
    """Exit status and everything printed."""
    result = CliRunner().invoke(cli, list(arguments), input=lines, env={"REDOUBT_API_KEY": key})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def done(*arguments: str, **options: Any) -> str:
    status, output = run(*arguments, **options)
    assert status == 0, output
    return output


def mistake(*arguments: str, **options: Any) -> str:
    """What a refused command says: one line."""
    status, output = run(*arguments, **options)
    assert (status, output.count("\n")) == (2, 1), output
    assert output.startswith("redoubt: ")
    return output


# --- in the database


@pytest.fixture
def config(tmp_path: Path) -> str:
    """A configuration with accounts that have a key."""
    done("keygen", str(tmp_path / "kek"))
    accounts = {"database": str(tmp_path / "accounts.db"), "key": f"file:{tmp_path / 'kek'}"}
    args = {"model": {"folder": "models/m"}, "accounts": accounts}
    path = tmp_path / "service.yaml"
    path.write_text(yaml.safe_dump({"applications": [{"import_path": "app.deploy:build", "args": args}]}))
    return str(path)


def test_users_in_the_database(config: str) -> None:
    output = done("user", "add", "Root", "--admin", "--config", config, lines=f"{PASSWORD}\n")
    assert not CODE.search(output)
    output = done("user", "add", "ann", "--concurrent", "3", "--config", config, lines=f"{PASSWORD}\n")
    assert not CODE.search(output)
    first, second = done("user", "list", "--config", config).splitlines()
    assert re.fullmatch(r"ann +user +active +since \S{10}  first login until \S{10}  concurrent 3", first)
    assert re.fullmatch(r"root +admin +active +since \d{4}-\d\d-\d\d  first login until \d{4}-\d\d-\d\d", second)
    assert done("user", "disable", "ann", "--config", config) == "ann is disabled.\n"
    assert done("user", "enable", "ann", "--config", config) == "ann is enabled.\n"
    assert done("user", "limits", "ann", "--memory-bytes", "0", "--config", config) == "ann: memory_bytes 0\n"
    assert re.search(
        r"for one login, until \d{4}-\d\d-\d\d",
        done("user", "reset", "ann", "--config", config, lines="another long password\n"),
    )
    assert done("user", "delete", "ann", "--yes", "--config", config) == "ann is deleted.\n"
    audit = done("audit", "--config", config).splitlines()
    assert len(audit) == 7
    assert all(" operator " in row for row in audit)
    numbers = [int(row.split()[0]) for row in audit]
    assert numbers == sorted(numbers, reverse=True)
    assert any(" root " in row for row in audit), "users are named"
    assert done("audit", "--after", "6", "--limit", "1", "--config", config).split()[0] == "7"
    older = done("audit", "--before", "4", "--limit", "2", "--config", config).splitlines()
    assert [row.split()[0] for row in older] == ["3", "2", "1"]
    assert older[-1] == "1 more: redoubt audit --before 2"


def test_mistakes_are_one_line(config: str, tmp_path: Path) -> None:
    done("user", "add", "root", "--admin", "--config", config, lines=f"{PASSWORD}\n")
    for arguments, lines, words in [
        (("user", "add", "root"), PASSWORD, "There is a user root already"),
        (("user", "add", "a b"), PASSWORD, "A name has"),
        (("user", "add", "ann"), "short", "A password has 12"),
        (("user", "disable", "nobody"), "", "There is no such user"),
        (("user", "disable", "root"), "", "Nobody would be left"),
    ]:
        assert words in mistake(*arguments, "--config", config, lines=f"{lines}\n")
    assert "there is no line of input" in mistake("user", "add", "ann", "--config", config)
    assert "File exists" in mistake("keygen", str(tmp_path / "kek"))
    (tmp_path / "without.yaml").write_text(
        yaml.safe_dump({"applications": [{"import_path": "app.deploy:build", "args": {"model": {"folder": "m"}}}]})
    )
    assert "args.accounts is missing" in mistake("user", "list", "--config", str(tmp_path / "without.yaml"))
    assert "No such file" in mistake("audit", "--config", str(tmp_path / "nothing.yaml"))
    status, output = run("user", "delete", "root", "--config", config, lines="n\n")
    assert status == 1
    assert "Nothing that was saved" in output


def test_the_servers_key_is_changed(config: str, tmp_path: Path) -> None:
    done("user", "add", "root", "--admin", "--config", config, lines=f"{PASSWORD}\n")
    new = tmp_path / "new"
    assert "No such file" in mistake("rotate-key", str(new), "--config", config)
    done("keygen", str(new))
    assert f"accounts.key: file:{new}" in done("rotate-key", str(new), "--config", config)
    assert "not the key of accounts.database" in mistake("user", "list", "--config", config)
    (tmp_path / "kek").unlink()
    new.rename(tmp_path / "kek")
    assert "root" in done("user", "list", "--config", config)
    assert "rotate_key" in done("audit", "--config", config)


def test_an_audit_that_was_changed_is_an_error(config: str) -> None:
    from app.commands.administration import in_database

    done("user", "add", "root", "--admin", "--config", config, lines=f"{PASSWORD}\n")
    done("user", "add", "ann", "--config", config, lines=f"{PASSWORD}\n")
    with in_database(Path(config)) as database, database._accounts.store.transaction() as connection:
        connection.execute(delete(tables.audit).where(tables.audit.c.seq == 1))
    status, output = run("audit", "--config", config)
    assert status == 1
    assert "the audit was changed" in output


# --- over HTTP


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Site, str]]:
    """A service with the administrator root, and its address."""
    proxied = {"behind_own_proxy": True}
    site = Site(str(tmp_path / "accounts.db"), FakeWorker(lambda _: deltas([5])), http=proxied)
    site.add("root", role="admin")
    with loopback_server(site.app) as url:
        yield site, url
    site.service.close()


def test_users_and_keys_over_http(site: tuple[Site, str]) -> None:
    service, url = site
    at = ("--url", url)
    root = done("key", "add", *at, "--as", "root", lines=f"{PASSWORD}\n").strip()
    assert re.fullmatch(r"rdbt_[0-9a-f]{16}_[\w-]{43}", root)
    with service.inside.store.transaction() as connection:
        assert connection.execute(tables.sessions.select()).all() == []  # the command's own login has ended
    output = done("user", "add", "ann", *at, "--tokens-per-day", "9", key=root, lines=f"{PASSWORD}\n")
    assert not CODE.search(output)
    assert "tokens_per_day 9" in done("user", "list", *at, key=root)
    assert done("user", "limits", "ann", *at, key=root) == "ann: no limits of its own\n"
    assert done("user", "disable", "ann", *at, key=root) == "ann is disabled.\n"
    assert "Name or password is wrong" in mistake("key", "list", *at, "--as", "ann", lines=f"{PASSWORD}\n")
    done("user", "enable", "ann", *at, key=root)

    first = done("key", "list", *at, "--as", "ann", lines=f"{PASSWORD}\na second long password\n")
    code = CODE.search(first)
    assert code is not None
    done("user", "reset", "ann", *at, key=root, lines=f"{FIRST}\n")
    lines = f"{FIRST}\n{code[0]}\n{PASSWORD}\n"
    assert CODE.search(done("key", "list", *at, "--as", "ann", lines=lines))
    ann = done("key", "add", "--label", "laptop", "--days", "3", *at, "--as", "ann", lines=f"{PASSWORD}\n").strip()
    (listed,) = done("key", "list", *at, key=ann).splitlines()
    assert re.fullmatch(r"[0-9a-f]{16}  since .*Z  until .*Z  laptop", listed)
    assert "Only administrators" in mistake("user", "list", *at, key=ann)
    assert "is revoked" in done("key", "revoke", listed[:16], *at, key=ann)
    assert "There is no such key" in mistake("key", "revoke", "0000", *at, "--as", "ann", lines=f"{PASSWORD}\n")

    done("user", "delete", "ann", "--yes", *at, key=root)
    audit = done("audit", *at, key=root)
    assert "reset_password" in audit
    assert "change_password first" in audit


def test_the_audit_tells_from_where_a_login_was_refused(site: tuple[Site, str]) -> None:
    _, url = site
    wrong = {"name": "root", "password": "not it"}
    answer = httpx.post(f"{url}/v1/auth/login", json=wrong, headers={"X-Redoubt-Client": "192.0.2.7"}, timeout=60)
    assert answer.status_code == 401
    rows = done("audit", "--url", url, "--as", "root", lines=f"{PASSWORD}\n").splitlines()
    (refused,) = (row for row in rows if "refused" in row)
    assert re.fullmatch(r" +\d+  .*Z  root +login refused from 192\.0\.2\.7", refused)


def test_a_service_that_is_not_there_or_none(site: tuple[Site, str]) -> None:
    _, url = site
    assert "who are you?" in mistake("user", "list", "--url", url)
    assert "is the service running?" in mistake("user", "list", "--url", f"http://127.0.0.1:{free_port()}", key="k")
    assert "not an address" in mistake("user", "list", "--url", "localhost", key="k")
    assert "is that a Redoubt service?" in mistake("key", "list", "--url", f"{url}/docs?", key="k")
    assert "not valid here" in mistake("key", "list", "--url", url, key="none")
