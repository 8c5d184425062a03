"""The fit finds shares that made the times, and says of each file how well the others foretell it."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from app.capacity.shares import Shares, shares_of
from app.capacity.step_time import StepTimes, decode_step, prompt_steps
from app.commands.plan_inputs import read_demand
from bench.capacity_check import Options, check
from bench.capacity_fit import bench_machine, fit, fitted, main, samples_of

RESULTS = Path(__file__).parents[2] / "bench/results"
TRUE = Shares(0.7, 0.5, 0.5, 0.6, 0.3, 1.8, 4e-5, 1.5)
RATES = {"read_bytes_per_s": 40e9, "macs_per_s": 500e9, "instruction": "vnni"}


def made_result(model: str, shape: tuple[str, str, int], factor: float = 1.0) -> dict[str, Any]:
    """A comparison of an engine that is exactly as the shares say."""
    here = bench_machine("AMD", "avx512_vnni", "amd", RATES, 2)
    times = StepTimes(read_demand(*shape), here, TRUE, "int16")
    works: dict[str, Any] = {}
    results = {}
    for streams in (1, 4, 8, 16, 32):
        for context in (128, 1500):
            name = f"decode {streams} at {context}"
            works[name] = {"kind": "decode", "streams": streams, "context_tokens": context, "new_tokens": 16}
            step_s = times.expected(decode_step(streams, context + 8)).seconds
            results[name] = {"median": factor * streams / step_s}
    for tokens in (512, 2000):
        name = f"prefill {tokens}"
        works[name] = {"kind": "prefill", "streams": 1, "context_tokens": tokens, "new_tokens": 0}
        seconds = sum(times.expected(step).seconds for step in prompt_steps(tokens))
        results[name] = {"median": factor * tokens / seconds}
    settings = "threads 2, tier avx512_vnni, auto answers, int16 KV, weights mapped"
    engines = {
        "redoubt": {"settings": settings, "results": results},
        "redoubt_answers_int8": {"settings": settings.replace("auto", "int8"), "results": results},
        "llama_cpp": {"settings": settings, "results": results},
    }
    return {"model": model, "cpu": "AMD EPYC", "threads": 2, "limits": RATES, "works": works, "engines": engines}


@pytest.fixture
def made(tmp_path: Path) -> list[Path]:
    paths = []
    for model, shape in (("1.1b", ("tinyllama-1.1b", "sym_int4", 64)), ("embedded", ("smollm2-135m", "asym_int4", 32))):
        for number in (1, 2):
            paths.append(tmp_path / f"{model}-{number}.json")
            paths[-1].write_text(json.dumps(made_result(model, shape)))
    return paths


def test_the_shares_that_made_the_times_are_found(made: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "shares.toml"
    report = fit(made, out)["tiers"]["avx512_vnni-amd"]
    assert report["works"] == 4 * 12
    assert report["median_error"] < 0.02
    assert report["median_error_left_out"] < 0.03
    assert report["median_error_of_unseen_shape"].keys() == {"tinyllama-1.1b"}
    written = tomllib.loads(out.read_text())["tiers"]["avx512_vnni-amd"]
    assert written == report["shares"]
    assert written["prompt"] == pytest.approx(TRUE.prompt, rel=0.15)
    assert written["narrow"] == pytest.approx(TRUE.narrow, rel=0.15)


def test_one_disturbed_file_hardly_moves_the_shares(made: list[Path], tmp_path: Path) -> None:
    disturbed = tmp_path / "disturbed.json"
    disturbed.write_text(json.dumps(made_result("1.1b", ("tinyllama-1.1b", "sym_int4", 64), factor=0.5)))
    before = fitted([sample for path in made for sample in samples_of(path)])
    after = fitted([sample for path in [*made, disturbed] for sample in samples_of(path)])
    assert after.prompt == pytest.approx(before.prompt, rel=0.1)


def test_a_rate_of_another_instruction_than_the_tier_s_does_not_count(tmp_path: Path) -> None:
    result = made_result("1.1b", ("tinyllama-1.1b", "sym_int4", 64))
    result["limits"] = {**RATES, "instruction": "maddubs"}
    path = tmp_path / "a.json"
    path.write_text(json.dumps(result))
    assert samples_of(path) == []


def test_the_shipped_shares_are_those_of_the_shipped_results(tmp_path: Path) -> None:
    files = sorted(RESULTS.glob("compare-7b-*.json"))
    assert files
    samples = [sample for path in files for sample in samples_of(path)]
    assert samples
    for sample in samples:
        shares, _ = shares_of(sample.machine.tier, sample.machine.vendor)
        assert sample.predicted_s(shares) == pytest.approx(sample.seconds, rel=0.35), sample.work


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text("{}")
    assert main([str(tmp_path / "a.json"), "--out", str(tmp_path / "o")]) == 2
    assert capsys.readouterr().err == f"redoubt: {tmp_path}/a.json is no result of `redoubt bench compare`\n"
    assert main([str(tmp_path / "none.json")]) == 2
    with pytest.raises(ValueError, match="shape 'qwen9' is not one of smollm2-135m"):
        check(["qwen9"], Options(threads=1), tmp_path)
