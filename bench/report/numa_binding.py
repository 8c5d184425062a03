"""The section about NUMA: the same engine bound to cores and memory in three ways. On one node nothing is measured."""

import statistics
from collections.abc import Mapping
from typing import Any, Final

from bench.report.placement import Ask, answers, three_ways
from bench.report.published import ACROSS_NODES, LABEL
from bench.report.response_times import fitting
from bench.report.section import NotMeasuredError, Result, Section, Setup
from bench.report.texts import milliseconds
from bench.report.view import Bars, Table, View
from kernels import _native

PROMPT_TOKENS, NEW_TOKENS = 1024, 64
WEIGHT_MEMORY: Final = "huge_pages"
"""The process' own copy of the weights: a mapped file stays where it was first read, whatever the policy."""


def _ask(setup: Setup) -> Ask:
    prompts, outputs = fitting(setup.subject.context_tokens, (128, PROMPT_TOKENS), (NEW_TOKENS,))
    if not prompts:
        raise NotMeasuredError(f"the model's context of {setup.subject.context_tokens} tokens is too short")
    return Ask(max(prompts), max(outputs))


def measure(setup: Setup) -> Result:
    """First and next token by binding. Raises NotMeasuredError, QuantError, RuntimeError."""
    if len(setup.nodes) < 2:
        raise NotMeasuredError("this machine has one NUMA node: there is no other memory to bind to")
    if not _native.may_bind_memory():
        raise NotMeasuredError(
            "this process may not bind memory: the container refuses set_mempolicy and mbind (capability SYS_NICE, or a"
            " seccomp profile, allows them)"
        )
    ask = _ask(setup)
    rows = []
    for placement in three_ways(setup.nodes, setup.options.threads):
        setup.tell(placement.name)
        found = answers(setup.subject.served(), placement, [ask], repeats=setup.repeats, weight_memory=WEIGHT_MEMORY)
        (rounds,) = found.times_s
        rows.append(
            {
                "name": placement.name,
                "cpus": list(placement.cpus),
                "memory_nodes": list(placement.memory_nodes),
                "first_token_s": statistics.median(times[0] for times in rounds),
                "next_token_s": statistics.median((times[-1] - times[0]) / (len(times) - 1) for times in rounds),
            }
        )
    return {"prompt": ask.prompt_tokens, "output": ask.new_tokens, "rows": rows}


def view(result: Mapping[str, Any]) -> View:
    """Bars by binding, and their ratios to one node."""
    rows = result["rows"]
    names = [_in_lines(row["name"]) for row in rows]
    charts = [
        Bars(
            title=title,
            y_label="ms",
            categories=names,
            series={"this model": [row[key] * 1e3 for row in rows]},
        )
        for title, key in (("First token", "first_token_s"), ("Next token", "next_token_s"))
    ]
    local = rows[0]
    table = Table(
        caption=f"{result['prompt']:,} tokens of prompt, {result['output']} of output, {len(local['cpus'])} threads",
        columns=["binding", "first token, ms", "over one node", "next token, ms", "over one node"],
        rows=[
            [
                row["name"],
                milliseconds(row["first_token_s"]),
                f"{row['first_token_s'] / local['first_token_s']:.2f}",
                milliseconds(row["next_token_s"]),
                f"{row['next_token_s'] / local['next_token_s']:.2f}",
            ]
            for row in rows
        ],
    )
    sentence = f"{LABEL[0].upper()}{LABEL[1:]} (other model, hardware and engine): across nodes, {ACROSS_NODES}."
    return View(sentences=[sentence], charts=charts, tables=[table])


def _in_lines(name: str) -> str:
    """Breaks a name into lines for a bar's label."""
    return name.replace(", ", ",\n") if "," in name else name.replace(" of ", "\nof ")


SECTION = Section(
    "numa",
    "First and next token by NUMA binding",
    "The same number of pinned threads three times: on one node with its memory, on one node with another node's"
    " memory, and spread over all nodes with memory that takes turns on them. The weights are copied to the bound"
    " memory.",
    measure,
    view,
    lambda setup: (
        1.0
        if len(setup.nodes) < 2
        else 3 * (5.0 + (setup.repeats + 1) * setup.pace.answer_s(PROMPT_TOKENS, NEW_TOKENS))
    ),
)
