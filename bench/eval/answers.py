"""Two greedy answers of a checkpoint, unquantized and as sym_int4: the prompts of a published table.

    python -m bench.eval.answers CHECKPOINT --work FOLDER

The conversion is kept in --work, under the name that bench.eval.quality_tables gives it. Prints one JSON object. Judges
no answer.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.common import OneLineParser, at_least
from bench.eval.command import exit_status
from bench.eval.longbench import LongModel, LongTask
from bench.eval.open_model import ModelOptions, open_model
from bench.eval.quality_tables import UNQUANTIZED, converted

PROMPTS: Final = ("讲一个笑话", "What is AI?")
"""Of table 4.3 of the thesis."""
CONVERSION: Final = "sym_int4-g64-quick"
_PROMPT_TOKENS: Final = 256
"""Room for a prompt and the chat template."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = OneLineParser(prog="python -m bench.eval.answers", description="Two greedy answers of a checkpoint.")
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a Hugging Face folder, or a GGUF file")
    parser.add_argument("--work", type=Path, required=True, metavar="FOLDER", help="keeps the conversion")
    parser.add_argument("--tokens", type=at_least(1), default=64, help="of an answer at most (default %(default)s)")
    parser.add_argument("--threads", type=at_least(1), help="compute threads (default: all CPUs)")
    options = parser.parse_args(arguments)
    return exit_status(lambda: print(json.dumps(answers(options))))


def answers(options: argparse.Namespace) -> dict[str, Any]:
    """By prompt, an answer of each model. Raises QuantError, EvalError."""
    models = {
        UNQUANTIZED: options.checkpoint,
        CONVERSION: converted(options.checkpoint, options.work, CONVERSION),
    }
    rows: list[dict[str, Any]] = [{"prompt": prompt, "answers": {}} for prompt in PROMPTS]
    for name, path in models.items():
        with open_model(path, ModelOptions(options.threads)) as opened:
            model = LongModel(opened.folder, opened.load(_PROMPT_TOKENS + options.tokens))
            for row in rows:
                row["answers"][name] = model.answer("question", LongTask(row["prompt"], (), ()), options.tokens)
    return {"model": options.checkpoint.name, "tokens": options.tokens, "rows": rows}


if __name__ == "__main__":
    raise SystemExit(main())
