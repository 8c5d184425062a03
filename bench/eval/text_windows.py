"""Cuts a text into consecutive windows of tokens, each begun as the model begins a text. Does not know their use."""

from pathlib import Path

from tokenizers import Tokenizer

from bench.eval.errors import EvalError
from quant.errors import SourceError
from quant.files.plain_file import MOST_TEXT_BYTES, read_plain_text


def read_text(path: Path) -> str:
    """A text file. Raises EvalError naming it."""
    try:
        return read_plain_text(path, MOST_TEXT_BYTES)
    except SourceError as error:
        raise EvalError(str(error)) from error


def text_windows(
    tokenizer: Tokenizer, text: str, where: Path, context_tokens: int, windows: int | None
) -> list[list[int]]:
    """The text, tokenized whole, as its first `windows` windows of `context_tokens` tokens (None: all).

    Where the tokenizer puts a BOS before a text, every window begins with it, and the text fills the rest. What is left
    after the last full window is not used. Raises EvalError if there are fewer than `windows`.
    """
    begin = begin_tokens(tokenizer)
    room = context_tokens - len(begin)
    if context_tokens < 2 or room < 1:
        raise EvalError(f"--context {context_tokens}: a window needs two tokens at least")
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    there = len(ids) // room
    if there < (windows or 1):
        raise EvalError(f"{where}: has {len(ids)} tokens: {there} windows of {context_tokens}, not {windows or 1}")
    return [begin + ids[i * room : (i + 1) * room] for i in range(windows or there)]


def begin_tokens(tokenizer: Tokenizer) -> list[int]:
    """What the tokenizer puts before a text: the BOS token of a model that wants one."""
    encoding = tokenizer.encode("x")
    bare = len(tokenizer.encode("x", add_special_tokens=False).ids)
    return list(encoding.ids[: encoding.special_tokens_mask.index(0)]) if len(encoding.ids) > bare else []
