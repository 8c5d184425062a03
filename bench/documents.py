"""`redoubt bench documents`: what a question about a document waits for its first token, the first time and later.

    python -m bench.documents --threads 2 --tokens 4096 --json

The service runs as `redoubt serve` starts it, with one user and saved pages. For each length a document is asked about:

- `first_s`: nobody has read it; all of it is computed.
- `second_s`: another question in another chat, with the document's pages in memory.
- `after_kill_s`: another one, after `kill -9` of the worker, which the service has started again.
- `after_restart_s`: another one, after the whole service has ended and started again, with the saved pages dropped from
  the system's page cache.

Then llama.cpp's server does likewise with its prompt cache. What its slot holds is saved by an order after the second
question, and restored by one before each of the last two, whose time counts. Times are a client's, of whole answers of
one token; of several second questions the median.

The model is the embedded one, whose context is 8,192 tokens; or with `--layers` random weights in its shape, with that
many layers and any context. Uses both servers through HTTP only.
"""

import argparse
import random
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from bench.common import ROOT, OneLineParser, at_least, machine, number_list, print_result
from bench.document_sides import Asked, OurService, Side, llama_server, our_service
from bench.kv_memory import kv_memory_bytes, round_up
from bench.models import BenchModel, bench_model, long_context_model
from bench.peers import InstallError
from bench.places import shown_command

_BESIDE_TOKENS: Final = 512
"""Room for the template, the question and the answer; a document itself is up to 2 % longer than it was to be."""
_EMBEDDED_CONTEXT_TOKENS: Final = 8192
_WORDS: Final = "the tenant owner rent house month pays until year notice and of in to a is may clause by"
_SAMPLE_WORDS: Final = 2000
_SECOND_QUESTIONS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentsBenchOptions:
    tokens: tuple[int, ...]
    threads: int
    layers: int | None
    peer: bool
    models: Path
    environments: Path
    folder: Path | None

    @property
    def context_tokens(self) -> int:
        longest = max(self.tokens)
        return round_up(longest + longest // 50 + _BESIDE_TOKENS)


def measure_documents(options: DocumentsBenchOptions, command: str = "") -> dict[str, Any]:
    """Runs the bench; the result is ready for JSON. Raises what the sides raise.

    command: for the result.
    """
    model = _model(options)
    packed = model.make_packed()
    kv_bytes = kv_memory_bytes(packed, len(options.tokens), options.context_tokens)
    with tempfile.TemporaryDirectory(prefix="redoubt-documents-", dir=options.folder) as folder:
        ours, theirs = Path(folder) / "redoubt", Path(folder) / "llama_cpp"
        for each in (ours, theirs):
            each.mkdir()
        with our_service(packed, options.threads, kv_bytes, ours) as service:
            documents = _documents(options.tokens, service)
            sides = {"redoubt": _measured(service, documents)}
        if options.peer:
            gguf = model.make_gguf()
            with llama_server(gguf, options.threads, options.context_tokens, options.environments, theirs) as server:
                sides["llama_cpp"] = _measured(server, documents)
    return {
        "model": packed.name,
        "threads": options.threads,
        "documents": {
            tokens: {name: side["documents"][tokens] for name, side in sides.items()} for tokens in options.tokens
        },
        **{name: {key: side[key] for key in side if key != "documents"} for name, side in sides.items()},
        "command": command,
        **machine(),
    }


def _measured(side: Side, documents: Mapping[int, str]) -> dict[str, Any]:
    """All questions to one server. documents: by their tokens."""
    asked: dict[int, dict[str, list[Asked]]] = {}
    numbers = iter(range(1, 1000))

    def ask(tokens: int) -> Asked:
        return side.ask(documents[tokens], f"What does clause {next(numbers)} say about the rent?")

    side.ask("Short.", "What is it?")  # warms up
    for tokens in documents:
        first = ask(tokens)
        asked[tokens] = {"first": [first], "second": [ask(tokens) for _ in range(_SECOND_QUESTIONS)]}
        side.keep(str(tokens))
    ready_s = {}
    for kind, interrupt in (("after_kill", side.kill), ("after_restart", side.restart)):
        ready_s[kind] = round(interrupt(), 1)
        for tokens in documents:
            recalled_s = side.recall(str(tokens))
            answer = ask(tokens)
            asked[tokens][kind] = [Asked(recalled_s + answer.seconds, answer.prompt_tokens, answer.cached_tokens)]
    figures = {tokens: _figures(kinds) for tokens, kinds in asked.items()}
    return {"documents": figures, "ready_s": ready_s, **side.about()}


def _figures(kinds: Mapping[str, Sequence[Asked]]) -> dict[str, Any]:
    seconds = {kind: statistics.median(one.seconds for one in asked) for kind, asked in kinds.items()}
    return {
        "prompt_tokens": kinds["first"][0].prompt_tokens,
        **{f"{kind}_s": round(value, 3) for kind, value in seconds.items()},
        "cached_tokens": {kind: min(one.cached_tokens for one in asked) for kind, asked in kinds.items()},
        **{f"first_over_{kind}": round(seconds["first"] / seconds[kind], 1) for kind in kinds if kind != "first"},
    }


def _documents(lengths: Sequence[int], service: OurService) -> dict[int, str]:
    """A text of about as many tokens for each length."""
    rng = random.Random(1)
    sample = " ".join(rng.choices(_WORDS.split(), k=_SAMPLE_WORDS))
    words_per_token = _SAMPLE_WORDS / service.tokens_of(sample)
    return {tokens: " ".join(rng.choices(_WORDS.split(), k=int(tokens * words_per_token))) for tokens in lengths}


def _model(options: DocumentsBenchOptions) -> BenchModel:
    made = options.environments / "models"
    if options.layers is not None:
        return long_context_model(options.layers, options.context_tokens, made)
    if options.context_tokens > _EMBEDDED_CONTEXT_TOKENS:
        longest = _EMBEDDED_CONTEXT_TOKENS - _BESIDE_TOKENS
        raise ValueError(f"the embedded model reads documents of {longest} tokens at most; longer ones need --layers")
    return bench_model("embedded", options.models, made)


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="redoubt bench documents", description="Measure questions about documents.")
    parser.add_argument("--threads", type=at_least(1), required=True, help="compute threads")
    parser.add_argument("--tokens", type=number_list, default=(4096,), help="lengths of the documents (default 4096)")
    parser.add_argument(
        "--layers", type=at_least(1), help="random weights with so many layers, and a context that the lengths fit in"
    )
    parser.add_argument("--no-peer", dest="peer", action="store_false", help="without llama.cpp's server")
    parser.add_argument("--models", type=Path, default=ROOT / "models", help="folder of the embedded model")
    parser.add_argument("--environments", type=Path, default=ROOT / "build" / "peers", help="(default: build/peers)")
    parser.add_argument("--folder", type=Path, help="where to save pages: the disk that is measured (default: /tmp)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON there too")
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of an indented one")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else list(arguments)
    parsed = vars(_parser().parse_args(words))
    indent, out = (None if parsed.pop("json") else 2), parsed.pop("out")
    options = DocumentsBenchOptions(**parsed)
    errors = (RuntimeError, ValueError, OSError, InstallError, ImportError, httpx.HTTPError)
    command = shown_command(["redoubt", "bench", "documents", *words])
    return print_result(lambda: measure_documents(options, command), errors, indent=indent, out=out)


if __name__ == "__main__":
    raise SystemExit(main())
