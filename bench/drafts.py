"""What drafts gain: step times of what is drafted for and of what drafts, and speed over the share of right drafts.

A draft model drafts, with --predicts the target's own layer of multi-token prediction, or with --head an EAGLE-3 head.
All have random weights, so no draft would be right. The rate is therefore set: all is computed as it would be, and then
what was drafted is replaced, at the rate that is wanted by the token that the target will say, which a run without
drafts has shown, otherwise by another one. With --pair two real models draft for themselves, or a model's own layer,
with --itself a small one in int4 for itself in bf16. Runs with and without drafts take turns, each with prompts that no
cache knows, and must give the same texts. Where a layer or a head drafts, those without are of a model loaded without
it.

Beside each ratio of speeds stands a counted one: from the time that drafts, their rows and what a layer adds to all
steps took, and what right ones saved. Few drafts cost less than a busy machine's noise, so only that one shows what
they cost.

Run: `redoubt bench drafts --target qwen3-8b --draft qwen3-0.6b`, --target qwen3.5-9b --predicts, --pair TARGET DRAFT,
or --itself GGUF; prints one JSON object.
"""

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Final

from app.engine.native_runner import NativeRunner
from app.engine.speculative.draft_model import DraftModel
from app.engine.speculative.draft_source import DraftSource
from app.engine.speculative.predictor_drafts import EAGLE, MTP, PredictorDrafts
from app.messages.failures import EngineError
from bench.common import OneLineParser, at_least, check_writable, machine, number_list, print_result
from bench.drafts_models import DRAFT_ROWS, ROWS, load, predicted_s, step_times
from bench.drafts_pair import TEMPLATE_TOKENS, kind_of, measure_pair, own_pair
from bench.drafts_rig import RatedDrafts, Rig, compared
from bench.places import shown_command
from kernels import _native
from quant.conversion.synth import synth
from quant.errors import QuantError

_LEAST_CONTEXT_TOKENS: Final = 1024
_PROMPT_TOKENS: Final = (64,)
_LEAST_TOKENS: Final = 8
_SPARE_TOKENS: Final = 16
"""A sequence stops drafting shortly before its context is full."""


def made(shape: str, folder: Path, layers: int | None, *, predicts: bool = False, head: bool = False) -> Path:
    """A model of random weights of a shape of `quant.conversion.shapes`, or a head for it, made once."""
    name = shape if layers is None else f"{shape}-{layers}-layers"
    path = folder / f"{name}{'-predicts' if predicts else '-head' if head else ''}-synth"
    if not (path / "config.json").exists():
        synth(shape, path, layers=layers, predicts=predicts, head=head)
    return path


def context_tokens(options: argparse.Namespace) -> int:
    """Room for the longest prompt and answer."""
    longest: int = max(options.prompts or _PROMPT_TOKENS) + TEMPLATE_TOKENS + max(options.tokens) + _SPARE_TOKENS
    page: int = _native.PAGE_TOKENS
    return max(_LEAST_CONTEXT_TOKENS, -(-longest // page) * page)


def measure_rates(options: argparse.Namespace) -> dict[str, Any]:
    """The table by streams, lengths, rates and depths."""
    predicts: bool | str = options.predicts
    folder = made(options.target, options.folder, options.layers, predicts=options.predicts)
    if options.head:
        predicts = str(made(options.target, options.folder, None, head=True))
    sizes = {"streams": max(options.streams), "context_tokens": context_tokens(options)}
    target = load(folder, options.threads, **sizes, predicts=predicts)
    step_s = {"target": step_times(target, ROWS)}
    result: dict[str, Any] = {"target": options.target, "layers": options.layers, "step_s": step_s}
    vocabulary = target.vocab_size
    base: Rig | None = None
    draft: NativeRunner | None = None
    if predicts:
        without = load(folder, options.threads, **sizes)
        step_s["target_without"] = step_times(without, ROWS)
        base = Rig(without, None)
        result |= {"draft": EAGLE if options.head else MTP, "draft_s": predicted_s(target)}
    else:
        draft = load(made(options.draft, options.folder, options.draft_layers), options.threads, **sizes)
        result |= {"draft": options.draft, "draft_layers": options.draft_layers}
        step_s["draft"] = step_times(draft, DRAFT_ROWS)
        vocabulary = min(vocabulary, draft.vocab_size)

    def source() -> DraftSource:
        if draft is None:
            return PredictorDrafts(target, kind=result["draft"])
        return DraftModel(draft, target_vocab_size=target.vocab_size, most_tokens=8, cost_share=0.1)

    result["rates"] = []
    for streams in options.streams:
        for length in options.prompts or _PROMPT_TOKENS:
            prompts = [tuple(Random(number).choices(range(vocabulary), k=length)) for number in range(streams)]
            rig = base or Rig(target, source())
            texts = rig.run(prompts, max(options.tokens), drafts=False).texts
            if rig is not base:
                rig.close()
            by_prompt = dict(zip(prompts, texts, strict=True))
            for tokens, rate in ((tokens, rate) for tokens in options.tokens for rate in options.rates):
                drafts = RatedDrafts(source(), rate / 100, by_prompt, vocabulary)
                rig = Rig(target, drafts)
                depths = [one for one in options.depths if one < drafts.most_tokens]
                for row in compared(
                    rig,
                    drafts.most_tokens,
                    [prompts],
                    tokens,
                    options.rounds,
                    step_s["target"],
                    depths=depths if rate == options.depth_rate else (),
                    base=base,
                    without_s=step_s.get("target_without"),
                ):
                    about = {
                        "streams": streams,
                        "prompt_tokens": length,
                        "answer_tokens": tokens,
                        "right_percent": rate,
                    }
                    result["rates"].append({**about, **row})
                    print(result["rates"][-1], file=sys.stderr, flush=True)
                rig.close()
    if base is not None:
        base.close()
    return result


def _checked(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the process with one line about options that don't go together."""
    real = options.pair is not None or options.itself is not None
    if options.pair is not None and len(options.pair) > 2:
        parser.error("--pair takes TARGET and DRAFT, or TARGET alone, whose own layer drafts")
    if options.peer is not None and options.itself is None and (options.pair is None or options.ggufs is None):
        parser.error("--peer needs --itself, or --pair and --ggufs")
    if options.peer is not None and 1 not in options.streams:
        parser.error("--peer makes one answer at a time: --streams needs 1")
    if options.ggufs is not None and (options.peer is None or options.itself is not None):
        parser.error("--ggufs is for --peer with --pair")
    synthetic = ("target", "layers", "draft", "draft_layers", "predicts", "head", "rates", "depth_rate", "depths")
    given = [name for name in synthetic if getattr(options, name) != parser.get_default(name)]
    if real and given:
        parser.error(f"--{given[0].replace('_', '-')} is of random weights, without --pair and --itself")
    if (options.predicts or options.head) and {"draft", "draft_layers"} & set(given):
        parser.error("--draft is without --predicts and --head, which draft in its place")
    if max(options.rates) > 100:
        parser.error("--rates are per cent, at most 100")
    if min(options.tokens) < _LEAST_TOKENS:
        parser.error(f"--tokens must be at least {_LEAST_TOKENS}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the result of either kind."""
    parser = OneLineParser(prog="redoubt bench drafts", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", default="qwen3-8b", help="a shape of redoubt synth (qwen3-8b)")
    parser.add_argument("--layers", type=at_least(1), help="only the first layers of the target")
    parser.add_argument("--draft", default="qwen3-0.6b", help="likewise (qwen3-0.6b)")
    drafting = parser.add_mutually_exclusive_group()
    drafting.add_argument("--predicts", action="store_true", help="the target's own layer drafts, in --draft's place")
    drafting.add_argument("--head", action="store_true", help="an EAGLE-3 head drafts, likewise")
    parser.add_argument("--draft-layers", type=at_least(1), help="only the first layers of the draft model")
    pairs = parser.add_mutually_exclusive_group()
    pairs.add_argument(
        "--pair",
        nargs="+",
        type=Path,
        metavar=("TARGET", "DRAFT"),
        help="converted models instead: the second, or an EAGLE-3 head, drafts; or TARGET's own layer, if it is alone",
    )
    pairs.add_argument("--itself", type=Path, metavar="GGUF", help="a model in int4 for itself in bf16: both are made")
    parser.add_argument("--peer", type=Path, metavar="PYTHON", help="of an environment with xllamacpp: also its server")
    parser.add_argument("--ggufs", nargs=2, type=Path, metavar=("TARGET", "DRAFT"), help="the pair, for --peer")
    parser.add_argument("--folder", type=Path, default=Path("models"), help="where models are made (models)")
    parser.add_argument("--threads", type=at_least(1), default=2)
    parser.add_argument("--streams", type=number_list, default=(1, 4, 8), help="answers at a time (1,4,8)")
    parser.add_argument("--prompts", type=number_list, help="tokens of the prompts, as 64,1024,4096 (64; a question)")
    parser.add_argument("--tokens", type=number_list, default=(96,), help="of each answer, as 16,64,256 (96)")
    parser.add_argument("--rates", type=number_list, default=(1, 50, 70, 90), help="per cent of drafts that are right")
    parser.add_argument("--depth-rate", type=int, default=70, help="the rate at which --depths are compared (70)")
    parser.add_argument(
        "--depths", type=number_list, default=(1, 2, 3), help="most tokens at once, where that is fewer (1,2,3)"
    )
    parser.add_argument("--rounds", type=at_least(1), default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    _checked(parser, options)
    words = ["redoubt", "bench", "drafts", *(sys.argv[1:] if arguments is None else arguments)]

    def measure() -> dict[str, Any]:
        check_writable(options.out)
        options.folder.mkdir(parents=True, exist_ok=True)
        if options.itself is not None:
            options.pair, options.ggufs = own_pair(options.itself, options.folder)
        if options.peer is not None and kind_of(options.pair[0], options.pair[1:]) != "model":
            raise ValueError("--peer needs a draft model: llama.cpp's server is not asked with heads and layers")
        facts = {"threads": options.threads, "tokens": options.tokens, "rounds": options.rounds}
        began = {"measured_at": datetime.now(UTC).isoformat(timespec="seconds"), "command": shown_command(words)}
        found = measure_rates(options) if options.pair is None else measure_pair(options, context_tokens(options))
        return {**machine(), **began, **facts, **found}

    errors = (QuantError, OSError, ValueError, ImportError, RuntimeError, MemoryError, EngineError)
    return print_result(measure, errors, indent=1, out=options.out)


if __name__ == "__main__":
    sys.exit(main())
