"""A chat that is longer than its context, turn by turn: what each turn computes, and whether the answers stay the same.

The service's own planning leaves out turns, and the engine answers, greedily. The chat is played three times: with the
prefix cache; with saved pages and a process that is killed (SIGKILL) after every few turns, so that the next one finds
only what is on disk; and without any cache. The texts must be the same, and the cached ones may compute at most the
new tokens, half a window for each half window of growth, and a part of a page in each turn.
Run: `python -m bench.experiments.long_chat MODEL --threads 2`; prints one JSON object, and ends with status 1 if not.
"""

import argparse
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

from app.engine.engine import Engine
from app.engine.generation import Event
from app.engine.memory.engine_memory import MemoryOptions
from app.interface.generate.planning.chat import plan_chat
from app.interface.generate.planning.job import Job
from app.interface.generate.planning.limits import Limits
from app.interface.request.callers import Caller
from app.interface.text.chat_model import ChatModel
from app.interface.wire.chat import ChatCompletionRequest, Message
from app.messages.outputs import TokenDelta
from bench.common import machine
from bench.memory_rig import Rig, Stream

Way = Literal["cached", "killed", "computed"]
WAYS: tuple[Way, ...] = ("cached", "killed", "computed")
_SYSTEM = Message(role="system", content="You are a helpful assistant. Answer in one short sentence.")
_NOUNS = ("harbour", "ledger", "captain", "bridge", "market", "letter", "winter", "garden", "clerk", "river", "engine")
_VERBS = ("watches", "repairs", "forgets", "follows", "describes", "sells", "measures", "visits", "answers", "paints")


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn as it was played."""

    text: str
    token_ids: list[int]
    prompt_tokens: int
    cached_tokens: int
    left_out_turns: int
    plan_s: float
    answer_s: float


class Counting(Stream):
    """A stream that counts what was cached of its prompt."""

    def __init__(self) -> None:
        super().__init__()
        self.cached_tokens = 0

    def deliver(self, events: Sequence[tuple[object, Event]]) -> None:
        """Records events, on the engine's thread."""
        self.cached_tokens += sum(event.cached_tokens for _, event in events if isinstance(event, TokenDelta))
        super().deliver(events)


def question(number: int, words: int) -> str:
    """The same text for the same number."""
    rng = random.Random(number)
    sentences = (f"the {rng.choice(_NOUNS)} {rng.choice(_VERBS)} the {rng.choice(_NOUNS)}" for _ in range(words // 5))
    return f"Story {number}: {', '.join(sentences)}. What is it about?"


class Chat:
    """A conversation so far, and who plans its next turn."""

    def __init__(self, model: ChatModel, turns: Sequence[Turn], *, words: int, new_tokens: int) -> None:
        self.model = model
        self.turns = list(turns)
        self._words = words
        self._new_tokens = new_tokens

    def messages(self) -> list[Message]:
        """The conversation, with the next question."""
        said = [_SYSTEM]
        for number, turn in enumerate(self.turns):
            said += [self._question(number), Message(role="assistant", content=turn.text)]
        return [*said, self._question(len(self.turns))]

    def plan(self, messages: Sequence[Message]) -> Job:
        """Plans the next turn, as the service does for a stored conversation."""
        request = ChatCompletionRequest(
            model="m", messages=list(messages), on_overflow="shift", max_tokens=self._new_tokens, temperature=0
        )
        known = self.model.with_known_answers({turn.text: turn.token_ids for turn in self.turns})
        return plan_chat(known, request, Limits(1024, 1), Caller(b"bench"), f"turn{len(self.turns)}")

    def tokens(self) -> int:
        """How many tokens the whole conversation has."""
        return sum(size.later for size in self.model.message_sizes(self.messages()[1:-1]))

    def _question(self, number: int) -> Message:
        return Message(role="user", content=question(number, self._words))


def play(chat: Chat, rig: Rig, way: Way) -> Turn:
    """Plays the next turn. Raises EngineError."""
    assert rig.engine is not None
    engine: Engine = rig.engine
    messages = chat.messages()
    began_s = time.perf_counter()
    job = chat.plan(messages)
    planned_s = time.perf_counter()
    (request,) = job.requests
    grant = rig.grant if way == "killed" else None
    stream = Counting()
    engine.submit(replace(request, memory=grant, uses_cache=way != "computed"), stream.deliver, 0)
    stream.wait()
    ended_s = time.perf_counter()
    tokens = [token for token in stream.tokens if token not in chat.model.eos_token_ids]
    assert job.left_out is not None
    return Turn(
        chat.model.tokenizer.text(tokens),
        stream.tokens,
        job.prompt_tokens,
        stream.cached_tokens,
        job.left_out.turns,
        planned_s - began_s,
        ended_s - planned_s,
    )


def read_turns(path: Path) -> list[Turn]:
    """Reads the whole lines of a transcript: a killed process may have begun another."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [Turn(**json.loads(line)) for line in lines]


def play_on(options: argparse.Namespace, way: Way, transcript: Path, pages: Path) -> None:
    """Plays turns until the conversation is long enough, after those of the transcript."""
    model = ChatModel.load(Path(options.model), max_context_tokens=options.window)
    chat = Chat(model, read_turns(transcript), words=options.words, new_tokens=options.new_tokens)
    rig = Rig(
        Path(options.model),
        pages,
        threads=options.threads,
        kv_type="auto",
        longest_tokens=options.window,
        io_threads=2,
        write_bytes_per_s=1e9,
    )
    with closing(rig), transcript.open("a") as out:
        rig.begin(MemoryOptions(save_after_s=1e9, restore="always", min_tokens=1))
        while chat.tokens() < options.tokens:
            turn = play(chat, rig, way)
            chat.turns.append(turn)
            if way == "killed":
                rig.save()
            print(json.dumps(asdict(turn)), file=out, flush=True)


def killed_often(command: Sequence[str], transcript: Path, every: int) -> int:
    """Runs a process until it ends by itself; kills it whenever it has played some turns. Returns how often."""
    kills = 0
    while True:
        most = len(read_turns(transcript)) + every
        process = subprocess.Popen(command)
        while process.poll() is None:
            if len(read_turns(transcript)) >= most:
                process.send_signal(signal.SIGKILL)
            time.sleep(0.02)
        if process.returncode == 0:
            return kills
        if process.returncode != -signal.SIGKILL:
            raise RuntimeError(f"a process ended with status {process.returncode}")
        kills += 1


def new_tokens_of(turns: Sequence[Turn]) -> Iterator[int]:
    """By how much each turn's prompt has grown, but for what was left out."""
    before = turns[0].prompt_tokens
    yield before
    growth = []
    for last, turn in pairwise(turns):
        if turn.left_out_turns == last.left_out_turns:
            growth.append(turn.prompt_tokens - last.prompt_tokens)
            yield growth[-1]
        else:  # what the turn would have added; the questions are of one length
            yield round(statistics.mean(growth))


def summary(turns: Sequence[Turn], window: int) -> dict[str, float | int | bool]:
    """What the turns computed, and whether that is within the bound."""
    computed = [turn.prompt_tokens - turn.cached_tokens for turn in turns]
    new = sum(new_tokens_of(turns))
    cuts = sum(a.left_out_turns != b.left_out_turns for a, b in pairwise(turns))
    bound = new + window // 2 * (new // (window // 2) + 1) + 32 * len(turns)
    return {
        "turns": len(turns),
        "cuts": cuts,
        "left_out_turns": turns[-1].left_out_turns,
        "prompt_tokens": sum(turn.prompt_tokens for turn in turns),
        "new_tokens": new,
        "computed_tokens": sum(computed),
        "most_computed_in_a_turn": max(computed),
        "bound_tokens": bound,
        "is_within_bound": sum(computed) <= bound,
        "longest_prompt": max(turn.prompt_tokens for turn in turns),
        "plan_s_median": round(statistics.median(turn.plan_s for turn in turns), 4),
        "plan_s_last": round(statistics.median(turn.plan_s for turn in turns[-9:]), 4),
        "answers_s": round(sum(turn.answer_s for turn in turns), 1),
    }


def main() -> None:
    """Prints the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a converted model with a chat template")
    parser.add_argument("--tokens", type=int, default=100_000, help="of the whole chat")
    parser.add_argument("--window", type=int, default=4096, help="the context")
    parser.add_argument("--words", type=int, default=300, help="of a question, about")
    parser.add_argument("--new-tokens", type=int, default=32, help="of an answer, at most")
    parser.add_argument("--kill-every", type=int, default=25, help="turns")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--play", nargs=3, metavar=("WAY", "TRANSCRIPT", "PAGES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play is not None:
        way, transcript, pages = options.play
        play_on(options, way, Path(transcript), Path(pages))
        return
    results: dict[str, dict[str, float | int | bool]] = {}
    texts = []
    for way in WAYS:
        with tempfile.TemporaryDirectory(prefix="redoubt-long-chat-") as folder:
            transcript = Path(folder) / "turns.jsonl"
            (pages := Path(folder) / "pages").mkdir()
            command = [sys.executable, "-m", __spec__.name, *sys.argv[1:], "--play", way, str(transcript), str(pages)]
            kills = killed_often(command, transcript, options.kill_every if way == "killed" else sys.maxsize)
            turns = read_turns(transcript)
        texts.append([turn.text for turn in turns])
        results[way] = {**summary(turns, options.window), "kills": kills}
    are_same = all(one == texts[0] for one in texts)
    is_bounded = all(results[way]["is_within_bound"] for way in ("cached", "killed"))
    print(
        json.dumps(
            {
                **machine(),
                "threads": options.threads,
                "model": Path(options.model).name,
                "window": options.window,
                "tokens": options.tokens,
                "same_texts": are_same,
                "ways": results,
            },
            indent=1,
        )
    )
    sys.exit(not (are_same and is_bounded))


if __name__ == "__main__":
    main()
