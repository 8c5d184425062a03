"""Small comparisons, as `bench.compare` writes them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.work import Work

FACTS = {
    **{"name": "Zen 4", "vendor": "AuthenticAMD", "family": 25, "model": 17, "model_name": "AMD EPYC"},
    **{"flags": ["avx2", "avx512_vnni"], "cores": 2, "memory_bytes": 24 << 30},
}
PROMPT, ONE = "prefill 512", "decode 1 at 128"
WORKS = {PROMPT: Work("prefill", 1, 512, 0), ONE: Work("decode", 1, 128, 32)}


TokenRates = dict[str, dict[str, float | str]]
"""Tokens a second by engine and work; a text is the reason why there are none."""


def comparison(rates: Mapping[str, Mapping[str, float | str]], **changes: Any) -> dict[str, Any]:
    """A result with these figures."""
    works = dict.fromkeys(work for of_engine in rates.values() for work in of_engine)
    ours = rates["redoubt"]
    result = {
        "model": "1.1b", "cpu": "AMD EPYC", "commit": "aaaaaaaaaaaa", "machine": FACTS, "threads": 2,
        "measured_at": "2026-02-03T04:05:06+00:00", "code_at": "2026-02-01T00:00:00+00:00", "command": "redoubt bench",
        "kv_type": ["int16"], "repeats": 2, "rounds_finished": 2, "missing": {}, "crashes": [],
        "limits": {"read_bytes_per_s": 4e10, "macs_per_s": 4.7e11, "instruction": "vnni"},
        "works": {work: {"limit_tokens_per_s": 400.0, "limited_by": "read"} for work in works},
        "engines": {
            engine: {
                "version": f"{engine} 1", "settings": "threads 2, tier x", "load_s": 1.0,
                "results": {
                    work: {"none": rate} if isinstance(rate, str) else {"median": rate, "rounds": [rate, rate]}
                    for work, rate in of_engine.items()
                },
            }
            for engine, of_engine in rates.items()
        },
        "ratios": {
            engine: {
                work: {"of_medians": round(own / rate, 2), "lowest": 1.0, "highest": 9.0, "first": 1.0}
                for work, rate in of_engine.items()
                if not isinstance(rate, str) and not isinstance(own := ours.get(work, ""), str)
            }
            for engine, of_engine in rates.items()
            if engine != "redoubt"
        },
    }  # fmt: skip
    return {**result, **changes}


def write(folder: Path, name: str, result: Mapping[str, Any]) -> Path:
    path = folder / f"compare-{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result))
    return path
