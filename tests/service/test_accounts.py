"""The real service with accounts: made, started, used, killed in part and started again as its operator does."""

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from playwright.sync_api import Browser, expect

from tests.app.accounts.world import FIRST
from tests.browser import WAIT_MS, ask
from tests.listening import listening_addresses, open_files
from tests.service.operator import ROOT_PASSWORD, choose_password, configure_accounts, done, log_in, redoubt
from tests.service.running import RunningService, descendants, started_service, wait_until

ANN_PASSWORD = "the password of ann"
CANARY = "a-canary-that-nobody-should-find"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration with accounts, their key, and the first administrator."""
    folder = tmp_path_factory.mktemp("accounts")
    configure_accounts(folder, {"ingress": {"trusted_proxies": ["127.0.0.1"]}})
    return folder


def service_of(folder: Path, model: Path, *further: Path) -> AbstractContextManager[RunningService]:
    options = [option for each in (model, *further) for option in ("--model", str(each))]
    return started_service(folder / "service.yaml", folder / "log", model.name, *options)


@pytest.mark.browser
def test_a_life_with_accounts(folder: Path, service_model: Path, embedded_encoder: Path, browser: Browser) -> None:
    config = str(folder / "service.yaml")
    with service_of(folder, service_model) as site, ExitStack() as clients:
        url = ("--url", site.url)
        listening = listening_addresses(descendants(site.process.pid))
        assert [address for address in listening if not address.is_loopback] == []
        # The operator adds a user through the running service; the database has an owner now.
        refused = redoubt("user", "list", "--config", config)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert "a running service has it open" in refused.stderr
        root = done("key", "add", *url, "--as", "root", lines=ROOT_PASSWORD + "\n").strip()
        done("user", "add", "ann", "--requests-per-minute", "50", *url, lines=FIRST + "\n", REDOUBT_API_KEY=root)
        choose_password(site.url, "ann", ANN_PASSWORD)
        assert "ann " in done("user", "list", *url, REDOUBT_API_KEY=root)

        # Nobody is served without a key; a stock client is with one.
        def client(key: str) -> openai.OpenAI:
            made = openai.OpenAI(base_url=f"{site.url}/v1", api_key=key, max_retries=0)
            return clients.enter_context(made)

        messages: Any = [{"role": "user", "content": f"Say hello. {CANARY}"}]
        with pytest.raises(openai.AuthenticationError):
            client("none").chat.completions.create(model=site.model, messages=messages)
        key = done("key", "add", "--label", "laptop", *url, "--as", "ann", lines=ANN_PASSWORD + "\n").strip()
        raw = client(key).chat.completions.with_raw_response.create(model=site.model, messages=messages, max_tokens=4)
        assert raw.headers["x-ratelimit-remaining-requests"] == "49"
        assert client(key).models.list().data[0].id == site.model
        assert "laptop" in done("key", "list", *url, REDOUBT_API_KEY=key)
        session = log_in(site, "ann", ANN_PASSWORD)
        check_address(site, root)
        check_overview(site, root, key)
        check_capacity(site, root)
        check_background(site, root, key)
        check_batch(site, key)
        check_page(site, browser)

        # The accounts are killed while a stream runs: the stream goes on, and they come back by themselves.
        stream = endless(site, key)
        kill_accounts(site)
        assert next(stream)
        wait_until(lambda: is_served(site, key), "the accounts are back", 200)
        stream = endless(site, key)  # one that the new accounts know

        # Disabling ends the stream, at the engine too.
        done("user", "disable", "ann", *url, REDOUBT_API_KEY=root)
        assert b"invalid_api_key" in b"".join(stream)
        replace(site, key=root).wait_until_idle()
        assert not is_served(site, key)
        assert not is_served(site, session)
        done("user", "enable", "ann", *url, REDOUBT_API_KEY=root)
        usage = got(site, "/v1/admin/usage", root).json()["data"]
        assert sum(row["requests"] for row in usage) >= 2
        assert all(row["output_tokens"] > 0 for row in usage)

        secrets = [ROOT_PASSWORD, ANN_PASSWORD, key, root, session, CANARY, (folder / "kek").read_bytes().hex()]
        assert found_in_files(site, secrets, folder) == []

    with service_of(folder, service_model, embedded_encoder) as site:
        assert is_served(site, session)  # it outlives the service
        assert is_served(site, key)
        check_knowledge(site, root, folder)
        audit = done("audit", "--url", site.url, REDOUBT_API_KEY=root)
        assert "add_user" in audit
        assert "disable_user" in audit

    # A new key of the server's: the old one opens nothing, and users notice nothing.
    done("keygen", str(folder / "kek2"))
    done("rotate-key", str(folder / "kek2"), "--config", config)
    wrong = redoubt("user", "list", "--config", config)
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "not the key of accounts.database" in wrong.stderr


def got(site: RunningService, path: str, key: str) -> httpx.Response:
    return httpx.get(site.url + path, headers={"Authorization": f"Bearer {key}"}, timeout=150)


def check_address(site: RunningService, root: str) -> None:
    """HAProxy says that a proxy on this machine asks, whatever the client says, and the proxy says for whom."""
    headers = {"X-Redoubt-Client": "192.0.2.1", "X-Forwarded-For": "192.0.2.2, 198.51.100.7"}
    wrong = {"name": "nobody", "password": "not it"}
    assert httpx.post(f"{site.url}/v1/auth/login", json=wrong, headers=headers, timeout=60).status_code == 401
    assert "login refused from 198.51.100.7\n" in done("audit", "--url", site.url, REDOUBT_API_KEY=root)


def check_overview(site: RunningService, root: str, key: str) -> None:
    """What the operator sees of the service, and of a request of ann's that fails."""
    body, headers = {"model": site.model, "prompt": CANARY, CANARY: CANARY}, {"Authorization": f"Bearer {key}"}
    refused = httpx.post(f"{site.url}/tokenize", json=body, headers=headers, timeout=60)
    assert refused.status_code == 400
    answer = got(site, "/v1/admin/overview", root)
    overview = answer.json()
    failure = overview["failures"][0]
    assert failure["request_id"] == refused.headers["x-request-id"]
    assert (failure["status"], failure["code"]) == (400, "unknown_parameter")
    assert failure["credential"] == key.split("_")[1]
    assert CANARY not in answer.text
    assert overview["ingress"]["open_requests"] >= 1
    assert overview["at"] - overview["ingress"]["up_since"] < 600
    (worker,) = overview["workers"]
    assert worker["state"] == "alive"
    assert worker["tier"] in ("scalar", "avx2", "avx_vnni", "avx512", "avx512_vnni", "amx_int8")
    assert 0 < worker["ready_since"] <= overview["at"]
    assert overview["models"][0]["workers"] == 1
    users = got(site, "/v1/admin/usage/users", root).json()["data"]
    assert {user["name"] for user in users} == {"ann", "root"}


def check_capacity(site: RunningService, root: str) -> None:
    """What the worker has measured of itself becomes a number of users, in a process of its own."""
    answer = got(site, "/v1/admin/capacity?users=1", root)
    assert answer.status_code == 200, answer.text
    (model,) = answer.json()["data"]
    assert (model["name"], model["workers"]) == (site.model, 1)
    assert 1 < model["answer_tokens_per_s"] < 1e5
    assert model["serves"] == (model["users"] >= 1)
    assert any(machine["serves"] for machine in model["candidates"])


def check_background(site: RunningService, root: str, key: str) -> None:
    """An answer whose client hangs up goes on to its end, and is no failure."""
    with openai.OpenAI(base_url=f"{site.url}/v1", api_key=key, max_retries=0) as client:
        check_hung_up(client, site.model)
    failures = got(site, "/v1/admin/overview", root).json()["failures"]
    assert {failure["status"] for failure in failures} <= {400, 401}


def check_hung_up(client: openai.OpenAI, model: str) -> None:
    asked: dict[str, Any] = {"input": "Count.", "temperature": 2, "max_output_tokens": 300}
    seen, response_id = "", ""
    with client.responses.create(model=model, background=True, stream=True, **asked) as stream:
        for event in stream:
            if event.type == "response.created":
                response_id = event.response.id
            if event.type == "response.output_text.delta":
                seen += event.delta
                break

    def ended() -> bool:
        return client.responses.retrieve(response_id).status not in ("queued", "in_progress")

    wait_until(ended, "the answer has ended", 200)
    response = client.responses.retrieve(response_id)
    assert response.status in ("completed", "incomplete"), response
    assert response.output_text.startswith(seen)
    assert response.usage is not None
    assert response.usage.output_tokens > 1


def check_batch(site: RunningService, key: str) -> None:
    """A batch goes on in another ingress when its own is killed, and each line has one result."""
    names = [f"line-{number}" for number in range(40)]
    asked = {"model": site.model, "prompt": f"{CANARY} Once", "max_tokens": 8, "logit_bias": {"0": -100, "2": -100}}
    lines = [{"custom_id": name, "method": "POST", "url": "/v1/completions", "body": asked} for name in names]
    content = "\n".join(map(json.dumps, lines)).encode()
    with openai.OpenAI(base_url=f"{site.url}/v1", api_key=key, max_retries=20) as client:
        file = client.files.create(file=("lines.jsonl", content), purpose="batch")
        assert client.files.content(file.id).content == content
        batch_id = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h").id

        def now() -> Any:
            return client.batches.retrieve(batch_id)

        wait_until(lambda: now().request_counts.completed > 0, "a line is done", 200)
        os.kill(site.only_process("ServeReplica:redoubt:Ingress"), signal.SIGKILL)
        wait_until(lambda: now().status == "completed", "the batch is completed", 200)
        batch = now()
        assert batch.request_counts.completed == len(names)
        output = client.files.content(batch.output_file_id).text
    results = [json.loads(line) for line in output.splitlines()]
    assert sorted(result["custom_id"] for result in results) == sorted(names)
    assert all(result["response"]["body"]["usage"]["completion_tokens"] == 8 for result in results)


def check_knowledge(site: RunningService, key: str, folder: Path) -> None:
    """Documents are found by what they mean, an answer has them, and they are on no disk in the clear."""
    texts = {"lease.md": "A tenant pays three monthly rents in advance.", "menu.md": "On Fridays there is lentil soup."}
    with openai.OpenAI(base_url=f"{site.url}/v1", api_key=key, max_retries=0) as client:
        stores = client.vector_stores
        made = stores.create(name="House of root")
        batch = stores.file_batches.upload_and_poll(
            made.id, files=[(name, text.encode()) for name, text in texts.items()], poll_interval_ms=100
        )
        assert (batch.status, batch.file_counts.completed) == ("completed", 2)
        for question, name in (("What can people eat?", "menu.md"), ("How much does renting cost?", "lease.md")):
            hits = stores.search(made.id, query=question).data
            assert (hits[0].filename, hits[0].content[0].text) == (name, texts[name])
        tools: Any = [{"type": "file_search", "vector_store_ids": [made.id], "max_num_results": 1}]
        answer = client.responses.create(
            model=site.model, input="What can people eat?", tools=tools, max_output_tokens=16
        )
        searched: Any = answer.output[0]
        assert (searched.type, [one.text for one in searched.results]) == ("file_search_call", [texts["menu.md"]])
        assert answer.status in ("completed", "incomplete")
        assert found_in_files(site, [*texts, *texts.values(), "House of root"], folder) == []
        extra: Any = {"extra_query": {"with_files": "true"}}
        assert stores.delete(made.id, **extra).deleted
        assert client.files.list(purpose="assistants").data == []


def check_page(site: RunningService, browser: Browser) -> None:
    """A user's chat in a browser: the tab is closed while it is answered, and its address opens it again."""
    context = browser.new_context(base_url=site.url, viewport={"width": 1100, "height": 800})
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    page.goto("/login")
    page.get_by_label("Name").fill("ann")
    page.get_by_label("Password").fill(ANN_PASSWORD)
    page.keyboard.press("Enter")
    ask(page, "Tell me a story.")
    page.wait_for_url(re.compile("/c/conv_"))
    expect(page.locator(".answer .body")).to_contain_text(re.compile(r"\w"))
    address = page.url
    page.close()
    page = context.new_page()
    page.goto(address)
    expect(page.locator(".bubble")).to_have_text(["Tell me a story."], timeout=60_000)
    expect(
        page.locator(".answer[data-status=done], .answer[data-status=cut], .answer[data-status=part]")
    ).to_be_visible(timeout=240_000)
    ask(page, "Why?")
    expect(page.locator(".answer .tools")).to_have_count(2, timeout=240_000)
    expect(page.locator(".meter")).to_contain_text("remembered")
    context.close()


def endless(site: RunningService, key: str) -> Iterator[bytes]:
    """Pieces of a stream that does not end by itself, after its first token."""
    body, headers = site.endless(), {"Authorization": f"Bearer {key}"}

    def pieces() -> Iterator[bytes]:
        with httpx.stream("POST", f"{site.url}/v1/completions", json=body, headers=headers, timeout=60) as response:
            assert response.status_code == 200
            yield from response.iter_raw()

    stream = pieces()
    next(stream)
    return stream


def is_served(site: RunningService, key: str) -> bool:
    headers = {"Authorization": f"Bearer {key}"}
    body = {"model": site.model, "prompt": "hi", "max_tokens": 1}
    return httpx.post(f"{site.url}/v1/completions", json=body, headers=headers, timeout=60).status_code == 200


def kill_accounts(site: RunningService) -> None:
    os.kill(site.only_process("ServeReplica:redoubt:Accounts"), signal.SIGKILL)


def found_in_files(site: RunningService, secrets: list[str], folder: Path) -> list[tuple[str, Path]]:
    """Which of the secrets are in files of the service: its database, its log, Ray's folder, and shared memory."""
    places = {folder}
    for target in map(Path, open_files(descendants(site.process.pid))):
        of_service = [each for each in target.parents if each.name.startswith("redoubt-")]
        places |= {*of_service, target} if of_service or target.parent == Path("/dev/shm") else set()
    assert any(place.name.startswith("redoubt-") for place in places)
    below = (Path(parent, name) for place in places for parent, _, names in os.walk(place) for name in names)
    files = {file for file in (*places, *below) if file.is_file()}
    assert len(files) > 10
    return [(secret, file) for file in files for secret in secrets if secret.encode() in contents(file)]


def contents(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""
