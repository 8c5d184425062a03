"""A chat longer than its context on the real engine: what turns compute, and the same answers from everywhere.

`bench.experiments.long_chat` is the long one.
"""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from app.interface.generate.planning.chat import plan_chat
from app.interface.generate.planning.limits import Limits
from app.interface.request.callers import Caller
from app.interface.text.chat_model import ChatModel
from app.interface.wire.chat import ChatCompletionRequest, Message
from tests.engine.memory.test_memory_native import Chat, Output, assert_same, chatting

CONTEXT = 512
LIMIT = 384
TURNS = 14
KILLED_AFTER = 6
PAGE_TOKENS = 32
Said = list[tuple[str, tuple[int, ...]]]
"""Answers so far, with their tokens."""


@dataclass(frozen=True, slots=True)
class Played:
    output: Output
    prompt: tuple[int, ...]
    computed: int
    left_out_turns: int


def question(number: int) -> Message:
    return Message(role="user", content=f"Story {number}: " + f"the clerk repairs bridge {number}, " * 5 + "and why?")


def play(chat: Chat, model: ChatModel, said: Said, turns: int, **options: Any) -> list[Played]:
    """Plays turns until there are so many."""
    played = []
    while len(said) < turns:
        before = [
            message
            for number, (text, _) in enumerate(said)
            for message in (question(number), Message(role="assistant", content=text))
        ]
        messages = [Message(role="system", content="Be brief."), *before, question(len(said))]
        request = ChatCompletionRequest(model="m", messages=messages, on_overflow="shift")
        job = plan_chat(model.with_known_answers(dict(said)), request, Limits(24, 1), Caller(b""), "turn")
        assert job.left_out is not None
        assert job.left_out.limit_tokens == LIMIT
        prompt = job.requests[0].prompt_token_ids
        output, cached = chat.ask(prompt, **options)
        tokens = tuple(token for token in output[0] if token not in model.eos_token_ids)
        said.append((model.tokenizer.text(tokens), output[0]))
        played.append(Played(output, prompt, len(prompt) - cached, job.left_out.turns))
    return played


def main() -> None:
    """Plays some turns, saves, and is killed: MODEL FOLDER."""
    model, folder = Path(sys.argv[1]), Path(sys.argv[2])
    said: Said = []
    with chatting(model, folder, context=CONTEXT, kv_type="int16") as chat:
        play(chat, ChatModel.load(model, max_context_tokens=CONTEXT), said, KILLED_AFTER)
        chat.save()
        (folder / "said.json").write_text(json.dumps(said))
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_chat_past_its_context(engine_model: Path, tmp_path: Path) -> None:
    model = ChatModel.load(engine_model, max_context_tokens=CONTEXT)
    (tmp_path / "whole").mkdir()
    with chatting(engine_model, tmp_path / "whole", context=CONTEXT, kv_type="int16") as chat:
        cached = play(chat, model, [], TURNS)
        computed = play(chat, model, [], TURNS, uses_cache=False)
    for one, other in zip(cached, computed, strict=True):
        assert one.prompt == other.prompt
        assert_same(one.output, other.output)
        assert other.computed == len(other.prompt)

    growth = []
    for last, turn in pairwise(cached):
        if turn.left_out_turns == last.left_out_turns:
            growth.append(len(turn.prompt) - len(last.prompt))
            assert turn.computed <= growth[-1] + PAGE_TOKENS
        else:
            assert turn.computed <= LIMIT // 2 + PAGE_TOKENS
    cuts = [
        number for number, (last, turn) in enumerate(pairwise(cached), 1) if turn.left_out_turns > last.left_out_turns
    ]
    assert len(cuts) >= 3
    new = len(cached[0].prompt) + round(sum(growth) / len(growth) * (TURNS - 1))
    half = CONTEXT // 2
    assert sum(turn.computed for turn in cached) <= new + half * (new // half + 1) + PAGE_TOKENS * TURNS

    (folder := tmp_path / "killed").mkdir()
    command = [sys.executable, "-m", "tests.engine.memory.test_long_chat", str(engine_model), str(folder)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    said: Said = [(text, tuple(tokens)) for text, tokens in json.loads((folder / "said.json").read_text())]
    with chatting(engine_model, folder, context=CONTEXT, kv_type="int16") as chat:
        restored = play(chat, model, said, TURNS)
    assert cuts[0] < KILLED_AFTER < cuts[-1]
    for one, other in zip(restored, cached[KILLED_AFTER:], strict=True):
        assert one.prompt == other.prompt
        assert one.computed == other.computed, "what was saved is as good as what is in memory"
        assert_same(one.output, other.output)


if __name__ == "__main__":
    main()
