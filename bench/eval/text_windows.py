"""Cuts a text into consecutive windows of tokens. Does not know what they are used for."""

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
    """The text, tokenized whole without a BOS, as its first `windows` runs of `context_tokens` tokens (None: all).

    The rest after the last full window is not used. Raises EvalError if there are fewer than `windows`.
    """
    if context_tokens < 2:
        raise EvalError(f"--context {context_tokens}: a window needs two tokens at least")
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    there = len(ids) // context_tokens
    if there < (windows or 1):
        raise EvalError(f"{where}: has {len(ids)} tokens: {there} windows of {context_tokens}, not {windows or 1}")
    return [ids[i * context_tokens : (i + 1) * context_tokens] for i in range(windows or there)]
