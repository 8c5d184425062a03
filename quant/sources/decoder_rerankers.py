"""Decoders that judge a pair of texts by their next token: Qwen3-Reranker, by "yes" against "no".

Its folders are mostly those of a model that chats. Known by their chat template or by their own name; others with a
module for the score, or a classifier's name, are refused. Source of the prompt: the model's card.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from tokenizers import Tokenizer

from quant.codes.matrix import F32
from quant.errors import SourceError, UnsupportedModelError
from quant.families.encoders import scores
from quant.families.names import DENSE
from quant.sources.assembly import dequantized
from quant.sources.hf_tokenizer import open_tokenizer, read_chat_template
from quant.sources.source import SourceTensor

_NAME: Final = "qwen3-reranker"
_SAYS: Final = "Judge whether the Document meets the requirements based on the Query and the Instruct provided."
_BEFORE: Final = (
    f'<|im_start|>system\n{_SAYS} Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_FIRST: Final = "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n<Query>: "
_SECOND: Final = "\n<Document>: "
_AFTER: Final = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
_ANSWERS: Final = ("yes", "no")
_MAX_TOKENS: Final = 8192
_CLASSIFIER: Final = "score.weight"
_HEADS: Final = ("lm_head.weight", "model.embed_tokens.weight", "embed_tokens.weight")
"""Where the rows of the answers are; the first one that is stored."""


def read_reranker(folder: Path, config: Mapping[str, Any], beside: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Returns a reranker's settings, in the form of those of a sentence-transformers folder; None: it is none.

    beside: the folder's own. Raises SourceError, and UnsupportedModelError for one whose prompt is not known.
    """
    tokens, is_qwen3 = None if beside is None else beside.get("score_tokens"), config.get("model_type") == "qwen3"
    if not is_qwen3 and tokens is None:
        return None
    is_classifier, place = scores(config), folder.resolve()
    named = place.parent.name if place.name == "source" else place.name  # the store's folders have the source below
    is_named = any(_NAME in name.lower() for name in (named, str(config.get("_name_or_path", ""))))
    is_known = is_qwen3 and (is_named or _SAYS in (read_chat_template(folder) or ""))
    if not is_known:
        if is_classifier or tokens is not None:
            raise UnsupportedModelError(
                f"{folder}: a reranker with a prompt that is not known; known: Qwen3-Reranker's"
            )
        return None
    if beside is not None and tokens is None and not is_classifier:
        return None  # its modules say that it makes vectors
    tokenizer = open_tokenizer(folder)
    found: dict[str, Any] = {"pooling": "last", "normalize": False, "scores": True, "max_tokens": _MAX_TOKENS}
    found["dense"] = [{"rows": 1 if is_classifier else 2, "cols": config.get("hidden_size"), "bias": False}]
    if not is_classifier:
        found["score_tokens"] = tokens or [_answer(tokenizer, each, folder) for each in _ANSWERS]
    before, after = (tokenizer.encode(text, add_special_tokens=False).ids for text in (_BEFORE, _AFTER))
    found["frame"] = {"before": before, "first": _FIRST, "second": _SECOND, "after": after}
    return found


def with_score_head(
    stored: Mapping[str, SourceTensor], found: Mapping[str, Any], where: str
) -> dict[str, SourceTensor]:
    """The stored tensors with the score's rows as a layer behind the pooling, and without a head."""
    tokens: list[int] | None = found.get("score_tokens")
    name = next((each for each in ((_CLASSIFIER,) if tokens is None else _HEADS) if each in stored), None)
    if name is None:
        raise SourceError(f"{where}: lacks the tensor {_CLASSIFIER if tokens is None else _HEADS[0]!r}")
    head, ours = stored[name], f"{DENSE}0.weight"
    numbers = list(range(head.shape[0])) if tokens is None else tokens
    if len(head.shape) != 2 or not all(0 <= number < head.shape[0] for number in numbers):
        raise SourceError(f"{where}: {name!r} has the shape {head.shape}, and no rows {numbers}")

    def read(begin: int, end: int) -> F32:
        return np.concatenate([dequantized(head.read(number, number + 1)) for number in numbers[begin:end]])

    kept = {each: tensor for each, tensor in stored.items() if each not in (_CLASSIFIER, _HEADS[0])}
    return kept | {ours: SourceTensor(ours, (len(numbers), head.shape[1]), "fp32", 0, read)}


def _answer(tokenizer: Tokenizer, text: str, folder: Path) -> int:
    number: int | None = tokenizer.token_to_id(text)
    if number is None:
        raise SourceError(f"{folder / 'tokenizer.json'}: has no token {text!r}, which a reranker answers")
    return number
