"""What drafts gain: step times of what is drafted for and of what drafts, and speed over the share of right drafts.

A draft model drafts, with --predicts the target's own layer of multi-token prediction, or with --head an EAGLE-3 head.
All have random weights, so no draft would be right. The rate is therefore set: all is computed as it would be, and then
what was drafted is replaced, at the rate that is wanted by the token that the target will say, which a run without
drafts has shown, otherwise by another one. With --pair two real models draft for themselves, with --itself a small one
in int4 for itself in bf16. Runs with and without drafts take turns, and must give the same texts.

Run: `redoubt bench drafts --target qwen3-8b --draft qwen3-0.6b`, --target qwen3.5-9b --predicts, --pair TARGET DRAFT,
or --itself GGUF; prints one JSON object.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np

from app.engine.model_runner import Batch
from app.engine.native_runner import NativeRunner
from app.engine.speculative.draft_model import DraftModel
from app.engine.speculative.draft_source import DraftSource
from app.engine.speculative.predictor_drafts import EAGLE, MTP, PredictorDrafts
from app.messages.failures import EngineError
from app.messages.requests import SamplingParams
from bench.common import OneLineParser, at_least, machine, number_list, print_result
from bench.drafts_peer import bf16_gguf, decode_speed, server
from bench.drafts_rig import Prompts, RatedDrafts, Rig, compared
from quant.conversion.convert import convert
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


def step_times(runner: NativeRunner, rows: Sequence[int]) -> dict[str, float]:
    """Seconds of a step of one sequence with drafts, by its rows, medians; 64 tokens stand before them."""
    sampler = runner.make_sampler((0,), SamplingParams(temperature=0.0), 0)
    runner.page_tables[:, 0, :4] = np.arange(4)
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


def predicted_s(runner: NativeRunner) -> float:
    """Seconds of a token that the model's own layer drafts, the median."""
    taken = []
    step_times(runner, (1,))
    for place in range(_PROMPT_TOKENS + 1, _PROMPT_TOKENS + 1 + _STEP_REPEATS):
        began_s = time.perf_counter()
        tokens, _ = runner.draft([7], [place], [0], [place], [None])
        taken.append(time.perf_counter() - began_s)
        assert tokens[0] >= 0, "nothing was drafted"
    return round(statistics.median(taken), 5)


def load(folder: Path, threads: int, *, predicts: bool | str = False) -> NativeRunner:
    """The model on the first cores, with room for the largest run."""
    return NativeRunner(
        str(folder),
        threads=threads,
        kv_pages=_MOST_STREAMS * _CONTEXT_TOKENS // 64,
        max_sequences=_MOST_STREAMS,
        max_step_tokens=512,
        max_context_tokens=_CONTEXT_TOKENS,
        predicts=predicts,
    )


def made(shape: str, folder: Path, layers: int | None, *, predicts: bool = False, head: bool = False) -> Path:
    """A model of random weights of a shape of `quant.conversion.shapes`, or a head for it, made once."""
    name = shape if layers is None else f"{shape}-{layers}-layers"
    path = folder / f"{name}{'-predicts' if predicts else '-head' if head else ''}-synth"
    if not (path / "config.json").exists():
        synth(shape, path, layers=layers, predicts=predicts, head=head)
    return path


def measure_rates(options: argparse.Namespace) -> dict[str, Any]:
    """The table by streams, rates and depths."""
    predicts: bool | str = options.predicts
    folder = made(options.target, options.folder, options.layers, predicts=options.predicts)
    if options.head:
        predicts = str(made(options.target, options.folder, None, head=True))
    target = load(folder, options.threads, predicts=predicts)
    result: dict[str, Any] = {"target": options.target, "layers": options.layers, "rates": []}
    result["step_s"] = {"target": step_times(target, ROWS)}
    vocabulary = target.vocab_size
    if predicts:
        kind = EAGLE if options.head else MTP
        result |= {"draft": kind, "draft_s": predicted_s(target)}
    else:
        draft = load(made(options.draft, options.folder, options.draft_layers), options.threads)
        result |= {"draft": options.draft, "draft_layers": options.draft_layers}
        result["step_s"]["draft"] = step_times(draft, (1, 2, 4, 8))
        vocabulary = min(vocabulary, draft.vocab_size)

    def source() -> DraftSource:
        if predicts:
            return PredictorDrafts(target, kind=kind)
        return DraftModel(draft, target_vocab_size=target.vocab_size, most_tokens=8, cost_share=0.1)

    for streams in options.streams:
        prompts = [tuple(Random(number).choices(range(vocabulary), k=_PROMPT_TOKENS)) for number in range(streams)]
        rig = Rig(target, source())
        texts = rig.run(prompts, options.tokens, drafts=False).texts
        rig.close()
        by_prompt = dict(zip(prompts, texts, strict=True))
        for rate in options.rates:
            drafts = RatedDrafts(source(), rate / 100, by_prompt, vocabulary)
            rig = Rig(target, drafts)
            depths = options.depths if rate == options.depth_rate else ()
            for row in compared(rig, drafts, [prompts], options.tokens, options.rounds, depths=depths):
                result["rates"].append({"streams": streams, "right_percent": rate, **row})
                print(result["rates"][-1], file=sys.stderr)
            rig.close()
    return result


def own_pair(gguf: Path, folder: Path) -> tuple[list[Path], list[Path]]:
    """A model in bf16 and in int4, from its GGUF of few bits; and the same as GGUFs. Each is made once."""
    pair = [folder / f"{gguf.stem}-{kind}" for kind in ("bf16", "int4")]
    for path, qtype in zip(pair, ("bf16", "sym_int4"), strict=True):
        if not (path / "config.json").exists():
            convert(gguf, path, qtype=qtype)
    return pair, [bf16_gguf(gguf, folder / f"{gguf.stem}-bf16.gguf"), gguf]


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
            prompts = [
                tuple(
                    chat.chat_prompt([Message(role="user", content=text)]) if chat.can_chat else chat.raw_prompt(text)
                )
                for text in asked
            ]
            groups = [prompts] if streams > 1 else [[prompt] for prompt in prompts]
            drafts = DraftModel(draft, target_vocab_size=target.vocab_size, most_tokens=8, cost_share=0.3)
            rig = Rig(target, drafts)
            [row] = compared(rig, drafts, groups, options.tokens, options.rounds, temperature)
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
    parser.add_argument("--predicts", action="store_true", help="the target's own layer drafts, in --draft's place")
    parser.add_argument("--head", action="store_true", help="an EAGLE-3 head drafts, likewise")
    parser.add_argument("--draft-layers", type=at_least(1), help="only the first layers of the draft model")
    parser.add_argument("--pair", nargs=2, type=Path, metavar=("TARGET", "DRAFT"), help="two converted models instead")
    parser.add_argument("--itself", type=Path, metavar="GGUF", help="a model in int4 for itself in bf16: both are made")
    parser.add_argument("--peer", type=Path, metavar="PYTHON", help="of an environment with xllamacpp: also its server")
    parser.add_argument("--ggufs", nargs=2, type=Path, metavar=("TARGET", "DRAFT"), help="the pair, for --peer")
    parser.add_argument("--folder", type=Path, default=Path("models"), help="where models are made (models)")
    parser.add_argument("--threads", type=at_least(1), default=2)
    parser.add_argument("--streams", type=number_list, default=(1, 4, 8), help="answers at a time (1,4,8)")
    parser.add_argument("--rates", type=number_list, default=(1, 50, 70, 90), help="per cent of drafts that are right")
    parser.add_argument("--depth-rate", type=int, default=70, help="the rate at which --depths are compared (70)")
    parser.add_argument("--depths", type=number_list, default=(1, 2, 3), help="most tokens at once (1,2,3)")
    parser.add_argument("--tokens", type=at_least(8), default=96, help="of each answer (96)")
    parser.add_argument("--rounds", type=at_least(1), default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    if options.peer is not None and options.itself is None and (options.pair is None or options.ggufs is None):
        parser.error("--peer needs --itself, or --pair and --ggufs")

    def measure() -> dict[str, Any]:
        if options.itself is not None:
            options.pair, options.ggufs = own_pair(options.itself, options.folder)
        found = measure_rates(options) if options.pair is None else measure_pair(options)
        facts = {"threads": options.threads, "tokens": options.tokens, "rounds": options.rounds}
        return {**machine(), **facts, **found}

    return print_result(measure, (QuantError, OSError, ValueError, EngineError), indent=1, out=options.out)


if __name__ == "__main__":
    sys.exit(main())
