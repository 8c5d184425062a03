import sys
from pathlib import Path

import pytest

from bench.compare import ROOT, Comparison
from bench.work import Work, contender, works

# A contender that needs a second per token, or half of it in its variant "good"; and one that dies at decoding.
PROCESS = """
import sys
from bench.work import About, serve

def measure(work, variant):
    if sys.argv[1] == "mortal" and work.kind == "decode":
        raise SystemExit(3)
    return work.tokens * (0.5 if variant == "good" else 1.0)

variants = ("bad", "good") if sys.argv[1] == "fast" else ("bad",)
serve(About(version="1", settings="none", variants=variants, load_s=2.0), measure)
"""


def command(kind: str) -> list[str]:
    return [sys.executable, "-c", PROCESS, kind]


def test_works_count_their_tokens() -> None:
    prefill, one, eight = works(512, 128, 64, [1, 8])
    assert (prefill.tokens, one.tokens, eight.tokens) == (512, 64, 512)
    assert [work.name for work in (prefill, one, eight)] == ["prefill 512", "decode 1", "decode 8"]


def test_the_best_variant_is_compared_and_a_dead_peer_is_reported() -> None:
    todo = works(10, 5, 4, [1, 2])
    with (
        contender("ours", command("fast"), ROOT) as ours,
        contender("slow", command("slow"), ROOT) as slow,
        contender("mortal", command("mortal"), ROOT) as mortal,
    ):
        comparison = Comparison([ours, slow, mortal], todo, repeats=2)
        comparison.run()
    assert [one.name for one in comparison.contenders] == ["ours", "slow"]
    assert "decode 1" in comparison.failures["mortal"]
    assert comparison.figures(ours)["tokens_per_s"]["decode 2"] == {
        "median": 2.0,
        "rounds": [2.0, 2.0],
        "variant": "good",
    }
    assert comparison.ratios("ours", "slow")["prefill 10"] == {"of_medians": 2.0, "lowest": 2.0, "highest": 2.0}


def test_a_process_that_does_not_start_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="broken has ended"), contender("broken", ["false"], Path()):
        pass


def test_work_is_plain_data() -> None:
    assert Work("decode", 2, 5, 4) == works(1, 5, 4, [2])[1]
