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
        "promise": {"first_token_s": 3.0, "token_s": 0.2, "share": 0.95},
        "rounds": {name: [rates, rates, {**rates, "requests_per_s": 1.0}] for name, (rates, _) in servers.items()},
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
    head, _, line = short_table(read_conversations(tmp_path)).splitlines()
    assert "| over llama.cpp, aim 4 | over vLLM |" in head
    assert line == (
        "| 135M, 16 at once (Zen 4, 2 threads; `conversations-a`) | 3.00 (1.00 to 3.00) | 0.50 | 5.00 |  |  "
        "| 8.00 of ours |"
    )
    few = result()
    few["rounds"] = {name: some[:2] for name, some in few["rounds"].items()}
    write(tmp_path, "b", few | {"load": {**few["load"], "rate": 2.0}})
    assert "| 135M, 2.0 arriving a second (Zen 4, 2 threads, 2 rounds; `conversations-b`) |" in short_table(
        read_conversations(tmp_path)
    )
    missed = {"requests_per_s": {"median": 3.5, "lowest": 3.4, "highest": 3.6}, "first_token_p99": None}
    write(tmp_path, "a", result(ratios={"llama_cpp": missed, "vllm_cpu": missed}))
    assert "| **3.50** | 3.50 |" in short_table(read_conversations(tmp_path))
    assert "**3.50 (3.40 to 3.60), aim 4** |" in details(read_conversations(tmp_path))
    write(tmp_path, "a", result(ratios={"llama_cpp": missed}, load={**few["load"], "rate": 2.0}))
    read = read_conversations(tmp_path)
    assert "**3.50" not in short_table(read) + details(read)


def test_the_details_have_every_server_and_what_is_missing(tmp_path: Path) -> None:
    write(tmp_path, "a", result())
    text = details(read_conversations(tmp_path))
    assert (
        "| conversations-a | 135M, 16 at once | llama.cpp, PyPI's build | 0.50 (0.50 to 1.00) | 100 (100 to 100) "
        "| 4.00, 4.00, 4.00 | 20, 20, 20 | 6.00 (6.00 to 6.00), aim 4 |"
    ) in text
    assert "vLLM is missing (no memory)." in text
    assert "that keep the promise" not in text


def test_found_rates_are_a_table(tmp_path: Path) -> None:
    none: dict[str, Any] = {"rounds": {}, "medians": {}, "all_rounds": {}, "ratios": {}}
    rate = {"median": 2.0, "lowest": 1.9, "highest": 2.1}
    searches = [{"conversations_per_s": 1.9, "broken_at": 2.0}, {"conversations_per_s": 2.1, "broken_at": None}]
    ours = {"conversations_per_s": rate, "searches": searches}
    found = {"redoubt": ours, "llama_cpp": {**ours, "ours_over_its": rate, "compared": 2}}
    searches.append(searches[0])
    write(tmp_path, "a", result(**none, found_rates=found))
    read = read_conversations(tmp_path)
    text = details(read)
    assert "| Redoubt | 2.00 (1.90 to 2.10) |  | 1.90 kept, 2.00 broken; 2.10 kept, - broken; " in text
    assert "| 2.00 (1.90 to 2.10) | **2.00 (1.90 to 2.10), aim 4**; 2 of 3 searches |" in text
    assert "; the promise: the first token within 3 s and a token each 200 ms for 95%; prompts of 46 tokens" in text
    *_, line = short_table(read).splitlines()
    assert line == (
        "| 135M, arriving at random, promise kept (Zen 4, 2 threads; `conversations-a`) | 2.00 (1.90 to 2.10) |  "
        "| **2.00** |  |  |  |"
    )


def test_one_round_or_search_is_not_published(tmp_path: Path) -> None:
    write(tmp_path, "a", result(rounds={"redoubt": [{}, {}], "llama_cpp": [{}]}))
    with pytest.raises(ResultsError, match=r"conversations-a\.json has a server with one round"):
        read_conversations(tmp_path)
    write(tmp_path, "a", result(rounds={}, found_rates={"redoubt": {"searches": [{}]}}))
    with pytest.raises(ResultsError, match="one round"):
        read_conversations(tmp_path)


def test_a_file_without_its_machine_is_named(tmp_path: Path) -> None:
    write(tmp_path, "old", {"model": "embedded"})
    with pytest.raises(ResultsError, match=r"conversations-old\.json is no result"):
        read_conversations(tmp_path)
