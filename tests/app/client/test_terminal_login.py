"""login, logout and exit in the terminal chat: against an ingress with accounts, and services without."""

import getpass
import json
import os
import re
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response

from app.accounts.accounts import OPERATOR_ACTS
from app.accounts.passwords import new_password
from app.client import v1
from app.client.account import ChatError
from app.messages.accounts import AccountsError, UserLimits
from app.messages.memory import SavedPages
from tests.app.accounts.world import CHEAP, FIRST, choose
from tests.app.client.conftest import MakeSite, TypeIn, plain_chat
from tests.app.interface.users.here import PASSWORD, Site
from tests.app.tiny_model import reference_tokenizer
from tests.fake_v1 import FakeV1, running

LOGIN = ("login", "ann", PASSWORD)


def chat(url: str, capsys: pytest.CaptureFixture[str], **options: str) -> list[str]:
    """A whole chat; the lines that it prints."""
    plain_chat(url, **options).run()
    return capsys.readouterr().out.splitlines()


def asked(site: Site) -> list[str]:
    """The prompts that came to the worker."""
    return [reference_tokenizer().decode(request.prompt_token_ids) for request in site.worker.requests]


def token_of(site: Site, url: str) -> str:
    token = token_in(Path(os.environ["XDG_CONFIG_HOME"]), url)
    assert token is not None
    return token


def site_login(site: Site) -> str:
    challenge = site.inside.logins.challenge("ann")
    return site.inside.logins.log_in(challenge, challenge.stretched(PASSWORD)).token


def token_in(folder: Path, url: str) -> str | None:
    entries = json.loads((folder / "redoubt" / "sessions.json").read_text())
    return entries[url]["token"] if url in entries else None


def greeting(url: str, user: str = ", logged in as ann") -> str:
    return f"tiny at {url}{user}. Ctrl-C stops an answer; /help says more; exit leaves."


def login_needed(url: str) -> str:
    return f"{url} serves its users only: type login; exit or Ctrl-D leaves."


def test_logs_in_and_the_next_chat_goes_on(
    make_site: MakeSite, type_in: TypeIn, capsys: pytest.CaptureFixture[str], config_folder: Path
) -> None:
    site, url = make_site()
    type_in("too early", *LOGIN, "hello", "exit")
    first = chat(url, capsys)
    assert first[:3] == [login_needed(url), login_needed(url), greeting(url)]
    assert len(first) == 4
    (prompt,) = asked(site)
    assert "hello" in prompt
    assert "too early" not in prompt
    type_in("once more", "quit")
    again = chat(f"{url}/v1/", capsys)
    assert again[:2] == [greeting(url), "> hello"]
    assert again[3].endswith(" tokens remembered.")
    _, warming, following = asked(site)
    assert "hello" in warming
    assert "hello" in following
    assert "once more" in following
    assert (config_folder / "redoubt" / "sessions.json").stat().st_mode & 0o777 == 0o600


def test_logout_ends_the_session_and_forgets_the_chat(
    make_site: MakeSite, type_in: TypeIn, capsys: pytest.CaptureFixture[str], config_folder: Path
) -> None:
    site, url = make_site()
    tokens: list[str | None] = []
    type_in(
        *LOGIN,
        "first of ann",
        lambda: tokens.append(token_in(config_folder, url)),
        "logout",
        "logout",
        "nobody's",
        "login",
        "ben",
        PASSWORD,
        "first of ben",
        "exit",
    )
    printed = chat(url, capsys, system="Be brief.")
    assert printed[3:6] == ["Logged out; this chat is forgotten here.", "You are not logged in.", login_needed(url)]
    assert printed[6] == greeting(url, ", logged in as ben")
    assert "first of ann" in asked(site)[0]
    assert "first of ann" not in asked(site)[1]
    assert all("Be brief." in prompt for prompt in asked(site))
    (token,) = tokens
    assert token is not None
    with pytest.raises(AccountsError, match="session has ended"):
        site.inside.logins.identify(token)
    assert token_in(config_folder, url) not in (None, token)


def test_a_new_conversation_and_a_chosen_one(
    make_site: MakeSite, type_in: TypeIn, capsys: pytest.CaptureFixture[str]
) -> None:
    site, url = make_site()
    type_in(*LOGIN, "in the first", "exit")
    chat(url, capsys)
    type_in("in the second", "exit")
    plain_chat(url, is_new=True).run()
    assert "in the first" not in asked(site)[-1]
    client = v1.connect(url, token_of(site, url))
    found: Any = client.get("/conversations", cast_to=object)
    assert sorted(one["title"] for one in found["data"]) == ["in the first", "in the second"]
    (first,) = (one["id"] for one in found["data"] if one["title"] == "in the first")
    type_in("and on", "exit")
    plain_chat(url, conversation=first).run()
    assert "in the first" in asked(site)[-1]
    assert "in the second" not in asked(site)[-1]


def test_the_same_instructions_are_warmed_that_are_sent(
    make_site: MakeSite, type_in: TypeIn, capsys: pytest.CaptureFixture[str]
) -> None:
    site, url = make_site()
    type_in(*LOGIN, "hello", "exit")
    plain_chat(url, system="Be brief.").run()
    type_in("once more", "exit")
    plain_chat(url, system="Be brief.").run()
    warming, following = asked(site)[-2:]
    assert following.startswith(warming.removesuffix("assistant\n"))
    assert "Be brief." in warming
    with pytest.raises(ChatError, match="there is no conversation conv_1 of yours"):
        plain_chat(url, conversation="conv_1").run()


def test_what_fails_at_the_start_changes_no_chat(
    make_site: MakeSite, type_in: TypeIn, capsys: pytest.CaptureFixture[str]
) -> None:
    site, url = make_site()
    type_in(*LOGIN, "in the first", "exit")
    chat(url, capsys)
    site.accounts.failing = ["items"]
    type_in("and on", "exit")
    assert f"{url} says: The accounts do not answer. Try again later." in chat(url, capsys)
    assert "in the first" in asked(site)[-1]


def test_a_conversation_that_is_deleted_elsewhere(
    make_site: MakeSite, type_in: TypeIn, capsys: pytest.CaptureFixture[str]
) -> None:
    site, url = make_site()

    def delete_all() -> None:
        v1.connect(url, token_of(site, url)).delete("/conversations", cast_to=object)

    type_in(*LOGIN, "first", delete_all, "lost", "second", "exit")
    assert "This conversation was deleted elsewhere. Your next line begins a new one." in chat(url, capsys)
    assert "second" in asked(site)[-1]
    assert "first" not in asked(site)[-1]


def test_a_users_key_keeps_the_chat_too(
    make_site: MakeSite, type_in: TypeIn, capsys: pytest.CaptureFixture[str]
) -> None:
    site, url = make_site()
    key = site.inside.api_keys.add(site_login(site), "", None).secret
    type_in("with a key", "exit")
    chat(url, capsys, api_key=key)
    type_in("again", "exit")
    assert "> with a key" in chat(url, capsys, api_key=key)
    assert "with a key" in asked(site)[-1]


def test_a_logout_says_what_it_has_saved(
    make_site: MakeSite, type_in: TypeIn, capsys: pytest.CaptureFixture[str]
) -> None:
    site, url = make_site()
    first, second = site.page_workers
    first.answers["clear_memory"], second.answers["clear_memory"] = SavedPages(12, 8_900_000, 0), SavedPages(0, 0, 3)
    type_in(*LOGIN, "logout", "exit")
    said = "Logged out; this chat is forgotten here. 12 pages (8.9 MB) saved. 3 pages could not be saved"
    assert chat(url, capsys)[-1].startswith(said)


def test_with_guests_one_chats_before_the_login_and_after_the_logout(
    make_site: MakeSite, type_in: TypeIn, capsys: pytest.CaptureFixture[str], config_folder: Path
) -> None:
    site, url = make_site(guests=True)
    type_in("as a guest", *LOGIN, "as ann", "logout", "as another", "exit")
    printed = chat(url, capsys)
    assert printed[0] == greeting(url, "")
    assert greeting(url) in printed
    _, second, third = asked(site)
    assert "as a guest" in second
    assert "as ann" not in third
    tenants = [request.tenant for request in site.worker.requests]
    assert tenants[0] == tenants[2] == b"" != tenants[1]
    assert token_in(config_folder, url) is None


def test_only_a_whole_line_is_a_command(
    make_site: MakeSite, type_in: TypeIn, capsys: pytest.CaptureFixture[str]
) -> None:
    site, url = make_site(guests=True)
    lines = ["login please", "how do I logout?", "exit the loop", "quit, now", "login\tann"]
    type_in(*lines, "  EXIT ")
    chat(url, capsys)
    assert len(asked(site)) == len(lines)


def test_what_goes_wrong_at_a_login_is_one_line(
    make_site: MakeSite, type_in: TypeIn, capsys: pytest.CaptureFixture[str], config_folder: Path
) -> None:
    site, url = make_site(guests=True)
    wrong = ("login", "ann", "a wrong password")
    type_in(*wrong * 6, "login", KeyboardInterrupt, "login", "ann", EOFError, "hello", "exit")
    printed = chat(url, capsys)
    assert printed[1:6] == [f"{url} says: Name or password is wrong."] * 5
    assert printed[6].startswith(f"{url} says: Too many wrong passwords for this name. Wait ")
    assert printed[7:9] == ["", ""]
    assert len(asked(site)) == 1
    assert not config_folder.exists()


def test_login_while_logged_in(make_site: MakeSite, type_in: TypeIn, capsys: pytest.CaptureFixture[str]) -> None:
    _, url = make_site()
    type_in(*LOGIN, "login", "exit")
    assert chat(url, capsys)[-1] == "You are logged in as ann; logout comes first."


def end_all_sessions(url: str) -> None:
    """Ann's, from another machine."""
    with httpx.Client(base_url=url, timeout=60) as client:
        token = client.post("/v1/auth/login", json={"name": "ann", "password": PASSWORD}).json()["token"]
        bearer = {"Authorization": f"Bearer {token}"}
        assert client.post("/v1/auth/logout", json={"everywhere": True}, headers=bearer).json()["sessions"] == 2


def test_a_session_that_ended_between_two_chats(
    make_site: MakeSite, type_in: TypeIn, capsys: pytest.CaptureFixture[str], config_folder: Path
) -> None:
    _, url = make_site()
    type_in(*LOGIN, "exit")
    chat(url, capsys)
    end_all_sessions(url)
    type_in(*LOGIN, "exit")
    assert chat(url, capsys) == ["The session of ann has ended: type login to log in again.", greeting(url)]
    assert token_in(config_folder, url) is not None


@pytest.mark.parametrize("name", ["ann", "ben"])
def test_a_session_that_ends_in_a_chat(
    make_site: MakeSite, type_in: TypeIn, capsys: pytest.CaptureFixture[str], config_folder: Path, name: str
) -> None:
    """Its user goes on with the chat; another does not get it."""
    site, url = make_site()
    type_in(*LOGIN, "first", lambda: end_all_sessions(url), "lost", "login", name, PASSWORD, "second", "exit")
    printed = chat(url, capsys)
    assert "The session of ann has ended: type login to log in again." in printed
    assert printed[-2] == greeting(url, f", logged in as {name}")
    prompt = asked(site)[-1]
    assert ("first" in prompt) == (name == "ann")
    assert "lost" not in prompt


def test_a_users_chat_is_not_sent_as_a_guests(
    make_site: MakeSite, type_in: TypeIn, capsys: pytest.CaptureFixture[str]
) -> None:
    site, url = make_site(guests=True)
    type_in(*LOGIN, "first", lambda: end_all_sessions(url), "lost", "not sent", "logout", "as a guest", "exit")
    printed = chat(url, capsys)
    assert printed[3:6] == [
        "The session of ann has ended: type login to log in again.",
        "Type login to go on as ann, or logout to forget this chat.",
        "Logged out; this chat is forgotten here.",
    ]
    _, as_a_guest = asked(site)
    assert "as a guest" in as_a_guest
    assert "first" not in as_a_guest


def test_a_logout_that_does_not_reach_the_service_can_be_repeated(
    make_site: MakeSite, type_in: TypeIn, capsys: pytest.CaptureFixture[str], config_folder: Path
) -> None:
    site, url = make_site()

    def fail_next() -> None:
        site.accounts.failing.append("logout")

    type_in(*LOGIN, fail_next, "logout", "logout", "exit")
    assert chat(url, capsys)[2:] == [
        f"You are still logged in: {url} says: The accounts do not answer. Try again later.",
        "Logged out; this chat is forgotten here.",
    ]
    assert token_in(config_folder, url) is None


def test_a_key_comes_before_a_session(
    make_site: MakeSite, type_in: TypeIn, capsys: pytest.CaptureFixture[str], config_folder: Path
) -> None:
    site, url = make_site()
    type_in(*LOGIN, "exit")
    chat(url, capsys)
    kept = token_in(config_folder, url)
    key = site.inside.api_keys.add(kept or "", "", None).secret
    type_in("login", "logout", "hello", "exit")
    printed = chat(url, capsys, api_key=key)
    assert printed[0] == greeting(url, "")
    assert printed[1].startswith("This chat uses an API key")
    assert printed[2] == "You are not logged in."
    assert len(asked(site)) == 1
    assert token_in(config_folder, url) == kept
    with pytest.raises(ChatError, match="That API key is not valid here"):
        plain_chat(url, api_key="rdbt_none").run()


def test_a_file_that_cannot_be_used_does_not_end_the_chat(
    make_site: MakeSite, type_in: TypeIn, capsys: pytest.CaptureFixture[str], config_folder: Path
) -> None:
    site, url = make_site()
    file = config_folder / "redoubt" / "sessions.json"
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    file.chmod(0o644)
    type_in(*LOGIN, "hello", "logout", "exit")
    printed = chat(url, capsys)
    refused = f"{file}: other users can open it; remove it, or chmod 600"
    assert printed[:4] == [refused, login_needed(url), f"The login holds for this chat only. {refused}", greeting(url)]
    assert printed[-2:] == [refused, "Logged out; this chat is forgotten here."]
    assert len(asked(site)) == 1


@pytest.mark.parametrize("key", [None, "open sesame"])
def test_a_service_without_users(
    type_in: TypeIn, capsys: pytest.CaptureFixture[str], config_folder: Path, key: str | None
) -> None:
    with running(FakeV1(key=key)) as fake:
        type_in("login", "logout", "hello", "exit")
        printed = chat(fake.url, capsys, **({} if key is None else {"api_key": key}))
        assert printed[1:] == [
            f"{fake.url} has no users: there is nothing to log in to.",
            "You are not logged in.",
            "Hello from the fake.",
        ]
        if key is not None:
            with pytest.raises(ChatError, match=r"Show a key\."):
                plain_chat(fake.url).run()
    assert not config_folder.exists()


def test_a_service_that_is_gone(type_in: TypeIn, capsys: pytest.CaptureFixture[str]) -> None:
    with ExitStack() as up:
        fake = up.enter_context(running(FakeV1()))
        type_in(up.close, "login", "hello", "exit")
        printed = chat(fake.url, capsys)
    assert printed[1:] == [f"no answer from {fake.url}: is the service running? (`redoubt serve`)"] * 2


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (RedirectResponse("/v1/elsewhere", 307), "Status 307: is that a Redoubt service?"),
        (JSONResponse({"name": "ann"}), "The answer to the login is not understood: is that a Redoubt service?"),
    ],
    ids=["redirect", "no token"],
)
def test_another_kind_of_service(
    type_in: TypeIn, capsys: pytest.CaptureFixture[str], config_folder: Path, answer: Response, words: str
) -> None:
    came: list[str] = []

    def add_routes(app: FastAPI) -> None:
        @app.post("/v1/auth/login")
        async def login(request: Request) -> Response:
            return answer if await request.json() else JSONResponse({}, 400)

        @app.post("/v1/elsewhere")
        async def elsewhere(request: Request) -> None:
            came.append((await request.body()).decode())

    with running(FakeV1(), add_routes) as fake:
        type_in(*LOGIN, "exit")
        assert chat(fake.url, capsys)[-1].endswith(words)
    assert came == []
    assert not config_folder.exists()


def test_the_password_is_not_shown(
    make_site: MakeSite, type_in: TypeIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, url = make_site()
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(getpass, "getpass", lambda _question: PASSWORD)
    type_in("login", "ann", "exit")
    assert chat(url, capsys)[-1] == greeting(url)


CODE = re.compile(r"^Your recovery code; keep it, it is shown this once: ((?:[A-Z2-7]{4}-){7}[A-Z2-7]{4})$")
OWN = "a password of my own"


def reset(site: Site) -> None:
    site.inside.users.reset_password(OPERATOR_ACTS, "ann", new_password(FIRST, CHEAP))


def told_code(printed: list[str]) -> str:
    (code,) = (found[1] for line in printed if (found := CODE.match(line)))
    return code


def test_the_first_login_chooses_a_password_and_is_told_the_code(
    make_site: MakeSite, type_in: TypeIn, capsys: pytest.CaptureFixture[str], config_folder: Path
) -> None:
    """After two passwords that were not the same nobody is logged in, and the terminal keeps no session."""
    site, url = make_site()
    site.inside.users.add(OPERATOR_ACTS, "eve", new_password(FIRST, CHEAP), "user", UserLimits())
    type_in("login", "eve", FIRST, OWN, "another one", "login", "eve", FIRST, OWN, OWN, "hello", "exit")
    printed = chat(url, capsys)
    asks = "An administrator has set this password: choose one of your own."
    assert printed[:3] == [login_needed(url), asks, "These were two different passwords: log in again."]
    assert printed[3] == asks
    assert told_code(printed) in printed[4]
    assert printed[5] == greeting(url, ", logged in as eve")
    assert "hello" in asked(site)[0]
    assert OWN not in (config_folder / "redoubt" / "sessions.json").read_text()
    type_in("logout", "login", "eve", FIRST, "login", "eve", OWN, "exit")  # the administrator's is not good any more
    again = chat(url, capsys)
    assert any("Name or password is wrong" in line for line in again)
    assert again.count(greeting(url, ", logged in as eve")) == 2


def test_after_a_reset_the_terminal_asks_for_the_recovery_code(
    make_site: MakeSite, type_in: TypeIn, capsys: pytest.CaptureFixture[str], config_folder: Path
) -> None:
    site, url = make_site()
    reset(site)
    code = choose(site.inside, "ann", None)
    assert code is not None
    kept = site.inside.logins.identify(site_login(site)).pages
    reset(site)
    type_in("login", "ann", FIRST, "not the code", OWN, OWN, "login", "ann", FIRST, code.lower(), OWN, OWN, "exit")
    printed = chat(url, capsys)
    assert any("That is not your recovery code" in line for line in printed)
    newest = told_code(printed)
    assert newest != code
    assert site.inside.logins.identify(token_of(site, url)).pages == kept
    reset(site)
    type_in("login", "ann", FIRST, "", OWN, OWN, "exit")  # lost: what was saved goes
    assert told_code(chat(url, capsys)) != newest
    assert site.inside.logins.identify(token_of(site, url)).pages != kept


def test_a_first_password_that_has_expired_says_so_in_the_terminal(
    make_site: MakeSite, type_in: TypeIn, capsys: pytest.CaptureFixture[str], config_folder: Path
) -> None:
    site, url = make_site()
    reset(site)
    site.inside.store.now = lambda: time.time() + 7 * 86_400
    type_in("login", "ann", FIRST, "exit")
    assert any("Ask an administrator for another one" in line for line in chat(url, capsys))
