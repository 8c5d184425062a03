"""`redoubt eval`: reads the options, opens the models, prints results; progress goes to the standard error.

    redoubt eval perplexity MODEL... --text FILE [--context 512] [--windows N] [--json]
    redoubt eval kl MODEL... --baseline CHECKPOINT --text FILE [...]
    redoubt eval hellaswag|piqa|winogrande|lambada|multiple-choice MODEL... --tasks FILE [--limit N] [...]
    redoubt eval ceval|longbench|longbench-perplexity MODEL... --data FOLDER [--limit N] [...]
    redoubt eval weights MODEL... --baseline CHECKPOINT [...]
    redoubt eval compare RESULTS... --out JSON [--note TEXT]...
    redoubt eval page COMPARISON... --page FILE
    redoubt eval report CHECKPOINT --text FILE --windows N --work FOLDER [--hellaswag FILE] [--out JSON] [--page FILE]

MODEL is a converted folder, or a checkpoint (a Hugging Face folder, a GGUF file), which is evaluated unquantized. With
--json each model's result is one line of JSON. Repeating an interrupted command resumes it.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from tqdm import tqdm  # type: ignore[import-untyped]

from bench.common import OneLineParser, at_least, json_text
from bench.eval.ceval import by_category, ceval_tasks
from bench.eval.choice_files import hellaswag_tasks, jsonl_tasks, piqa_tasks, winogrande_tasks
from bench.eval.choices import BRANCHES, ChoiceTask, context_tokens, run_choices
from bench.eval.comparison import compare, measured_here, read_comparison, read_results
from bench.eval.comparison_page import with_comparison
from bench.eval.errors import EvalError
from bench.eval.journal import Journal
from bench.eval.last_words import lambada_tasks, run_last_words
from bench.eval.long_texts import long_texts, long_windows, run_long_texts
from bench.eval.longbench import LongModel, long_sets, run_longbench
from bench.eval.open_model import ModelOptions, OpenModel, open_model
from bench.eval.page import draw, with_report
from bench.eval.perplexity import kl_divergence, perplexity
from bench.eval.report import VARIANTS, Options, ReportOptions, label, linear_bits, make_report, weight_errors
from bench.eval.text_windows import read_text, text_windows
from kernels import _native
from quant.errors import QuantError
from quant.files.cache_folder import file_state
from quant.packed.packed_file import is_packed_model

Result = dict[str, Any]
_TASK_FILES: Final[Mapping[str, str]] = {
    "hellaswag": "HellaSwag: its .jsonl, or six lines a task",
    "piqa": "PIQA: its .jsonl, with labels in it or in STEM-labels.lst beside it",
    "winogrande": "WinoGrande: its .jsonl",
    "lambada": "LAMBADA's last words: OpenAI's lambada_test.jsonl",
    "multiple-choice": "questions as JSON lines",
}
_COMPARE = "Gather results of one checkpoint and its conversions, paired with the unquantized checkpoint's."
_PAGE = "Write the tables of comparisons into a page."
_READERS: Final[Mapping[str, Callable[[Path], list[ChoiceTask]]]] = {
    "hellaswag": hellaswag_tasks, "piqa": piqa_tasks, "winogrande": winogrande_tasks, "multiple-choice": jsonl_tasks,
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)

    def run() -> None:
        for result in options.run(options):
            print(json.dumps(result) if options.json else _table(result), flush=True)

    return exit_status(run)


def exit_status(run: Callable[[], None]) -> int:
    """Runs a resumable command; its failures are a line for the user."""
    try:
        run()
    except (EvalError, QuantError, ValueError, OSError) as error:
        print(f"redoubt: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("redoubt: interrupted; the same command resumes it", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    positive = at_least(1)
    parser = OneLineParser(prog="redoubt eval", description="Measure a model's quality.")
    commands = parser.add_subparsers(required=True, metavar="WHAT")
    text = _command(commands, "perplexity", "perplexity on a text", _run_perplexity)
    divergence = _command(commands, "kl", "divergence from a baseline on a text, by token", _run_kl)
    for command in (text, divergence):
        command.add_argument("--text", type=Path, required=True, metavar="FILE", help="UTF-8 text")
        command.add_argument("--context", type=int, default=512, help="tokens of a window (default %(default)s)")
        command.add_argument("--windows", type=positive, help="the first N windows (default: all)", metavar="N")
    divergence.add_argument("--baseline", type=Path, required=True, metavar="MODEL", help="usually the checkpoint")
    for name, about in _TASK_FILES.items():
        choice = _command(commands, name, about, _run_last_words if name == "lambada" else _run_choices)
        choice.add_argument("--tasks", type=Path, required=True, metavar="FILE", help=about)
        choice.add_argument("--limit", type=positive, help="the first N tasks (default: all)", metavar="N")
    ceval = _command(commands, "ceval", "C-Eval, five examples a question", _run_choices)
    ceval.add_argument("--split", choices=("val", "test", "dev"), default="val", help="(default %(default)s)")
    longbench = _command(commands, "longbench", "LongBench's English sets, greedy answers", _run_longbench)
    texts = _command(commands, "longbench-perplexity", "perplexity on LongBench's English texts", _run_long_texts)
    for command in (ceval, longbench, texts):
        command.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="as its authors publish it")
        command.add_argument("--limit", type=positive, help="the first N tasks of a set (default: all)", metavar="N")
    for command in (longbench, texts):
        command.add_argument(
            "--set", action="append", default=[], metavar="NAME", help="a set (default: all in FOLDER)"
        )
    texts.add_argument("--context", type=int, default=2048, help="tokens of a window (default %(default)s)")
    texts.add_argument("--tokens", type=positive, metavar="N", help="the first N of each text (default: all)")
    longbench.add_argument("--config", type=Path, metavar="FOLDER", help="the authors' prompts and answer lengths")
    longbench.add_argument("--context", type=positive, help="tokens of prompt and answer (default: the model's)")
    weights = _command(commands, "weights", "how far quantization moved the layers' weights", _run_weights)
    weights.add_argument("--baseline", type=Path, required=True, metavar="CHECKPOINT", help="with the exact weights")
    comparison = commands.add_parser("compare", help=_COMPARE, description=_COMPARE)
    comparison.set_defaults(run=_run_compare, what="compare", json=True)
    comparison.add_argument("results", type=Path, nargs="+", metavar="RESULTS", help="files of --json's lines")
    comparison.add_argument("--out", type=Path, required=True, metavar="JSON", help="write the comparison there")
    comparison.add_argument("--model", required=True, metavar="NAME", help="the checkpoint, for readers")
    comparison.add_argument("--note", action="append", default=[], metavar="TEXT", help="what readers should know")
    page = commands.add_parser("page", help=_PAGE, description=_PAGE)
    page.set_defaults(run=_run_page, what="page", json=True)
    page.add_argument("comparisons", type=Path, nargs="+", metavar="COMPARISON", help="what `compare` wrote")
    page.add_argument("--page", type=Path, required=True, metavar="FILE", help="a Markdown page with their marks")
    report = commands.add_parser("report", help="all conversions of a checkpoint compared", description=_report_about())
    report.set_defaults(run=_run_report, what="report", json=True)
    report.add_argument("source", type=Path, metavar="CHECKPOINT", help="a Hugging Face folder, or a GGUF file")
    report.add_argument("--text", type=Path, required=True, metavar="FILE", help="UTF-8 text")
    report.add_argument("--context", type=int, default=512, help="tokens of a window (default %(default)s)")
    report.add_argument("--windows", type=positive, required=True, metavar="N", help="windows of the text")
    report.add_argument("--work", type=Path, required=True, metavar="FOLDER", help="keeps the conversions")
    report.add_argument("--hellaswag", type=Path, metavar="FILE", help="HellaSwag: six lines a task")
    report.add_argument("--tasks", type=positive, default=100, metavar="N", help="of HellaSwag (default %(default)s)")
    report.add_argument(
        "--only", metavar="TEXT,...", help="conversions whose names have one of these words (default: all)"
    )
    report.add_argument("--threads", type=positive, help="compute threads (default: all CPUs)")
    report.add_argument("--out", type=Path, metavar="JSON", help="write the report there instead of printing it")
    report.add_argument(
        "--page", type=Path, metavar="FILE", help="put its tables into this Markdown page, and its plots beside it"
    )
    return parser


def _report_about() -> str:
    return "Convert a checkpoint with every type and method, and measure each result on one text."


def _command(commands: Any, name: str, about: str, run: Callable[..., Iterator[Result]]) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=about, description=about)
    command.set_defaults(run=run, what=name)
    command.add_argument("models", type=Path, nargs="+", metavar="MODEL", help="a converted folder, or a checkpoint")
    command.add_argument("--json", action="store_true", help="one line of JSON for each model")
    command.add_argument("--threads", type=at_least(1), help="compute threads (default: all CPUs)")
    command.add_argument("--compute-type", choices=("auto", "int8", "bf16", "fp32"), help="activations (default: int8)")
    command.add_argument("--kv-type", choices=_native.KV_TYPES, help="keys and values (default: int16)")
    return command


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


def _run_choices(options: argparse.Namespace) -> Iterator[Result]:
    tasks = _choice_tasks(options)
    with _journal(options, options.models, repr(tasks)) as journal:
        for number, path in enumerate(options.models):
            with open_model(path, _model_options(options)) as opened:
                tokenizer = opened.tokenizer()
                width = context_tokens(tokenizer, tasks, opened.context_tokens)
                with opened.load(width, BRANCHES) as model, _bar(len(tasks), path.name, "task") as tick:
                    result = run_choices(model, tokenizer, tasks, journal, f"{number}", tick)
                if options.what == "ceval" and "groups" in result:
                    result["categories"] = by_category(result["groups"])
                yield opened.description() | {"what": options.what} | result


def _choice_tasks(options: argparse.Namespace) -> list[ChoiceTask]:
    if options.what == "ceval":
        return ceval_tasks(options.data, options.split, options.limit)
    return _READERS[options.what](options.tasks)[: options.limit]


def _run_last_words(options: argparse.Namespace) -> Iterator[Result]:
    tasks = lambada_tasks(options.tasks)[: options.limit]
    with _journal(options, options.models, repr(tasks)) as journal:
        for number, path in enumerate(options.models):
            with open_model(path, _model_options(options)) as opened:
                tokenizer = opened.tokenizer()
                width = context_tokens(tokenizer, tasks, opened.context_tokens)
                with opened.load(width, 1) as model, _bar(len(tasks), path.name, "task") as tick:
                    result = run_last_words(model, tokenizer, tasks, journal, f"{number}", tick)
                yield opened.description() | {"what": options.what} | result


def _run_long_texts(options: argparse.Namespace) -> Iterator[Result]:
    texts = long_texts(options.data, options.set, options.limit)
    with _journal(options, options.models, repr(texts)) as journal:
        for number, path in enumerate(options.models):
            with open_model(path, _model_options(options)) as opened:
                sets = long_windows(opened.tokenizer(), texts, options.context, options.tokens)
                total = sum(map(len, sets.values()))
                with opened.load(options.context) as model, _bar(total, path.name) as tick:
                    result = run_long_texts(model, sets, journal, f"{number}", tick)
                facts = {"what": options.what, "context": options.context, "tokens_of_a_text": options.tokens}
                yield opened.description() | facts | result


def _run_longbench(options: argparse.Namespace) -> Iterator[Result]:
    sets = long_sets(options.data, options.config, options.set, options.limit)
    total = sum(len(each.tasks) for each in sets)
    with _journal(options, options.models, repr(sets)) as journal:
        for number, path in enumerate(options.models):
            with open_model(path, _model_options(options)) as opened:
                context = min(options.context or opened.context_tokens, opened.context_tokens)
                with opened.load(context) as model, _bar(total, path.name, "task") as tick:
                    result = run_longbench(LongModel(opened.folder, model), sets, journal, f"{number}", tick)
                prompts = "redoubt" if options.config is None else "authors"
                yield opened.description() | {"what": "longbench", "prompts": prompts, "context": context} | result


def _run_weights(options: argparse.Namespace) -> Iterator[Result]:
    for path in options.models:
        if not is_packed_model(path):
            raise EvalError(f"{path}: is no converted model, whose weights could have moved")
        model = OpenModel(path, path, False, _model_options(options))
        bits = {"linear_bits_per_weight": linear_bits(path)}
        yield model.description() | {"what": "weights"} | bits | weight_errors(options.baseline, path)


def _run_compare(options: argparse.Namespace) -> Iterator[Result]:
    facts = {"model": options.model, **measured_here(), "notes": options.note}
    options.out.write_text(json_text(facts | compare(read_results(options.results))), encoding="utf-8")
    yield from ()


def _run_page(options: argparse.Namespace) -> Iterator[Result]:
    text = options.page.read_text(encoding="utf-8")
    for path in options.comparisons:
        text = with_comparison(text, path.stem, read_comparison(path))
    options.page.write_text(text, encoding="utf-8")
    yield from ()


def _run_report(options: argparse.Namespace) -> Iterator[Result]:
    asked = ReportOptions(
        source=options.source,
        text=options.text,
        windows=options.windows,
        context=options.context,
        work=options.work,
        hellaswag=options.hellaswag,
        tasks=options.tasks,
        threads=options.threads,
        variants=_variants(options.only),
    )
    paths = [options.source, *([options.hellaswag] if options.hellaswag else [])]
    with _journal(options, paths, read_text(options.text)) as journal:
        result = make_report(asked, journal, _bar)
        if options.out is not None:
            options.out.write_text(json_text(result), encoding="utf-8")
        if options.page is not None:
            names = [path.name for path in draw(result, options.page.parent / "plots")]
            plots = "\n".join(f"![{name}](plots/{name})" for name in names)
            page = with_report(options.page.read_text(encoding="utf-8"), result, plots)
            options.page.write_text(page, encoding="utf-8")
    if options.out is None:
        yield result


def _variants(only: str | None) -> list[Options]:
    wanted = only.split(",") if only else [""]
    found = [variant for variant in VARIANTS if any(f" {text}" in f" {label(variant)}" for text in wanted)]
    if not found:
        raise EvalError(f"--only {only}: none of {', '.join(map(label, VARIANTS))}")
    return found


def _check_same_tokens(baseline: OpenModel, model: OpenModel, text: str) -> None:
    sample = text[:20000]
    if baseline.tokenizer().encode(sample).ids != model.tokenizer().encode(sample).ids:
        raise EvalError(f"{model.path}: its tokenizer is not that of the baseline {baseline.path}")


def _model_options(options: argparse.Namespace) -> ModelOptions:
    return ModelOptions(options.threads, options.compute_type, options.kv_type)


def _text_facts(options: argparse.Namespace, windows: int) -> Result:
    return {"what": options.what, "text": options.text.name, "context": options.context, "windows": windows}


@contextmanager
def _journal(options: argparse.Namespace, paths: Sequence[Path], content: str) -> Iterator[Journal]:
    """The results so far of a run with these options; kept if the block fails, removed when the run is complete."""
    asked = {key: str(value) for key, value in vars(options).items() if key not in ("run", "json", "threads")}
    digest = hashlib.sha256(content.encode()).hexdigest()
    journal = Journal([asked, digest, [file_state(path) for path in paths]])
    yield journal
    journal.complete()


@contextmanager
def _bar(total: int, label: str, unit: str = "window") -> Iterator[Callable[[], object]]:
    with tqdm(total=total, desc=label, unit=unit, file=sys.stderr, dynamic_ncols=True) as bar:
        yield bar.update


def _table(result: Result, indent: str = "") -> str:
    """A result as lines of text, nested ones indented; without the outcomes of single tasks and windows."""
    lines = []
    for key, value in result.items():
        if key in ("right", "by_window"):
            continue
        if isinstance(value, dict):
            lines += [f"{indent}{key}:", _table(value, indent + "  ")]
        else:
            shown = f"{value:.6g}" if isinstance(value, float) else value
            lines.append(f"{indent}{key:<{24 - len(indent)}} {shown}")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
