"""A long chat before and after kill -9, on demand: `python -m tests.engine.memory.kill_proof MODEL --tokens 4096`.

A process answers a chat and saves it, answers its next turn and is killed. Another one gives that turn's answer from
the disk. Prints whether tokens and log-probabilities are the same to the bit, and how many tokens were computed; ends
with status 1 if not, or if these are more than the new ones and 31.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random

import numpy as np

from tests.engine.memory.test_memory_native import Chat, chatting

QUESTION = tuple(Random(5).choices(range(1, 49000), k=20))


def context_of(tokens: int) -> tuple[int, ...]:
    return tuple(Random(4).choices(range(1, 49000), k=tokens))


def is_killed(chat: Chat, context: tuple[int, ...], folder: Path) -> None:
    """The first process: what it answers goes to a file beside the pages."""
    chat.ask(context)
    chat.save()
    (tokens, logprobs), _ = chat.ask((*context, *QUESTION))
    np.savez(folder / "answer.npz", tokens=np.array(tokens), logprobs=logprobs)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--kv-type", default="int16")
    parser.add_argument("--killed", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    context = context_of(given.tokens)
    options = {
        "kv_type": given.kv_type,
        "context": given.tokens + len(QUESTION) + given.new_tokens,
        "new_tokens": given.new_tokens,
    }
    if given.killed is not None:
        with chatting(given.model, given.killed, **options) as chat:
            is_killed(chat, context, given.killed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ran = subprocess.run(
            [sys.executable, "-m", __spec__.name, *sys.argv[1:], "--killed", name],
            check=False,
        )
        assert ran.returncode == -signal.SIGKILL, ran.returncode
        with np.load(folder / "answer.npz") as saved, chatting(given.model, folder, **options) as chat:
            (tokens, logprobs), cached = chat.ask((*context, *QUESTION))
            computed = len(context) + len(QUESTION) - cached
            same = tokens == tuple(saved["tokens"].tolist()) and np.array_equal(logprobs, saved["logprobs"])
    result = {
        "context": len(context),
        "new": len(QUESTION),
        "computed": computed,
        "answer_tokens": len(tokens),
        "same_tokens_and_logprobs": bool(same),
    }
    print(json.dumps(result))
    sys.exit(not same or computed > len(QUESTION) + 31)


if __name__ == "__main__":
    main()
