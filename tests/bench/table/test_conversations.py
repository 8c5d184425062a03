import json
from pathlib import Path
from typing import Any

import pytest

from bench.table.conversations import details, read_conversations, short_table
from bench.table.results import ResultsError


def figures(requests_per_s: float, first_s: float) -> tuple[dict[str, float], dict[str, float]]:
    times = {f"first_token_{p}_s": first_s for p in ("p50", "p95", "p99")}
    times |= {f"token_{p}_s": 0.02 for p in ("p50", "p95", "p99")}
    return {"requests_per_s": requests_per_s, "tokens_per_s": 200 * requests_per_s}, times


def result(**change: Any) -> dict[str, Any]:
    servers = {"redoubt": figures(3.0, 0.5), "llama_cpp": figures(0.5, 4.0), "llama_cpp_native": figures(0.6, 4.0)}

    def ratio(name: str) -> dict[str, Any]:
        over, wait = 3.0 / servers[name][0]["requests_per_s"], servers[name][1]["first_token_p99_s"] / 0.5
        return {
            "requests_per_s": {"median": over, "lowest": over, "highest": over},
            "first_token_p99": {"median": wait, "lowest": wait, "highest": wait},
        }

    return {
        "model": "embedded",
        "machine": {"name": "Zen 4"},
        "threads": 2,
        "commit": "abcdef0123456",
        "measured_at": "2026-02-01T00:00:00+00:00",
        "load": {"rate": None, "at_once": 16, "rounds": 2, "conversations": 48},
        "data": {"prompt_tokens_median": 46.0, "answer_tokens_median": 237.0},
        "servers": {"redoubt": {"version": "this commit", "settings": "16 at once"}},
        "missing": {"vllm_cpu": "no memory"},
        "medians": {name: rates for name, (rates, _) in servers.items()},
        "all_rounds": {name: times for name, (_, times) in servers.items()},
        "ratios": {name: ratio(name) for name in ("llama_cpp", "llama_cpp_native")},
        "found_rates": {},
        **change,
    }


def write(folder: Path, name: str, value: dict[str, Any]) -> None:
    (folder / f"conversations-{name}.json").write_text(json.dumps(value))


def test_a_run_is_a_line_over_the_faster_build_of_each_peer(tmp_path: Path) -> None:
    write(tmp_path, "a", result())
    write(tmp_path, "b", result(ratios={"redoubt_kv_int8": None}))
    *_, line = short_table(read_conversations(tmp_path)).splitlines()
    assert (
        line == "| 135M, 16 at once (Zen 4, 2 threads; `conversations-a`) | 3.00 | 0.50 | 5.00 |  |  | 8.00 of ours |"
    )


def test_the_details_have_every_server_and_what_is_missing(tmp_path: Path) -> None:
    write(tmp_path, "a", result())
    text = details(read_conversations(tmp_path))
    assert (
        "| conversations-a | 135M, 16 at once | llama.cpp, PyPI's build | 0.50 | 100 | 4.00, 4.00, 4.00 | 20, 20, 20 "
        "| 6.00 (6.00 to 6.00) |"
    ) in text
    assert "vLLM is missing (no memory)." in text
    assert "that keep the promise" not in text


def test_found_rates_are_a_table(tmp_path: Path) -> None:
    none: dict[str, Any] = {"medians": {}, "all_rounds": {}, "ratios": {}}
    write(tmp_path, "a", result(**none, found_rates={"redoubt": {"conversations_per_s": 2.0, "broken_at": None}}))
    assert "| conversations-a | Redoubt | 2.00 | - |" in details(read_conversations(tmp_path))


def test_a_file_without_its_machine_is_named(tmp_path: Path) -> None:
    write(tmp_path, "old", {"model": "embedded"})
    with pytest.raises(ResultsError, match=r"conversations-old\.json is no result"):
        read_conversations(tmp_path)
