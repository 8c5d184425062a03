"""The section about confidentiality: what TLS and attestation cost (`bench.confidential` measures)."""

from collections.abc import Mapping
from typing import Any, Final

from bench.report.pace import SERVICE_START_S
from bench.report.section import NotMeasuredError, Result, Section, Setup
from bench.report.texts import milliseconds, number
from bench.report.view import Bars, Table, View

_PROMPT_TOKENS: Final = 32


def measure(setup: Setup) -> Result:
    """The result of `redoubt bench confidential`. Raises RuntimeError, ValueError, OSError, NotMeasuredError."""
    try:
        from bench.confidential import ConfidentialBenchOptions, in_trust_domain, measure_confidential
    except ModuleNotFoundError as error:
        raise NotMeasuredError(f"this needs the package redoubt-verify: {error}") from error
    quick, policy = setup.options.quick, setup.options.policy
    evidence = "coco" if in_trust_domain() and policy is not None else "soft"
    result = measure_confidential(
        ConfidentialBenchOptions(
            model=setup.subject.served().absolute(),
            threads=setup.options.threads,
            streams=(1, 8),
            prompt=_PROMPT_TOKENS,
            generate=32 if quick else 128,
            repeats=setup.repeats,
            evidence=evidence,
            policy=policy if evidence == "coco" else None,
        )
    )
    return {name: value for name, value in result.items() if name not in ("model", "cpu", "commit")}


def view(result: Mapping[str, Any]) -> View:
    """A table with the published figures beside, and the ratios as bars."""
    published = result["published"]
    rows, names, ours, theirs = [], [], [], []
    for title, plain, attested, known in _pairs(result):
        row = [title, milliseconds(plain), milliseconds(attested), f"{attested / plain:.2f}"]
        if known is None:
            rows.append([*row, "-", "-", "-"])
            continue
        cells = [milliseconds(known[0]), milliseconds(known[1]), f"{known[1] / known[0]:.2f}"]
        rows.append([*row, *cells])
        names.append(title)
        ours.append(attested / plain)
        theirs.append(known[1] / known[0])
    chart = Bars(
        title="Attested over plain (1: no overhead)",
        y_label="ratio",
        categories=names,
        series={"this machine": ours, "published for TDX": theirs},
        decimals=2,
    )
    table = Table(
        caption="Milliseconds, plain and attested",
        columns=["", "plain, ms", "attested, ms", "ratio"],
        rows=rows,
        published=["plain, ms", "TDX, ms", "ratio"],
        note=f"{published['note'][0].upper()}{published['note'][1:].partition(':')[0]}. Both sides of ours are of"
        " this machine.",
    )
    rates = ", ".join(
        f"{n} at a time {number(result['tokens_per_s']['attested'][n])} against {number(rate)} tokens/s"
        for n, rate in result["tokens_per_s"]["plain"].items()
    )
    return View(sentences=[_evidence(result), f"Throughput, attested against plain: {rates}."], charts=[chart],
                tables=[table])  # fmt: skip


def _pairs(result: Mapping[str, Any]) -> list[tuple[str, float, float, list[float] | None]]:
    """The comparisons: name, seconds plain and attested, and the published pair."""
    known = result["published"]
    pairs: list[tuple[str, float, float, list[float] | None]] = [
        ("load the weights", result["load_s"]["folder_copied"], result["load_s"]["sealed"], known["load_s"]),
        ("first token", result["first_token_s"]["plain"], result["first_token_s"]["attested"], known["first_token_s"]),
    ]
    for n, plain_s in result["next_token_s"]["plain"].items():
        title = "next token" if n == "1" else f"next token, {n} at a time"
        theirs = known["next_token_s"] if n == "1" else None
        pairs.append((title, plain_s, result["next_token_s"]["attested"][n], theirs))
    for title, key in (("new connection, verified", "new_connection_ms"), ("request on it", "warm_request_ms")):
        pairs.append((title, result[key]["plain"] / 1e3, result[key]["attested"] / 1e3, None))
    return pairs


def _evidence(result: Mapping[str, Any]) -> str:
    if result["evidence"] == "coco":
        return "Evidence came from the processor: this machine is a trust domain."
    if result["trust_domain"]:
        return "Evidence was soft, signed with a key of our own, though this is a trust domain: give `--policy FILE`."
    return (
        "This machine is no trust domain: evidence was soft, signed with a key of our own, so that encrypted memory and"
        " the processor's own quotes are not among the costs."
    )


SECTION = Section(
    "overhead",
    "Overhead of TLS and attestation",
    "The service through both of its ports in turn: plain HTTP on loopback, and TLS through its front, to a client that"
    " verifies it. Loading is the weights of a folder against those of a sealed model, both into memory of the worker's"
    " own.",
    measure,
    view,
    lambda setup: (
        2 * SERVICE_START_S
        + 10
        + 2 * (setup.repeats + 1) * sum(setup.pace.answers_s(n, 32, 32 if setup.options.quick else 128) for n in (1, 8))
    ),
)
