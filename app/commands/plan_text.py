"""Prints a plan for a terminal: short tables, and sentences for the rest."""

from collections.abc import Iterable
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from app.capacity.demand import Demand
from app.capacity.drafts import DraftPlan
from app.capacity.machine import Machine
from app.capacity.plan import Plan, Speed
from app.capacity.shares import measured_on, measured_types
from app.capacity.traffic import Slo
from app.capacity.users import MOST_RUNNING, Users

_LIMITS: Final = {"places": f"places, as no worker is planned with more than {MOST_RUNNING} answers at once"}


def rate(value: float) -> str:
    """Formats tokens per second with few digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def size(size_bytes: float) -> str:
    """Formats bytes with a unit."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes / 1e3:.0f} kB"


def _weights(demand: Demand) -> str:
    """How many weights a token is multiplied with, and of how many."""
    if not demand.matrices.experts:
        return f"{demand.weights / 1e9:.2f} B weights in a step"
    return f"{demand.weights / 1e9:.2f} B of {demand.all_weights / 1e9:.2f} B weights for a token"


def print_plan(plan: Plan, console: Console) -> None:
    demand, machine, memory = plan.demand, plan.machine, plan.memory
    many = f"{machine.nodes} workers (NUMA nodes)" if machine.nodes > 1 else "1 worker (NUMA node)"
    console.print(
        f"{escape(demand.name)}: {_weights(demand)}, {demand.matrices.type_name},"
        f" {size(demand.weight_bytes)}; a token of KV cache takes {size(memory.kv_bytes_per_token)} ({plan.kv_type})"
        + (f", and an answer's states {size(memory.state_bytes_per_answer)}" if demand.states.layers else "")
    )
    console.print(
        f"{escape(machine.name)}: {many} of {machine.cores_per_node} cores, {machine.tier}; each reads"
        f" {machine.read_bytes_per_s / 1e9:.0f} GB/s and makes {machine.macs_per_s / 1e12:.2f} T multiply-adds/s"
        f" ({'measured' if machine.is_measured else 'computed from the table'})"
    )
    console.print()
    _print_speeds(plan.speeds, machine.nodes, console)
    console.print(
        f"Memory of {size(memory.total_bytes)}: weights {size(memory.weight_bytes)}, service"
        f" {size(memory.service_bytes)}, and up to {size(memory.kv_bytes_per_worker)} of KV cache a worker:"
        f" {memory.kv_tokens_per_worker:,} tokens, {memory.answers_per_worker:,} answers at once."
    )
    if plan.draft is not None:
        _print_draft(plan.draft, plan.kv_type, console)
    _print_users(plan, console)
    if plan.wanted_users is not None:
        _print_candidates(plan, console)
    unmeasured = "" if plan.is_type_measured else f" {demand.matrices.weight_type} weights were not: this is a guess."
    if demand.matrices.experts:
        unmeasured += " Models with experts were not: of their steps this is a guess."
    if demand.states.layers:
        unmeasured += " Nor were layers of Gated DeltaNet."
    console.print(
        f"\nExpected: our shares of the machine's rates on {plan.shares_of}, measured with"
        f" {' and '.join(measured_types())} weights on {measured_on()}.{unmeasured}",
        style="dim",
    )
    console.print(f"Rates: {escape(machine.source)}.", style="dim")


def _print_speeds(speeds: Iterable[Speed], nodes: int, console: Console) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("tokens a second of a worker")
    for title in ("best possible", "limit", "expected", "limit"):
        table.add_column(title, justify="right" if "limit" not in title else "left")
    table.add_column("each", justify="right")
    if nodes > 1:
        table.add_column("whole machine", justify="right")
    for speed in speeds:
        is_prompt = speed.work == "prompt"
        name = f"prompt of {speed.context_tokens:,}"
        if not is_prompt:
            plural = "answer" if speed.streams == 1 else "answers"
            name = f"{speed.streams} {plural} at {speed.context_tokens:,}"
        cells = [
            name,
            rate(speed.best_tokens_per_s),
            speed.best_limit,
            rate(speed.expected_tokens_per_s),
            speed.expected_limit,
            f"{speed.context_tokens / speed.expected_tokens_per_s:.2f} s" if is_prompt
            else rate(speed.expected_tokens_per_s / speed.streams),
        ]  # fmt: skip
        table.add_row(*cells, *([rate(speed.expected_tokens_per_s * nodes)] if nodes > 1 else []))
    console.print(table)
    console.print()


def _print_draft(draft: DraftPlan, kv_type: str, console: Console) -> None:
    speeds = []
    for speed in draft.speeds:
        answers = f"{speed.streams} answer{'s' if speed.streams > 1 else ''} at once"
        gain = f"{rate(speed.expected_tokens_per_s)} tokens/s, {speed.gain:.2f} times as many as without"
        speeds.append(f"{answers} {gain}" if speed.draft_tokens else f"{answers} as without")
    console.print(
        f"{escape(draft.name)} drafts: {size(draft.weight_bytes)} of those weights are its, and a token's keys take"
        f" {size(draft.kv_bytes_per_token)} ({kv_type}) beside engine.kv_memory_bytes. If {draft.right_share:.0%} of"
        f" drafts are right: {'; '.join(speeds)}. The users below have room for it, but not that speed."
    )


def _print_users(plan: Plan, console: Console) -> None:
    traffic, slo, users = plan.traffic, plan.promise, plan.users
    console.print(
        f"A user sends a request every {traffic.seconds_between:g} s: {traffic.prompt_tokens} new tokens,"
        f" {traffic.context_tokens:,} of history, an answer of {traffic.answer_tokens} (medians). Promise: first token"
        f" under {slo.first_token_s:g} s and {slo.token_s * 1e3:g} ms a token, both for"
        f" {slo.share:.0%} of requests."
    )
    limit = _LIMITS.get(users.limit, users.limit)
    if not users.users:
        console.print(f"[bold]No user[/bold] gets that promise: {_why_nobody(users, slo)}. What limits: {limit}.")
        return
    workers = f", in {plan.machine.nodes} workers" if plan.machine.nodes > 1 else ""
    more = "more than " if users.is_more else ""
    console.print(
        f"[bold]{more}{users.users:,} users[/bold]{workers} ({users.requests_per_s:.2g} requests/s). What limits:"
        f" {limit}. Up to {users.running_per_worker} answers at once in a worker; {users.history_share:.0%} of"
        " histories are still in the cache."
    )
    settings = ", ".join(f"{name} {value}" for name, value in users.settings.items())
    together = "; and memory.folder, so that users stay with their worker" if plan.machine.nodes > 1 else ""
    console.print(f"They need these settings: {settings} (a worker's){together}.")


def _why_nobody(users: Users, slo: Slo) -> str:
    """Which part of the SLO a single user already breaks."""
    if not users.running_per_worker:
        return "not even one request fits into the memory"
    if users.long_prompt_s > slo.first_token_s:
        return (
            f"one alone breaks it; a prompt of {users.long_prompt_tokens} tokens, as 1 of 20 is, takes"
            f" {users.long_prompt_s:.1f} s in an idle worker"
        )
    if users.token_s > slo.token_s:
        return f"one alone breaks it; a token of one answer alone takes {users.token_s * 1e3:.0f} ms"
    return "one alone breaks it, because its requests come faster than they are answered"


def _print_candidates(plan: Plan, console: Console) -> None:
    verdict = "serves" if plan.serves_wanted else "does not serve"
    console.print(f"This machine [bold]{verdict}[/bold] {plan.wanted_users:,} users.")
    yes = [candidate.title for candidate in plan.candidates if candidate.serves]
    no = len(plan.candidates) - len(yes)
    if not yes:
        console.print(f"None of the {no} machines of the table does: take a smaller model, or several machines.")
        return
    console.print(f"{len(yes)} machines of the table do ({no} do not): {escape(', '.join(yes))}.")


def print_known(
    models: Iterable[tuple[str, Demand]], machines: Iterable[tuple[str, Machine]], console: Console
) -> None:
    """Prints the shapes and machines that a plan may name."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("shape", "weights", "memory", "longest context"):
        table.add_column(title, justify="left" if title == "shape" else "right")
    for name, demand in models:
        weights = f"{demand.weights / 1e9:.2f} B"
        table.add_row(name, weights, size(demand.weight_bytes), f"{demand.context_tokens:,}")
    console.print(table)
    console.print()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("machine", "cores", "tier", "reads", "multiply-adds"):
        table.add_column(title, justify="left" if title in ("machine", "tier") else "right")
    for name, machine in machines:
        table.add_row(
            name, f"{machine.cores_per_node}", machine.tier, f"{machine.read_bytes_per_s / 1e9:.0f} GB/s",
            f"{machine.macs_per_s / 1e12:.1f} T/s",
        )  # fmt: skip
    console.print(table)
    console.print("\nOr a model's folder or GGUF, and --machine this, a file, or 2x-NAME for two sockets.")
