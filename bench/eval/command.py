"""`redoubt eval`: reads the options, opens the models, prints results; progress goes to the standard error.

    redoubt eval perplexity MODEL... --text FILE [--context 512] [--windows N] [--json]
    redoubt eval kl MODEL... --baseline CHECKPOINT --text FILE [...]

MODEL is a converted folder, or a checkpoint (a Hugging Face folder, a GGUF file), which is evaluated unquantized. With
--json each model's result is one line of JSON. An interrupted run goes on where it stopped when it is asked again.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]

from bench.eval.errors import EvalError
from bench.eval.journal import Journal, file_state
from bench.eval.open_model import ModelOptions, OpenModel, open_model
from bench.eval.perplexity import kl_divergence, perplexity
from bench.eval.text_windows import read_text, text_windows
from quant.errors import QuantError

Result = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    options = _parser().parse_args(arguments)
    try:
        for result in options.run(options):
            print(json.dumps(result) if options.json else _table(result), flush=True)
    except (EvalError, QuantError, ValueError, OSError) as error:
        print(f"redoubt: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("redoubt: interrupted; the same command goes on where this one stopped", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="redoubt eval", description="Measure a model's quality.")
    commands = parser.add_subparsers(required=True, metavar="WHAT")
    text = _command(commands, "perplexity", "perplexity on a text", _run_perplexity)
    divergence = _command(commands, "kl", "divergence from a baseline on a text, by token", _run_kl)
    for command in (text, divergence):
        command.add_argument("--text", type=Path, required=True, metavar="FILE", help="UTF-8 text")
        command.add_argument("--context", type=int, default=512, help="tokens of a window (default %(default)s)")
        command.add_argument("--windows", type=_positive, help="the first N windows (default: all)", metavar="N")
    divergence.add_argument("--baseline", type=Path, required=True, metavar="MODEL", help="usually the checkpoint")
    return parser


def _command(commands: Any, name: str, about: str, run: Callable[..., Iterator[Result]]) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=about, description=about)
    command.set_defaults(run=run, what=name)
    command.add_argument("models", type=Path, nargs="+", metavar="MODEL", help="a converted folder, or a checkpoint")
    command.add_argument("--json", action="store_true", help="one line of JSON for each model")
    command.add_argument("--threads", type=_positive, help="compute threads (default: all CPUs)")
    command.add_argument("--compute-type", choices=("int8", "fp32"), help="activations (default: as served)")
    command.add_argument("--kv-type", choices=("bf16", "int8", "fp32"), help="keys and values (default: as served)")
    return command


def _positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return int(text)


def _run_perplexity(options: argparse.Namespace) -> Iterator[Result]:
    text = read_text(options.text)
    with _journal(options, options.models, text) as journal:
        for number, path in enumerate(options.models):
            with open_model(path, _model_options(options)) as opened:
                windows = text_windows(opened.tokenizer(), text, options.text, options.context, options.windows)
                with opened.load(options.context) as model, _bar(len(windows), path.name) as tick:
                    result = perplexity(model, windows, journal, f"{number}", tick)
                yield opened.description() | _text_facts(options, len(windows)) | result


def _run_kl(options: argparse.Namespace) -> Iterator[Result]:
    text = read_text(options.text)
    paths = [options.baseline, *options.models]
    with ExitStack() as stack:
        journal = stack.enter_context(_journal(options, paths, text))
        base = stack.enter_context(open_model(options.baseline, ModelOptions(options.threads)))
        opened = [stack.enter_context(open_model(path, _model_options(options))) for path in options.models]
        windows = text_windows(base.tokenizer(), text, options.text, options.context, options.windows)
        for model in opened:
            _check_same_tokens(base, model, text)
        baseline, *natives = (stack.enter_context(each.load(options.context)) for each in (base, *opened))
        tick = stack.enter_context(_bar(len(windows), "kl"))
        models = {str(number): native for number, native in enumerate(natives)}
        base_result, results = kl_divergence(baseline, models, windows, journal, tick)
        for model, result in zip(opened, results.values(), strict=True):
            yield (
                model.description()
                | _text_facts(options, len(windows))
                | result
                | {"baseline": base.description() | base_result}
            )


def _check_same_tokens(baseline: OpenModel, model: OpenModel, text: str) -> None:
    sample = text[:20000]
    if baseline.tokenizer().encode(sample).ids != model.tokenizer().encode(sample).ids:
        raise EvalError(f"{model.path}: its tokenizer is not that of the baseline {baseline.path}")


def _model_options(options: argparse.Namespace) -> ModelOptions:
    return ModelOptions(options.threads, options.compute_type, options.kv_type)


def _text_facts(options: argparse.Namespace, windows: int) -> Result:
    return {"text": options.text.name, "context": options.context, "windows": windows}


@contextmanager
def _journal(options: argparse.Namespace, paths: Sequence[Path], content: str) -> Iterator[Journal]:
    """The results so far of this very run; kept where the block fails, forgotten when it is complete."""
    asked = {key: str(value) for key, value in vars(options).items() if key not in ("run", "json", "threads")}
    digest = hashlib.sha256(content.encode()).hexdigest()
    journal = Journal([asked, digest, [file_state(path) for path in paths]])
    yield journal
    journal.complete()


@contextmanager
def _bar(total: int, label: str) -> Iterator[Callable[[], object]]:
    with tqdm(total=total, desc=label, unit="window", file=sys.stderr, dynamic_ncols=True) as bar:
        yield bar.update


def _table(result: Result, indent: str = "") -> str:
    """A result as lines of text, nested ones indented."""
    lines = []
    for key, value in result.items():
        if isinstance(value, dict):
            lines += [f"{indent}{key}:", _table(value, indent + "  ")]
        else:
            shown = f"{value:.6g}" if isinstance(value, float) else value
            lines.append(f"{indent}{key:<{24 - len(indent)}} {shown}")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
