"""A report's JSON with every section, for the tests of the page."""

from typing import Any

from bench.confidential import PUBLISHED

GRID_ROW: dict[str, Any] = {"prompt": 32, "first_token_s": 0.05, "next_token_s": 0.01}
RESULTS: dict[str, Any] = {
    "machine": {
        "cpu": "A <CPU>", "tier": "avx2", "logical_cpus": 8, "threads": 4,
        "nodes": [{"node": 0, "cores": 4}, {"node": 1, "cores": 4}], "memory_bytes": 64e9,
        "memory_available_bytes": 60e9, "load_average": 0.1,
        "rates": {"read_bytes_per_s": 31e9, "macs_per_s": 4e11, "instruction": "vnni", "samples": []},
    },
    "types": {
        "is_checkpoint": True, "is_random": False, "exact": "bf16", "text": "a.txt", "windows": 4, "window_tokens": 512,
        "rows": [
            {"qtype": "bf16", "none": "needs about 90.0 GB of memory, 60.0 GB are available"},
            {"qtype": "int8", "file_bytes": 2e8, "conversion_s": 2.0, "load_s": 0.2, "resident_bytes": 3e8,
             "perplexity": 18.5, "perplexity_stderr": 1.2, "tokens": 2044},
            {"qtype": "sym_int4", "file_bytes": 1e8, "conversion_s": 2.5, "load_s": 0.1, "resident_bytes": 2e8,
             "perplexity": 23.9, "perplexity_stderr": 1.5, "tokens": 2044},
        ],
    },
    "lengths": {
        "outputs": [32, 128], "repeats": 3, "threads": 4,
        "rows": [
            {**GRID_ROW, "response_s": {"32": 0.36, "128": 1.32}},
            {**GRID_ROW, "prompt": 1024, "response_s": {"32": 1.3, "128": 2.3}},
        ],
    },
    "tokens": {
        "prompt": 128, "threads": 4, "first_token_s": 0.1, "interval_s": [0.01, 0.011, 0.03], "p50_s": 0.011,
        "p90_s": 0.03, "p99_s": 0.03, "longest_s": 0.03,
    },
    "numa": {
        "prompt": 1024, "output": 64,
        "rows": [
            {"name": "cores and memory of one node", "cpus": [0, 1], "memory_nodes": [0], "first_token_s": 1.0,
             "next_token_s": 0.02},
            {"name": "cores of one node, memory of another", "cpus": [0, 1], "memory_nodes": [1],
             "first_token_s": 1.1, "next_token_s": 0.035},
            {"name": "cores and memory of all nodes", "cpus": [0, 4], "memory_nodes": [0, 1], "first_token_s": 1.05,
             "next_token_s": 0.03},
        ],
    },
    "concurrency": {
        "prompt": 32, "repeats": 3,
        "rows": [
            {"name": "1 worker", "workers": 1, "threads": 4, "new_tokens": 128, "start_s": 9.0, "first_token_s": 0.06,
             "tokens_per_s": {"1": 90.0, "8": 400.0}, "next_token_s": {"1": 0.011, "8": 0.019}},
            {"name": "2 workers, one a node", "workers": 2, "threads": 4, "new_tokens": 128, "start_s": 9.5,
             "first_token_s": 0.06, "tokens_per_s": {"1": 90.0, "8": 780.0}, "next_token_s": {"1": 0.011, "8": 0.01}},
        ],
    },
    "overhead": {
        "trust_domain": False, "evidence": "soft", "published": PUBLISHED,
        "load_s": {"folder": 0.01, "folder_copied": 0.05, "sealed": 0.09},
        "tokens_per_s": {"plain": {"1": 90.0, "8": 400.0}, "attested": {"1": 89.0, "8": 390.0}},
        "first_token_s": {"plain": 0.06, "attested": 0.063},
        "next_token_s": {"plain": {"1": 0.011, "8": 0.019}, "attested": {"1": 0.0111, "8": 0.0195}},
        "new_connection_ms": {"plain": 3.0, "attested": 40.0}, "warm_request_ms": {"plain": 1.0, "attested": 1.2},
    },
}  # fmt: skip
ABOUT: dict[str, Any] = {
    "model": {"name": "a<b>", "family": "llama", "weights": 135_000_000, "context_tokens": 8192, "qtype": "bf16",
              "is_checkpoint": True, "is_random": False, "served": "sym_int4"},
    "cpu": "A <CPU>", "tier": "avx2", "threads": 4, "quick": False, "version": "1.2.3", "commit": "abcdef",
    "date": "2026-01-02 03:04 UTC", "command": "redoubt bench report a --out b",
}  # fmt: skip


def report(**changed: Any) -> dict[str, Any]:
    """All sections measured, but those in `changed`."""
    sections = {name: {"status": "measured", "took_s": 1.0, "result": result} for name, result in RESULTS.items()}
    return {"format": "redoubt-report-1", "identity": "0", "about": ABOUT, "sections": sections | changed}
