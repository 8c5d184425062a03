"""What a draft model gains: step times of target and draft by rows, and speed over the share of right drafts.

Target and draft have random weights, so nothing that one drafts is right for the other. The rate is therefore set: the
draft model computes all that it would, and then what it has drafted is replaced, at the rate that is wanted by the
token that the target will say, which a run without drafts has shown, otherwise by another one. With --pair two real
models draft for themselves. Runs with and without drafts take turns, and must give the same texts.

Run: `redoubt bench drafts --target qwen3-8b --draft qwen3-0.6b`, or --pair TARGET DRAFT; prints one JSON object.
"""

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np

from app.engine.engine import Engine
from app.engine.generation import Event, Generation
from app.engine.model_runner import Batch
from app.engine.native_runner import NativeRunner
from app.engine.speculative.draft_model import DraftModel
from app.engine.speculative.draft_source import DraftToken
from app.messages.failures import EngineError
from app.messages.requests import GenerateRequest, SamplingParams
from bench.common import OneLineParser, at_least, machine, number_list, print_result
from bench.drafts_peer import decode_speed, server
from quant.conversion.synth import synth
from quant.errors import QuantError

ROWS: Final = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16)
_STEP_REPEATS: Final = 5
_CONTEXT_TOKENS: Final = 1024
_PROMPT_TOKENS: Final = 64
_MOST_STREAMS: Final = 16
QUESTIONS: Final = (
    "Tell me a story about a lighthouse.",
    "Explain how a car's engine works.",
    "Write a Python function that merges two sorted lists.",
    "What is the capital of France, and why is it famous?",
    "List ten animals and describe each of them.",
    "How do I bake bread?",
    "Write a poem about the sea.",
    "Explain photosynthesis to a child.",
)
"""What real models are asked."""

_QUESTIONS_ALONE: Final = 4
"""So many are asked one after another where one answer is made at a time."""

Prompts = Sequence[tuple[int, ...]]
Texts = tuple[tuple[int, ...], ...]


class RatedDrafts(DraftModel):
    """Drafts that are right as often as wanted: the draft model computes them, and then they are replaced."""

    def __init__(self, runner: NativeRunner, rate: float, texts: Mapping[tuple[int, ...], tuple[int, ...]]) -> None:
        """texts: what the target says, by prompt."""
        super().__init__(runner, target_vocab_size=runner.vocab_size, most_tokens=8, cost_share=0.1)
        self._rate = rate
        self._said = texts
        self._random = Random(11)

    def draft(self, generations: Sequence[Generation]) -> list[DraftToken | None]:
        """As `DraftSource.draft`."""
        drafts: list[DraftToken | None] = []
        for generation, draft in zip(generations, super().draft(generations), strict=True):
            prompt = generation.request.prompt_token_ids
            place = len(generation.tokens) + len(generation.draft_tokens) - len(prompt)
            text = self._said[prompt]
            if draft is None or place >= len(text):
                drafts.append(draft)
                continue
            token = text[place]
            if self._random.random() >= self._rate:
                token = (token + 1) % self._vocab_size
            drafts.append(DraftToken(token, self._rate))
        return drafts


@dataclass(frozen=True, slots=True)
class Run:
    """One run of several requests at once."""

    made: int
    """Tokens after the first ones."""
    tokens_per_s: float
    texts: Texts
    steps: int
    drafted: int
    right: int


class Rig:
    """One engine with a draft model, which may be kept from drafting request by request."""

    def __init__(self, target: NativeRunner, drafts: DraftModel) -> None:
        self._engine = Engine(target, drafts=drafts, prompt_chunk_tokens=512)
        self._engine.start()
        self._number = 0

    def run(self, prompts: Prompts, new_tokens: int, *, drafts: bool, temperature: float = 0.0) -> Run:
        """Runs all of them at once. The speed is that of decoding: from when all have their first token."""
        outputs: list[list[int]] = [[] for _ in prompts]
        left = len(prompts)
        began_s = ended_s = 0.0
        tokens_then = 0
        done = threading.Event()
        errors: list[EngineError] = []

        def deliver(events: Sequence[tuple[object, Event]]) -> None:
            nonlocal left, began_s, ended_s, tokens_then
            for key, event in events:
                assert isinstance(key, int)
                if isinstance(event, EngineError):
                    errors.append(event)
                    left -= 1
                    continue
                outputs[key] += event.token_ids
                left -= event.finish_reason is not None
            if not began_s and all(outputs):
                began_s, tokens_then = time.perf_counter(), sum(map(len, outputs))
            if not left:
                ended_s = time.perf_counter()
                done.set()

        before = self._engine.statistics()
        for key, prompt in enumerate(prompts):
            self._number += 1
            sampling = SamplingParams(temperature=temperature, seed=key)
            request = GenerateRequest(f"{self._number}", prompt, new_tokens, sampling, tenant=b"", may_draft=drafts)
            self._engine.submit(request, deliver, key)
        done.wait()
        if errors:
            raise errors[0]
        time.sleep(0.05)  # the last step is counted after its events
        after = self._engine.statistics()
        made = sum(map(len, outputs)) - tokens_then
        return Run(
            made,
            made / (ended_s - began_s),
            tuple(map(tuple, outputs)),
            after.steps - before.steps,
            after.drafted_tokens - before.drafted_tokens,
            after.accepted_tokens - before.accepted_tokens,
        )

    def close(self) -> None:
        self._engine.stop()


def joined(runs: Sequence[Run]) -> Run:
    """Runs one after the other."""
    made = sum(run.made for run in runs)
    return Run(
        made,
        made / sum(run.made / run.tokens_per_s for run in runs),
        tuple(text for run in runs for text in run.texts),
        *(sum(counts) for counts in zip(*((run.steps, run.drafted, run.right) for run in runs), strict=True)),
    )


def step_times(runner: NativeRunner, rows: Sequence[int]) -> dict[str, float]:
    """Seconds of a step of one sequence with drafts, by its rows, medians; 64 tokens stand before them."""
    sampler = runner.make_sampler((0,), SamplingParams(temperature=0.0), 0)
    runner.page_tables[0, 0, :4] = np.arange(4)
    times: dict[str, float] = {}
    for count in rows:
        taken = []
        for _ in range(_STEP_REPEATS):
            batch = Batch(
                token_ids=np.arange(count, dtype=np.int32) + 7,
                positions=np.arange(_PROMPT_TOKENS, _PROMPT_TOKENS + count, dtype=np.int32),
                slots=np.zeros(1, np.int32),
                query_lengths=np.array([count], np.int32),
                context_lengths=np.array([_PROMPT_TOKENS], np.int32),
                samplers=[sampler],
                draft_lengths=np.array([count - 1], np.int32),
            )
            began_s = time.perf_counter()
            runner.step(batch)
            taken.append(time.perf_counter() - began_s)
        times[f"{count}"] = round(statistics.median(taken), 5)
    return times


def compared(
    rig: Rig, groups: Sequence[Prompts], new_tokens: int, rounds: int, temperature: float = 0.0
) -> dict[str, Any]:
    """Runs without and with drafts in turns, one group after another; step times are learned in a run before.

    groups: of prompts that are answered at the same time.
    """

    def run(*, drafts: bool) -> Run:
        return joined([rig.run(group, new_tokens, drafts=drafts, temperature=temperature) for group in groups])

    run(drafts=True)
    pairs = [(run(drafts=False), run(drafts=True)) for _ in range(rounds)]
    assert all(one.texts == other.texts for one, other in pairs), "drafts changed a text"
    ratios = sorted(other.tokens_per_s / one.tokens_per_s for one, other in pairs)
    last = pairs[-1][1]
    return {
        "tokens_per_s_without": round(statistics.median(one.tokens_per_s for one, _ in pairs), 2),
        "tokens_per_s_with": round(statistics.median(other.tokens_per_s for _, other in pairs), 2),
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "steps": last.steps,
        "drafted": last.drafted,
        "right": last.right,
    }


def load(folder: Path, threads: int, *, most_step_tokens: int = 512) -> NativeRunner:
    """The model on the first cores, with room for the largest run."""
    return NativeRunner(
        str(folder),
        threads=threads,
        kv_pages=_MOST_STREAMS * _CONTEXT_TOKENS // 64,
        max_sequences=_MOST_STREAMS,
        max_step_tokens=most_step_tokens,
        max_context_tokens=_CONTEXT_TOKENS,
    )


def made(shape: str, folder: Path, layers: int | None) -> Path:
    """A model of random weights of a shape of `quant.conversion.shapes`, made once."""
    path = folder / (f"{shape}-synth" if layers is None else f"{shape}-{layers}-layers-synth")
    if not (path / "config.json").exists():
        synth(shape, path, layers=layers)
    return path


def measure_rates(options: argparse.Namespace) -> dict[str, Any]:
    """The table by streams and rates, and by depth."""
    target = load(made(options.target, options.folder, options.layers), options.threads)
    draft = load(made(options.draft, options.folder, options.draft_layers), options.threads)
    result: dict[str, Any] = {
        "target": options.target,
        "layers": options.layers,
        "draft": options.draft,
        "draft_layers": options.draft_layers,
        "step_s": {"target": step_times(target, ROWS), "draft": step_times(draft, (1, 2, 4, 8))},
        "rates": [],
    }
    vocabulary = min(target.vocab_size, draft.vocab_size)
    for streams in options.streams:
        prompts = [tuple(Random(number).choices(range(vocabulary), k=_PROMPT_TOKENS)) for number in range(streams)]
        rig = Rig(target, RatedDrafts(draft, 0.0, {}))
        texts = rig.run(prompts, options.tokens, drafts=False).texts
        rig.close()
        by_prompt = dict(zip(prompts, texts, strict=True))
        for rate in options.rates:
            depths = options.depths if rate == options.depth_rate and streams == 1 else ()
            for most_tokens in (8, *depths):
                drafts = RatedDrafts(draft, rate / 100, by_prompt)
                drafts.most_tokens = most_tokens
                rig = Rig(target, drafts)
                row = compared(rig, [prompts], options.tokens, options.rounds)
                rig.close()
                result["rates"].append({"streams": streams, "right_percent": rate, "most_tokens": most_tokens, **row})
                print(result["rates"][-1], file=sys.stderr)
    return result


def measure_pair(options: argparse.Namespace) -> dict[str, Any]:
    """Two real models: greedy answers and drawn ones."""
    from app.draft_check import check_draft
    from app.interface.text.chat_model import ChatModel
    from app.interface.wire.chat import Message

    folder, drafting = options.pair
    check_draft(folder, folder.name, drafting)
    target, draft = load(folder, options.threads), load(drafting, options.threads)
    chat = ChatModel.load(folder, max_context_tokens=_CONTEXT_TOKENS)
    result: dict[str, Any] = {
        "target": folder.name,
        "draft": drafting.name,
        "step_s": {"target": step_times(target, ROWS), "draft": step_times(draft, (1, 2, 4, 8))},
        "answers": [],
    }
    for streams in options.streams:
        for temperature in (0.0, 1.0):
            asked = [
                QUESTIONS[number % len(QUESTIONS)] for number in range(streams if streams > 1 else _QUESTIONS_ALONE)
            ]
            prompts = [tuple(chat.chat_prompt([Message(role="user", content=text)])) for text in asked]
            groups = [prompts] if streams > 1 else [[prompt] for prompt in prompts]
            rig = Rig(target, DraftModel(draft, target_vocab_size=target.vocab_size, most_tokens=8, cost_share=0.3))
            row = compared(rig, groups, options.tokens, options.rounds, temperature)
            rig.close()
            result["answers"].append({"streams": streams, "temperature": temperature, **row})
            print(result["answers"][-1], file=sys.stderr)
        if streams == 1 and options.peer is not None:
            result["llama_server"] = measure_peer(options, prompts)
    return result


def measure_peer(options: argparse.Namespace, prompts: Prompts) -> list[dict[str, Any]]:
    """llama.cpp's server with the same two models in turns without and with its drafts; medians."""
    target, draft = options.ggufs
    kinds: dict[str, tuple[str, ...]] = {
        "without": (),
        "default": ("--draft", str(draft)),
        "8 at once": ("--draft", str(draft), "--draft-tokens", "8"),
    }
    found = []
    for temperature in (0.0, 1.0):
        runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
        for _ in range(options.rounds):
            for kind, more in kinds.items():
                with server(options.peer, target, options.threads, more) as url:
                    decode_speed(url, prompts[:1], 8, temperature)
                    runs[kind].append(decode_speed(url, prompts, options.tokens, temperature))
        without = statistics.median(one["tokens_per_s"] for one in runs["without"])
        for kind, of_it in runs.items():
            speed = statistics.median(one["tokens_per_s"] for one in of_it)
            counts = {name: of_it[-1][name] for name in ("drafted", "right")}
            row = {"drafts": kind, "temperature": temperature, "tokens_per_s": speed}
            found.append({**row, "ratio": round(speed / without, 3), **counts})
            print(found[-1], file=sys.stderr)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the result of either kind."""
    parser = OneLineParser(prog="redoubt bench drafts", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", default="qwen3-8b", help="a shape of redoubt synth (qwen3-8b)")
    parser.add_argument("--layers", type=at_least(1), help="only the first layers of the target")
    parser.add_argument("--draft", default="qwen3-0.6b", help="likewise (qwen3-0.6b)")
    parser.add_argument("--draft-layers", type=at_least(1), help="only the first layers of the draft model")
    parser.add_argument("--pair", nargs=2, type=Path, metavar=("TARGET", "DRAFT"), help="two converted models instead")
    parser.add_argument("--peer", type=Path, metavar="PYTHON", help="of an environment with xllamacpp: also its server")
    parser.add_argument("--ggufs", nargs=2, type=Path, metavar=("TARGET", "DRAFT"), help="the pair, for --peer")
    parser.add_argument("--folder", type=Path, default=Path("models"), help="where shapes are made (models)")
    parser.add_argument("--threads", type=at_least(1), default=2)
    parser.add_argument("--streams", type=number_list, default=(1, 4, 8), help="answers at a time (1,4,8)")
    parser.add_argument("--rates", type=number_list, default=(1, 50, 70, 90), help="per cent of drafts that are right")
    parser.add_argument("--depth-rate", type=int, default=70, help="the rate at which depths are compared (70)")
    parser.add_argument("--depths", type=number_list, default=(1, 2, 4), help="most tokens at once (1,2,4)")
    parser.add_argument("--tokens", type=at_least(8), default=96, help="of each answer (96)")
    parser.add_argument("--rounds", type=at_least(1), default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    if options.peer is not None and (options.pair is None or options.ggufs is None):
        parser.error("--peer needs --pair and --ggufs")

    def measure() -> dict[str, Any]:
        found = measure_rates(options) if options.pair is None else measure_pair(options)
        facts = {"threads": options.threads, "tokens": options.tokens, "rounds": options.rounds}
        return {**machine(), **facts, **found}

    return print_result(measure, (QuantError, OSError, ValueError, EngineError), indent=1, out=options.out)


if __name__ == "__main__":
    sys.exit(main())
