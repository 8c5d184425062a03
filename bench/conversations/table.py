"""A result of `redoubt bench conversations` as Markdown. Does not measure."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

AIM: Final = 4.0
"""How many times llama.cpp's requests a second ours shall be, on conversations that arrive at random."""
AIMED: Final = ("llama_cpp", "llama_cpp_native")
"""The servers that the aim is about."""
_COLUMNS = (
    *("server", "requests/s", "tokens/s", "first token p50, p95, p99 (s)", "time per token p50, p95, p99 (ms)"),
    *("event gap p99 (ms)", "failed", "promise kept"),
)


def table(result: Mapping[str, Any]) -> str:
    """The table, our ratios, what was sent, and how each server ran."""
    lines = [*_found_rates(result), *_rounds(result)]
    load, data, slo = result["load"], result["data"], result["promise"]
    arrivals = f"{load['rate']} arrive a second at random" if load["rate"] else f"{load['at_once']} at once"
    if result.get("found_rates"):
        arrivals = f"{load['at_once']} at once in the closed loop, then at random"
    lines += [
        "",
        f"{result['model']}: {load['conversations']} conversations a round, {load['rounds']} "
        f"{'searches' if result.get('found_rates') else 'rounds'}, {arrivals}; "
        f"prompts of {data['prompt_tokens_median']:.0f} and answers of {data['answer_tokens_median']:.0f} tokens "
        f"(medians). {_where(result)}.",
        f"Promise: the first token within {slo['first_token_s']:g} s and a token each "
        f"{1000 * slo['token_s']:g} ms, for {slo['share']:.0%} of the requests.",
        f"`{result['command']}`",
        "",
    ]
    lines += [f"- Note: {note}." for note in result.get("notes", ())]
    lines += [
        f"- {name}: {about.get('version', about.get('url'))}; {about.get('settings', about.get('model'))}"
        f"{'; ' + about['build'] if 'build' in about else ''}"
        for name, about in result["servers"].items()
    ]
    lines += [f"- {name} is missing: {reason.strip().splitlines()[0]}" for name, reason in result["missing"].items()]
    return "\n".join(lines)


def _where(result: Mapping[str, Any]) -> str:
    """The machine and the code; of a service at a URL the client's machine alone."""
    if "client_cpu" in result:
        return f"The client ran on {result['client_cpu']}; the service's machine is not known here"
    return f"{result['cpu']}, {result['threads']} threads, commit {result['commit']}"


def _rounds(result: Mapping[str, Any]) -> list[str]:
    if not result["rounds"]:
        return []
    lines = [f"| {' | '.join([*_COLUMNS, 'our requests/s over its'])} |", f"|{' --- |' * (len(_COLUMNS) + 1)}"]
    for name, rounds in result["rounds"].items():
        rates = spreads(rounds)
        found = result["all_rounds"][name]
        ratio = (result["ratios"].get(name) or {}).get("requests_per_s")
        cells = [
            name,
            spread(rates["requests_per_s"], "{:.2f}"),
            spread(rates["tokens_per_s"], "{:.1f}"),
            three(found, "first_token", 1, "{:.2f}"),
            three(found, "token", 1000, "{:.0f}"),
            number(found["event_gap_p99_s"], 1000, "{:.0f}"),
            str(sum(one["requests"] - one["completed"] for one in rounds)),
            f"{sum(one['promise']['kept'] for one in rounds)} of {len(rounds)} rounds",
            over(name, ratio, is_saturated=is_saturated(result)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _found_rates(result: Mapping[str, Any]) -> list[str]:
    found = result.get("found_rates") or {}
    if not found:
        return []
    lines = [
        "| server | conversations/s that keep the promise | ours over its | one at a time, requests/s "
        "| closed loop, requests/s | each search: found, its probes |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, one in found.items():
        first = one["searches"][0]
        loops = [first[loop]["requests_per_s"] if loop in first else None for loop in ("one_at_a_time", "closed_loop")]
        alone, closed = (number(rate, 1, "{:.2f}") for rate in loops)
        rate, ratio = spread(one["conversations_per_s"], "{:.2f}"), over(name, one.get("ours_over_its"))
        searches = "; ".join(map(_search, one["searches"]))
        lines.append(f"| {name} | {rate} | {ratio} | {alone} | {closed} | {searches} |")
    lines.append("")
    for name, one in found.items():
        for number_of_search, search in enumerate(one["searches"], start=1):
            if search["not_reached"]:
                lines.append(f"- {name}, search {number_of_search}: {search['not_reached']}.")
        if one.get("compared", len(one["searches"])) < len(one["searches"]):
            lines.append(f"- {name}: ours over its is of {one['compared']} of {len(one['searches'])} searches.")
        repeated = one["searches"][-1]["conversations_repeated"]
        if repeated:
            lines.append(f"- {name}: {repeated} conversations were sent again, for lack of others.")
    return lines


def _search(one: Mapping[str, Any]) -> str:
    probes = ", ".join(f"{p['rate']:.2f} {'kept' if p['kept'] else 'broken'}" for p in one["probes"])
    return f"{one['conversations_per_s']:.2f} ({probes or '-'})"


def spreads(rounds: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """The rates of some rounds, each as median and extremes."""
    found = {name: [one[name] for one in rounds] for name in ("requests_per_s", "tokens_per_s")}
    return {
        name: {"median": statistics.median(some), "lowest": min(some), "highest": max(some)}
        for name, some in found.items()
    }


def spread(found: Mapping[str, float], form: str) -> str:
    """A median with its extremes."""
    return f"{form.format(found['median'])} ({form.format(found['lowest'])} to {form.format(found['highest'])})"


def is_saturated(result: Mapping[str, Any]) -> bool:
    """Whether servers had as much to do as they could. At a rate that both keep up with, both do the same."""
    return not result["load"]["rate"]


def over(name: str, ratio: Mapping[str, float] | None, *, is_saturated: bool = True) -> str:
    """Our rate over a server's; with the aim where there is one, and bold where it is missed."""
    if ratio is None:
        return ""
    text = spread(ratio, "{:.2f}")
    return aimed(ratio["median"], f"{text}, aim {AIM:g}") if name in AIMED and is_saturated else text


def aimed(ratio: float, text: str) -> str:
    """The text, bold where the ratio misses the aim."""
    return text if ratio >= AIM else f"**{text}**"


def three(found: Mapping[str, float | None], name: str, factor: float, form: str) -> str:
    """Median, 95 % and 99 % of a time of `figures.pooled`, as `number` writes them."""
    return ", ".join(number(found[f"{name}_{p}_s"], factor, form) for p in ("p50", "p95", "p99"))


def number(value: float | None, factor: float, form: str) -> str:
    """factor times the value in this form; "-" where there is none."""
    return "-" if value is None else form.format(factor * value)
