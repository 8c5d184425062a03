"""Saved pages of a real service over HTTP: a chat goes on after a kill, is nobody else's, and can be forgotten.

A document's pages are there too, for whatever is asked about it.
"""

import base64
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from openai import NotFoundError, OpenAI
from openai.types.responses import Response

from tests.app.accounts.world import FIRST
from tests.service.operator import ROOT_PASSWORD, choose_password, configure_accounts, log_in
from tests.service.running import (
    RunningService,
    descendants,
    started_service,
    starting_service,
    wait_until,
    wait_until_all_are_gone,
)

Result = TypeVar("Result")
PASSWORD = "the password of everybody"
SUBJECTS = ("rivers", "bridges", "clocks", "maps", "lamps", "ships", "roads", "towers", "gardens", "letters")
QUESTION = {"role": "user", "content": " ".join(f"Tell me of {a} and {b}." for a in SUBJECTS for b in SUBJECTS[:3])}
CONTRACT = base64.b64encode("\n".join(f"{n}. The tenant of house {n} pays." for n in range(99)).encode()).decode()
LEFT_OUT = 32
"""Tokens at the end of a text that no saved page has: less than a page, and the last token, which nobody computed."""


class User:
    """One user of the service, with an API key that stays when the service is started again."""

    def __init__(self, site: RunningService, root: str, name: str) -> None:
        as_root = {"Authorization": f"Bearer {root}"}
        body = {"name": name, "password": FIRST}
        assert httpx.post(f"{site.url}/v1/admin/users", json=body, headers=as_root, timeout=60).status_code == 200
        self.name = name
        self.site = site
        choose_password(site.url, name, PASSWORD)
        session = {"Authorization": f"Bearer {log_in(site, name, PASSWORD)}"}
        self.key = httpx.post(f"{site.url}/v1/keys", json={}, headers=session, timeout=60).json()["secret"]

    def ask(self, method: str, path: str, body: Any = None, key: str | None = None) -> Any:
        headers = {"Authorization": f"Bearer {key or self.key}"}
        answer = httpx.request(method, self.site.url + path, json=body, headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def chat(self, messages: list[dict[str, Any]], **options: Any) -> tuple[dict[str, str], dict[str, Any]]:
        """The answer as a message, and the usage."""
        body = {"model": self.site.model, "messages": messages, "max_tokens": 60, "temperature": 0, **options}
        answer = self.ask("POST", "/v1/chat/completions", body)
        message = answer["choices"][0]["message"]
        return {"role": "assistant", "content": message["content"]}, answer["usage"]

    def cached(self, messages: list[dict[str, Any]], **options: Any) -> int:
        return int(self.chat(messages, **options)[1]["prompt_tokens_details"]["cached_tokens"])

    def calls(self, call: Callable[[OpenAI], Result]) -> Result:
        """What a client of the user's gets, which is closed then."""
        with OpenAI(base_url=f"{self.site.url}/v1", api_key=self.key, max_retries=0, timeout=60) as client:
            return call(client)

    def turn(self, conversation_id: str, question: str) -> Response:
        """The next answer of a stored conversation."""
        asked: dict[str, Any] = {"model": self.site.model, "input": question, "conversation": conversation_id}
        answer: Response = self.calls(
            lambda client: client.responses.create(**asked, temperature=0, max_output_tokens=60)
        )
        return answer

    def counted(self, name: str) -> float:
        """A counter of all workers."""
        answer = httpx.get(f"{self.site.url}/metrics", headers={"Authorization": f"Bearer {self.key}"}, timeout=60)
        return sum(map(float, re.findall(rf"^redoubt_worker_{name}_total\{{.*\}} (.*)$", answer.text, re.MULTILINE)))

    def pages(self) -> int:
        return int(self.ask("GET", "/v1/memory")["pages"])


def about_contract(question: str) -> list[dict[str, Any]]:
    file = {"type": "file", "file": {"filename": "contract.txt", "file_data": CONTRACT}}
    return [{"role": "user", "content": [file, {"type": "text", "text": question}]}]


def kill(site: RunningService) -> None:
    """The workers first, which could save what they have; then the main process, and the rest ends by itself."""
    family = descendants(site.process.pid)
    workers = site.processes("ServeReplica:redoubt:Worker")
    assert len(workers) == 2
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    site.process.kill()
    site.process.wait()
    wait_until_all_are_gone(family)


def on_disk(pages: Path) -> int:
    return sum(file.stat().st_size for file in pages.rglob("*") if file.is_file())


def save_after(config: Path, *, seconds: int) -> None:
    before = config.read_text()
    assert "save_after_s: 600" in before
    config.write_text(before.replace("save_after_s: 600", f"save_after_s: {seconds}"))


@pytest.mark.faults
def test_a_chat_outlives_the_service_and_is_its_users_alone(service_model: Path, tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    memory = {"folder": str(pages), "save_after_s": 600, "restore": "always", "min_tokens": 1}
    # The lottery would send half of a user's requests to the worker that has not seen the chat.
    workers = {"count": 2, "cpus_per_worker": 1, "ray_num_cpus": 0.1, "warm_up_prompt_tokens": 64}
    configure_accounts(tmp_path, {"memory": memory, "worker": workers, "router": {"policy": "LOTTERY"}})
    start = (tmp_path / "service.yaml", tmp_path / "log", service_model.name, "--model", str(service_model))
    with starting_service(*start) as site:
        root = log_in(site, "root", ROOT_PASSWORD)
        ann, bob = User(site, root, "ann"), User(site, root, "bob")
        answer, usage = ann.chat([QUESTION])
        known = usage["total_tokens"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0

        # A user's requests stay at the worker that has the pages in memory; nothing is on disk yet.
        following = [QUESTION, answer, {"role": "user", "content": "Why?"}]
        turns = [ann.chat(following, max_tokens=1)[1] for _ in range(12)]
        assert all(turn["prompt_tokens_details"]["cached_tokens"] >= known - LEFT_OUT for turn in turns)
        assert ann.pages() == 0
        saved = ann.ask("POST", "/v1/memory/save")
        full = (turns[0]["total_tokens"] - 1) // 32
        assert (saved["saved_pages"], saved["unsaved_pages"], saved["unacknowledged"]) == (full, 0, 0)
        assert ann.pages() == full

        # The service keeps what is said in a conversation.
        kept = ann.calls(lambda client: client.conversations.create()).id
        first = ann.turn(kept, f"Now this: {QUESTION['content']}")
        contract = ann.chat(about_contract("When?"), max_tokens=1)[1]["prompt_tokens"]
        assert contract > 900
        ann.ask("POST", "/v1/memory/save")
        kill(site)

    save_after(tmp_path / "service.yaml", seconds=8)
    with started_service(*start) as site:
        ann.site = bob.site = site
        more = [QUESTION, answer, {"role": "user", "content": "Go on."}]
        assert ann.cached(more) >= known - LEFT_OUT

        # Another question about the document, in another chat, computes little but itself.
        computed, cached = ann.counted("computed_tokens"), ann.counted("cached_tokens")
        found = ann.cached(about_contract("Who pays the rent?"), prompt_cache_key="a later chat", max_tokens=1)
        assert found >= contract - 2 * LEFT_OUT
        wait_until(lambda: ann.counted("cached_tokens") >= cached + found, "a heartbeat")
        assert ann.counted("computed_tokens") - computed < contract // 4

        assert bob.cached([QUESTION]) == 0
        assert bob.cached([QUESTION]) > 0
        assert ann.cached([QUESTION], prompt_cache_key="another") > 0  # in memory a user's pages are one

        # A stored conversation goes on too, nobody else has it, and it goes with its pages.
        warmed = ann.ask("POST", "/v1/memory/warm", {"conversation": kept})
        assert warmed["remembered_tokens"] >= warmed["tokens"] - 2 * LEFT_OUT > 0
        second = ann.turn(kept, "Why?")
        assert second.usage is not None
        assert second.usage.input_tokens_details.cached_tokens >= warmed["tokens"] - 2 * LEFT_OUT
        shown: Any = ann.calls(lambda client: list(client.conversations.items.list(kept, order="asc")))  # over pages
        assert [item.content[0].text for item in shown[1::2]] == [first.output_text, second.output_text]
        with pytest.raises(NotFoundError):
            bob.turn(kept, "Why?")

        # A chat that is idle is saved without any call.
        full = bob.chat([QUESTION], max_tokens=1)[1]["prompt_tokens"] // 32
        wait_until(lambda: bob.pages() >= full, "pages of a chat that is idle")

        # Logout writes and clears what is in memory; the next request reads it from the disk.
        session = log_in(site, "ann", PASSWORD)
        ann.chat([QUESTION], prompt_cache_key="a third")
        out = ann.ask("POST", "/v1/auth/logout", {}, session)
        assert out["saved_pages"] > 0
        assert (out["unsaved_pages"], out["unacknowledged"]) == (0, 0)
        assert ann.cached(more) >= known - LEFT_OUT

        # With a conversation its pages go.
        before_deletion = ann.pages()
        ann.calls(lambda client: client.conversations.delete(kept))
        assert ann.pages() < before_deletion
        with pytest.raises(NotFoundError):
            ann.turn(kept, "Why?")
        with pytest.raises(NotFoundError):
            ann.calls(lambda client: client.responses.retrieve(first.id))

        # A forgotten chat stays forgotten, for whoever has kept its files.
        shutil.copytree(pages, tmp_path / "kept")
        forgotten = ann.ask("DELETE", "/v1/memory")
        assert forgotten["conversations"] == 4  # one without a key, and of each prompt_cache_key
        assert forgotten["files"] > 0
        assert forgotten["unacknowledged"] == 0
        assert ann.pages() == 0
        shutil.copytree(tmp_path / "kept", pages, dirs_exist_ok=True)
        assert ann.pages() > 0
        assert ann.cached(more) == 0
        assert bob.cached([QUESTION]) > 0

        # With the user everything goes, and nobody else's.
        bob.ask("POST", "/v1/memory/save")
        before = bob.pages()
        ann.ask("DELETE", "/v1/admin/users/ann", key=root)
        assert len(list((pages / "v1").iterdir())) == 1
        assert bob.pages() == before > 0

        # What is in memory alone is saved when the service is stopped.
        bob.chat([{"role": "user", "content": CONTRACT}], max_tokens=1)
        before = on_disk(pages)
    assert on_disk(pages) > before
