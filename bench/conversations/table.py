"""A result of `redoubt bench conversations` as Markdown. Does not measure."""

from collections.abc import Mapping
from typing import Any

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
        load, arrivals = {**load, "rounds": 1}, f"{load['at_once']} at once in the closed loop, then at random"
    lines += [
        "",
        f"{result['model']}: {load['conversations']} conversations a round, {load['rounds']} rounds, {arrivals}; "
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
        found = result["medians"][name] | result["all_rounds"][name]
        ratio = (result["ratios"].get(name) or {}).get("requests_per_s")
        cells = [
            name,
            number(found["requests_per_s"], 1, "{:.2f}"),
            number(found["tokens_per_s"], 1, "{:.1f}"),
            three(found, "first_token", 1, "{:.2f}"),
            three(found, "token", 1000, "{:.0f}"),
            number(found["event_gap_p99_s"], 1000, "{:.0f}"),
            str(sum(one["requests"] - one["completed"] for one in rounds)),
            f"{sum(one['promise']['kept'] for one in rounds)} of {len(rounds)} rounds",
            "" if ratio is None else f"{ratio['median']} ({ratio['lowest']} to {ratio['highest']})",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _found_rates(result: Mapping[str, Any]) -> list[str]:
    found = result.get("found_rates") or {}
    if not found:
        return []
    lines = [
        "| server | conversations/s that keep the promise | broken at | one at a time, requests/s "
        "| closed loop, requests/s | probes |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, one in found.items():
        probes = ", ".join(f"{p['rate']:.2f} {'kept' if p['kept'] else 'broken'}" for p in one["probes"])
        loops = [one[loop]["requests_per_s"] if loop in one else None for loop in ("one_at_a_time", "closed_loop")]
        alone, closed = (number(rate, 1, "{:.2f}") for rate in loops)
        broken = number(one["broken_at"], 1, "{:.2f}")
        lines.append(f"| {name} | {one['conversations_per_s']:.2f} | {broken} | {alone} | {closed} | {probes or '-'} |")
    lines.append("")
    for name, one in found.items():
        if one["not_reached"]:
            lines.append(f"- {name}: {one['not_reached']}.")
        if one["conversations_repeated"]:
            lines.append(
                f"- {name}: {one['conversations_repeated']} conversations were sent again, for lack of others."
            )
    return lines


def three(found: Mapping[str, float | None], name: str, factor: float, form: str) -> str:
    """Median, 95 % and 99 % of a time of `figures.pooled`, as `number` writes them."""
    return ", ".join(number(found[f"{name}_{p}_s"], factor, form) for p in ("p50", "p95", "p99"))


def number(value: float | None, factor: float, form: str) -> str:
    """factor times the value in this form; "-" where there is none."""
    return "-" if value is None else form.format(factor * value)
