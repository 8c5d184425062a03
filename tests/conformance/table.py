"""Writes results.json as a table into docs/agents.md. Knows nothing of how the clients ran."""

import json
import re
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results.json"
_BEGIN, _END = "<!-- conformance: written by `make conformance` -->", "<!-- /conformance -->"


def with_table(page: str) -> str:
    """The page with the table of `results.json` between its marks. Raises ValueError if they are not there."""
    clients = json.loads(RESULTS.read_text())["clients"]
    lines = ["| client | passed | prompt | not expected to pass |", "| --- | --- | ---: | --- |", *map(_row, clients)]
    written, found = re.subn(
        f"{re.escape(_BEGIN)}.*?{re.escape(_END)}",
        lambda _: "\n".join([_BEGIN, "", *lines, "", _END]),
        page,
        flags=re.DOTALL,
    )
    if found != 1:
        raise ValueError("the page has no place for the table")
    return written


def _row(client: dict[str, Any]) -> str:
    versions = ", ".join(f"`{package}` {version}" for package, version in client["versions"].items())
    total = client["passed"] + len(client["failed"])
    reasons: dict[str, list[str]] = {}
    for name, reason in {**client["expected_failures"], **client["skipped"]}.items():
        reasons.setdefault(reason.split("\n")[0], []).append(f"`{name}`")
    others = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
    failed = f"; failed: {', '.join(client['failed'])}" if client["failed"] else ""
    prompt = f"{client['prompt_tokens']:,}" if "prompt_tokens" in client else ""
    return f"| {versions} | {client['passed']} of {total}{failed} | {prompt} | {others or 'nothing'} |"
