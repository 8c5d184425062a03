"""Two sections about one answer at a time, by the bare engine: response time by length, each token of a long one."""

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from bench.report.placement import Answers, Ask, answers, on_one_node
from bench.report.published import FIRST_TOKEN_S, LABEL, NEW_TOKENS, NEXT_TOKEN_S, PROMPT_TOKENS, RESPONSE_S
from bench.report.section import NotMeasuredError, Result, Section, Setup
from bench.report.texts import milliseconds, number
from bench.report.view import Lines, Table, View
from kernels import _native

PROMPTS: Final = (32, 256, 1024, 2048)
OUTPUTS: Final = (32, 128, 256)
LONG_PROMPT, LONG_OUTPUT = 128, 1024
QUICK_OUTPUT: Final = 256
SPARE_TOKENS: Final = 32
"""Tokens of the model's context that stay free."""


def fitting(context_tokens: int, prompts: Sequence[int], outputs: Sequence[int]) -> tuple[list[int], list[int]]:
    """The prompts and outputs that fit a context together; both empty if none do."""
    room = context_tokens - SPARE_TOKENS
    kept = [new for new in outputs if min(prompts) + new <= room]
    return ([prompt for prompt in prompts if prompt + max(kept) <= room], kept) if kept else ([], [])


def _measured(setup: Setup, asks: Sequence[Ask]) -> Answers:
    placement = on_one_node(setup.nodes, setup.options.threads, may_bind=_native.may_bind_memory())
    return answers(setup.subject.served(), placement, asks, repeats=setup.repeats)


def _grid(setup: Setup) -> tuple[list[int], list[int]]:
    prompts, outputs = (PROMPTS[:3], OUTPUTS[:2]) if setup.options.quick else (PROMPTS, OUTPUTS)
    return fitting(setup.subject.context_tokens, prompts, outputs)


def measure_grid(setup: Setup) -> Result:
    """Seconds by prompt and output length. Raises NotMeasuredError, QuantError, RuntimeError."""
    prompts, outputs = _grid(setup)
    if not prompts:
        raise NotMeasuredError(f"the model's context of {setup.subject.context_tokens} tokens has no room for the grid")
    found = _measured(setup, [Ask(prompt, max(outputs)) for prompt in prompts])
    rows = []
    for prompt, rounds in zip(prompts, found.times_s, strict=True):
        response_s = {str(new): round(statistics.median(times[new - 1] for times in rounds), 5) for new in outputs}
        first_s = statistics.median(times[0] for times in rounds)
        next_s = statistics.median((times[-1] - times[0]) / (len(times) - 1) for times in rounds)
        rows.append({"prompt": prompt, "first_token_s": first_s, "next_token_s": next_s, "response_s": response_s})
    return {"outputs": outputs, "repeats": setup.repeats, "threads": setup.options.threads, "rows": rows}


def view_grid(result: Mapping[str, Any]) -> View:
    """A line for each output length over the prompt's, and the grid."""
    rows, outputs = result["rows"], result["outputs"]
    series = {
        f"{new} tokens of output": [(row["prompt"], row["response_s"][str(new)]) for row in rows] for new in outputs
    }
    first = {"first token": [(row["prompt"], row["first_token_s"]) for row in rows]}
    next_ms = {"next token": [(row["prompt"], row["next_token_s"] * 1e3) for row in rows]}
    x_label = "tokens of the prompt"
    charts = [
        Lines(title="Response time", x_label=x_label, y_label="seconds", series={**series, **first}, log_x=True),
        Lines(title="From one token to the next", x_label=x_label, y_label="ms", series=next_ms, log_x=True),
    ]
    grid = Table(
        caption="Seconds from the request to the last token",
        columns=["prompt, tokens", "first token, s", "next token, ms", *(f"{new} tokens, s" for new in outputs)],
        rows=[
            [
                f"{row['prompt']:,}", number(row["first_token_s"]), milliseconds(row["next_token_s"]),
                *(number(row["response_s"][str(new)]) for new in outputs),
            ]
            for row in rows
        ],
    )  # fmt: skip
    return View(sentences=[_published()], charts=charts, tables=[grid])


def _published() -> str:
    label = LABEL[0].upper() + LABEL[1:]
    return (
        f"{label} (other model, hardware and engine): first token {FIRST_TOKEN_S * 1e3:,.0f} ms,"
        f" next token {NEXT_TOKEN_S * 1e3:.0f} ms with {PROMPT_TOKENS:,} tokens in and {NEW_TOKENS} out, so"
        f" about {RESPONSE_S:.0f} s for the response."
    )


def _long_ask(setup: Setup) -> Ask:
    wanted = QUICK_OUTPUT if setup.options.quick else LONG_OUTPUT
    room = setup.subject.context_tokens - SPARE_TOKENS - LONG_PROMPT
    if room < 16:
        raise NotMeasuredError(f"the model's context of {setup.subject.context_tokens} tokens is too short")
    return Ask(LONG_PROMPT, min(wanted, room))


def measure_tokens(setup: Setup) -> Result:
    """The time of each token of one answer. Raises NotMeasuredError, QuantError, RuntimeError."""
    ask = _long_ask(setup)
    (rounds,) = _measured(setup, [ask]).times_s
    times = rounds[-1]
    intervals_s = [after - before for before, after in pairwise(times)]
    return {
        "prompt": ask.prompt_tokens,
        "threads": setup.options.threads,
        "first_token_s": times[0],
        "interval_s": [round(taken_s, 7) for taken_s in intervals_s],
        **{f"p{percent}_s": percentile(intervals_s, percent) for percent in (50, 90, 99)},
        "longest_s": max(intervals_s),
    }


def percentile(values: Sequence[float], percent: int) -> float:
    """The smallest value that so many percent of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def view_tokens(result: Mapping[str, Any]) -> View:
    """A line over the token's number."""
    intervals_ms = [taken_s * 1e3 for taken_s in result["interval_s"]]
    chart = Lines(
        title="Time of each token after the first",
        x_label="number of the token in the answer",
        y_label="ms since the token before",
        series={"token": [(number_of + 2, taken_ms) for number_of, taken_ms in enumerate(intervals_ms)]},
        levels={"p50": result["p50_s"] * 1e3, "p99": result["p99_s"] * 1e3},
        is_dense=True,
    )
    columns = ["", "first token", "next token: p50", "p90", "p99", "longest"]
    figures = [result[key] for key in ("first_token_s", "p50_s", "p90_s", "p99_s", "longest_s")]
    row = ["ms", *(milliseconds(figure_s) for figure_s in figures)]
    table = Table(caption=f"One answer of {len(intervals_ms) + 1:,} tokens", columns=columns, rows=[row])
    return View(charts=[chart], tables=[table])


def _expected_grid_s(setup: Setup) -> float:
    prompts, outputs = _grid(setup)
    once = sum(setup.pace.answer_s(prompt, max(outputs)) for prompt in prompts)
    return 3.0 + (setup.repeats + 1) * once


def _expected_tokens_s(setup: Setup) -> float:
    long = QUICK_OUTPUT if setup.options.quick else LONG_OUTPUT
    return 3.0 + (setup.repeats + 1) * setup.pace.answer_s(LONG_PROMPT, long)


GRID = Section(
    "lengths",
    "Response time by length of prompt and answer",
    "One request at a time to the bare engine, without HTTP and text: random tokens as the prompt, and a greedy"
    " answer that goes on whatever it says. A response of n tokens lasts until the n-th token; medians of"
    " the rounds after a first one.",
    measure_grid,
    view_grid,
    _expected_grid_s,
)
TOKENS = Section(
    "tokens",
    "The time of each token of one long answer",
    f"One request with a prompt of {LONG_PROMPT} tokens to the bare engine: the time between each token and the one"
    " before it, in the last round.",
    measure_tokens,
    view_tokens,
    _expected_tokens_s,
)
