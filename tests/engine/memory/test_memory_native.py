"""A native model, the real folder: what comes back from disk gives the same tokens and log-probabilities to the bit."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.engine.engine import Engine
from app.engine.memory.engine_memory import MemoryOptions
from app.engine.native_runner import NativeRunner
from app.memory.fingerprint import fingerprint
from app.memory.folder import PageFolder
from app.memory.io_threads import FolderStore
from app.messages.memory import MemoryGrant
from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest, SamplingParams
from tests.app.memory.pages import files_in, grant_for
from tests.engine.test_engine import Receiver
from tests.sizes import FULL

ADA = grant_for("ada")
NEW_TOKENS = 24
Output = tuple[tuple[int, ...], NDArray[np.float32]]
KINDS: dict[str, dict[str, Any]] = {
    "int16": {"kv_type": "int16"},
    "int8": {"kv_type": "int8"},
    "bf16": {"kv_type": "bf16"},
    "fp32": {"kv_type": "fp32", "compute_type": "fp32"},
}


class Chat:
    """An engine of the embedded model with saved pages, asked one request at a time."""

    def __init__(
        self, model: Path, root: Path, *, context: int = 512, new_tokens: int = NEW_TOKENS, **options: Any
    ) -> None:
        """context: tokens of the longest prompt with its answer."""
        self.new_tokens = new_tokens
        self.runner = NativeRunner(
            str(model),
            threads=1,
            **options,
            kv_pages=context // 32 + 24,
            max_sequences=4,
            max_step_tokens=256,
            max_context_tokens=context,
        )
        page_bytes = self.runner.gathered_page_bytes
        folder = PageFolder(
            root,
            fingerprint=fingerprint("embedded", facts={}, probe=self.runner.probe()),
            page_bytes=page_bytes,
            most_bytes=1 << 30,
            most_bytes_per_user=1 << 30,
            ttl_s=1e6,
        )
        self.store = FolderStore(folder, page_bytes=page_bytes, page_tokens=self.runner.page_tokens, threads=2)
        memory = MemoryOptions(save_after_s=1e9, restore="always", min_tokens=1)
        self.engine = Engine(self.runner, page_store=self.store, memory=memory, prompt_chunk_tokens=64)
        self.engine.start()
        self.receiver = Receiver()
        self._count = 0

    def ask(self, prompt: tuple[int, ...], **options: Any) -> tuple[Output, int]:
        """The output, and how many tokens of the prompt were not computed."""
        self._count += 1
        request = GenerateRequest(
            str(self._count),
            prompt,
            self.new_tokens,
            SamplingParams(temperature=0.0, logprobs=3),
            tenant=b"",
            **{"memory": ADA, **options},
        )
        self.receiver.submit(self.engine, request)
        tokens = self.receiver.tokens(request.request_id)
        deltas = [each for each in self.receiver.events[request.request_id] if isinstance(each, TokenDelta)]
        scores = [np.append(each.scores.logprobs, each.scores.top_logprobs) for each in deltas if each.scores]
        return (tokens, np.concatenate(scores)), sum(each.cached_tokens for each in deltas)

    def save(self) -> None:
        assert self.engine.memory is not None
        assert self.engine.memory.flush(None).result(60).unsaved_pages == 0


@contextmanager
def chatting(model: Path, root: Path, **options: Any) -> Iterator[Chat]:
    chat = Chat(model, root, **options)
    try:
        yield chat
    finally:
        chat.engine.stop()
        chat.store.close()
    assert chat.engine.statistics().pages_used == 0


def assert_same(one: Output, other: Output) -> None:
    assert one[0] == other[0]
    assert np.array_equal(one[1], other[1])


PROMPT = tuple(Random(4).choices(range(1, 49000), k=200))


@pytest.mark.parametrize("kind", KINDS if FULL else ["int16", "fp32"])
def test_restored_is_hot_is_cold(kind: str, engine_model: Path, tmp_path: Path) -> None:
    with chatting(engine_model, tmp_path, **KINDS[kind]) as chat:
        cold, cached = chat.ask(PROMPT)
        assert cached == 0
        hot, cached = chat.ask(PROMPT)
        assert cached == 192
        assert_same(hot, cold)
        further = (*PROMPT, *cold[0], 77)
        hot_further, cached = chat.ask(further)
        assert cached == 192, "the answer did not fill a page"
        chat.save()
    with chatting(engine_model, tmp_path, **KINDS[kind]) as chat:
        restored, cached = chat.ask(PROMPT)
        assert cached == 192
        assert chat.store.counts.loaded_pages == 6
        assert_same(restored, cold)
        further_restored, cached = chat.ask(further)
        assert_same(further_restored, hot_further)
        other, cached = chat.ask(PROMPT, memory=grant_for("eve"))
        assert cached == 0
        assert_same(other, cold)


def test_a_system_prompt_comes_back_in_another_chat_of_the_user_and_nothing_else_does(
    engine_model: Path, tmp_path: Path
) -> None:
    def grant(user: str, chat: str) -> MemoryGrant:
        return grant_for(user, chat, shared_tokens=100)

    with chatting(engine_model, tmp_path) as chat:
        cold, _ = chat.ask(PROMPT, memory=grant("ada", "one"))
        # A later request of the same chat with a longer system prompt must not change what is shared of the first.
        chat.ask(PROMPT[:64], memory=grant_for("ada", "one", shared_tokens=190))
        chat.save()
    for user, name, cached in [("eve", "two", 0), ("ada", "two", 96), ("ada", "one", 192)]:
        with chatting(engine_model, tmp_path) as chat:
            restored, tokens = chat.ask(PROMPT, memory=replace(grant(user, name), save=False))
            assert tokens == cached
            assert_same(restored, cold)


def test_pages_that_an_answer_filled_come_back_too(engine_model: Path, tmp_path: Path) -> None:
    prompt = PROMPT[:20]
    with chatting(engine_model, tmp_path, kv_type="int16") as chat:
        first, _ = chat.ask(prompt)
        further = (*prompt, *first[0], 5, 6)
        hot, cached = chat.ask(further)
        assert cached == 32
        chat.save()
    with chatting(engine_model, tmp_path, kv_type="int16") as chat:
        restored, cached = chat.ask(further)
        assert cached == 32
        assert_same(restored, hot)


def test_another_kv_type_has_other_pages(engine_model: Path, tmp_path: Path) -> None:
    with chatting(engine_model, tmp_path, kv_type="int16") as chat:
        chat.ask(PROMPT)
        chat.save()
    saved = files_in(tmp_path)
    with chatting(engine_model, tmp_path, kv_type="bf16") as chat:
        _, cached = chat.ask(PROMPT)
        assert cached == 0
        chat.save()
    assert set(saved) < set(files_in(tmp_path))


def test_damaged_pages_are_computed_anew(engine_model: Path, tmp_path: Path) -> None:
    with chatting(engine_model, tmp_path, kv_type="int16") as chat:
        cold, _ = chat.ask(PROMPT)
        chat.save()
    rng = Random(9)
    files = files_in(tmp_path)
    for path in rng.sample(files, 3):
        data = bytearray(path.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
    one, other = rng.sample([path for path in files if path.exists()], 2)
    swapped = one.read_bytes(), other.read_bytes()
    one.write_bytes(swapped[1])
    other.write_bytes(swapped[0])
    with chatting(engine_model, tmp_path, kv_type="int16") as chat:
        damaged, cached = chat.ask(PROMPT)
        assert cached < 192
        assert_same(damaged, cold)
        chat.save()
    with chatting(engine_model, tmp_path, kv_type="int16") as chat:
        again, cached = chat.ask(PROMPT)
        assert cached == 192
        assert_same(again, cold)


def main() -> None:
    """Answers, saves, and is killed: MODEL FOLDER."""
    with chatting(Path(sys.argv[1]), Path(sys.argv[2]), kv_type="int16") as chat:
        (tokens, logprobs), _ = chat.ask(PROMPT)
        np.savez(Path(sys.argv[2]) / "answer.npz", tokens=np.array(tokens), logprobs=logprobs)
        chat.save()
        os.kill(os.getpid(), signal.SIGKILL)


def test_after_kill_9_the_answer_is_the_same(engine_model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.engine.memory.test_memory_native", str(engine_model), str(tmp_path)]
    ran = subprocess.run(command, check=False)
    assert ran.returncode == -signal.SIGKILL
    with np.load(tmp_path / "answer.npz") as saved:
        before = tuple(saved["tokens"].tolist()), saved["logprobs"]
    with chatting(engine_model, tmp_path, kv_type="int16") as chat:
        after, cached = chat.ask(PROMPT)
        assert cached == 192
        assert chat.engine.statistics().computed_tokens == len(PROMPT) - 192 + NEW_TOKENS - 1
        assert_same(after, before)


if __name__ == "__main__":
    main()
