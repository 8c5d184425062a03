"""Real models that draft for real ones, for `redoubt bench drafts --pair` and `--itself`: greedy and drawn answers.

What drafts is another model, an EAGLE-3 head, or a layer of the model itself. Does not know what llama.cpp does.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from app.draft_check import check_draft
from app.engine.native_runner import NativeRunner
from app.engine.speculative.draft_model import DraftModel
from app.engine.speculative.draft_source import DraftSource
from app.engine.speculative.predictor_drafts import EAGLE, MTP, PredictorDrafts
from app.interface.text.chat_model import ChatModel
from app.interface.wire.chat import Message
from app.model_folder import is_draft_head
from bench.drafts_models import DRAFT_ROWS, ROWS, load, predicted_s, step_times
from bench.drafts_peer import PeerRounds, bf16_gguf
from bench.drafts_rig import Rig, compared
from kernels import _native
from quant.conversion.convert import convert
from quant.files.json_file import read_json_object
from quant.packed.packed_file import is_packed_model

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
_TEMPERATURES: Final = (0.0, 1.0)
TEMPLATE_TOKENS: Final = 192
"""What a question and a chat template may add to a prompt's length."""


def own_pair(gguf: Path, folder: Path) -> tuple[list[Path], list[Path]]:
    """A model in bf16 and in int4, from its GGUF of few bits; and the same as GGUFs. Each is made once."""
    pair = [folder / f"{gguf.stem}-{kind}" for kind in ("bf16", "int4")]
    for path, qtype in zip(pair, ("bf16", "sym_int4"), strict=True):
        if not (path / "config.json").exists():
            convert(gguf, path, qtype=qtype)
    return pair, [bf16_gguf(gguf, folder / f"{gguf.stem}-bf16.gguf"), gguf]


def measure_pair(options: argparse.Namespace, context_tokens: int) -> dict[str, Any]:
    """The answers by streams, lengths and temperatures, with llama.cpp's server in the same rounds if it is wanted.

    Raises ValueError for folders that don't fit each other, RuntimeError, OSError, EngineError.
    """
    folder, *drafting = options.pair
    kind = kind_of(folder, drafting)
    chat = ChatModel.load(folder, max_context_tokens=context_tokens)
    sizes = {"streams": max(options.streams), "context_tokens": context_tokens}
    predicts = str(drafting[0]) if kind == EAGLE else kind == MTP
    target = load(folder, options.threads, **sizes, predicts=predicts)
    step_s = {"target": step_times(target, ROWS)}
    result: dict[str, Any] = {
        "target": folder.name,
        "draft": kind if kind == MTP else drafting[0].name,
        "step_s": step_s,
    }
    base, source = None, _predictors(target, kind)
    if kind in (MTP, EAGLE):
        without = load(folder, options.threads, **sizes)
        step_s["target_without"] = step_times(without, ROWS)
        result["draft_s"] = predicted_s(target)
        base = Rig(without, None)
    else:
        draft = load(drafting[0], options.threads, **sizes)
        step_s["draft"] = step_times(draft, DRAFT_ROWS)
        source = _models(draft, target)
    result["answers"] = []
    for streams, length, tokens, temperature in (
        (streams, length, tokens, temperature)
        for streams in options.streams
        for length in options.prompts or (0,)
        for tokens in options.tokens
        for temperature in _TEMPERATURES
    ):
        prompts = asked(chat, streams if streams > 1 else _QUESTIONS_ALONE, length)
        peer = (
            PeerRounds(options, prompts, tokens, context_tokens, temperature) if streams == 1 and options.peer else None
        )
        drafts = source()
        rig = Rig(target, drafts)
        [row] = compared(
            rig,
            drafts.most_tokens,
            [prompts] if streams > 1 else [[prompt] for prompt in prompts],
            tokens,
            options.rounds,
            step_s["target"],
            temperature=temperature,
            base=base,
            without_s=step_s.get("target_without"),
            beside=None if peer is None else peer.play,
        )
        rig.close()
        about = {"streams": streams, "prompt_tokens": max(map(len, prompts)), "answer_tokens": tokens}
        result["answers"].append({**about, "temperature": temperature, **row})
        print(result["answers"][-1], file=sys.stderr, flush=True)
        if peer is not None:
            result["llama_server"] = result.get("llama_server", []) + [{**about, **one} for one in peer.found()]
    if base is not None:
        base.close()
    return result


def kind_of(folder: Path, drafting: Sequence[Path]) -> str:
    """What drafts: "model", EAGLE or MTP. Raises ValueError for folders that can't draft for each other."""
    for one in (folder, *drafting):
        if not is_packed_model(one):
            raise ValueError(f"--pair: {one} is no folder of a converted model")
    if not drafting:
        if not _native.Model.has_predictor(str(folder)):
            raise ValueError(f"--pair: {folder} has no layer of multi-token prediction: name what drafts for it too")
        return MTP
    check_draft(folder, folder.name, drafting[0])
    if is_draft_head(read_json_object(drafting[0] / "config.json")):
        return EAGLE
    if _native.Model.state_page_bytes(str(drafting[0])):
        raise ValueError(f"--pair: {drafting[0]} has recurrent states, which a draft model can't have")
    return "model"


def _predictors(target: NativeRunner, kind: str) -> Callable[[], DraftSource]:
    return lambda: PredictorDrafts(target, kind=kind)


def _models(draft: NativeRunner, target: NativeRunner) -> Callable[[], DraftSource]:
    return lambda: DraftModel(draft, target_vocab_size=target.vocab_size, most_tokens=8, cost_share=0.3)


def asked(chat: ChatModel, count: int, length: int) -> list[tuple[int, ...]]:
    """Prompts of about `length` tokens that end with a question: before it stand words in no order; 0: nothing."""
    words = [word for question in QUESTIONS for word in question.split()]
    prompts = []
    for number in range(count):
        question = QUESTIONS[number % len(QUESTIONS)]
        before = Random(number).choices(words, k=length)
        while True:
            text = " ".join([*before, question])
            found = tuple(
                chat.chat_prompt([Message(role="user", content=text)]) if chat.can_chat else chat.raw_prompt(text)
            )
            if len(found) <= max(length, TEMPLATE_TOKENS) or not before:
                break
            del before[: max(1, len(found) - max(length, TEMPLATE_TOKENS)) // 2 + 1]
        prompts.append(found)
    return prompts
