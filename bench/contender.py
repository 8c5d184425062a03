"""Our engine as one of the processes that `bench.compare` measures."""

import argparse
import json
from pathlib import Path

from bench.engine import EngineBench
from bench.work import CLOCKS, About, Work, serve, take_stdout


def main() -> None:
    """The process; its engine is sized for the works in --works."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--kv-type", required=True)
    parser.add_argument("--compute-type", required=True)
    parser.add_argument("--prompt-compute-type", required=True)
    parser.add_argument("--weight-memory", required=True)
    parser.add_argument("--clock", choices=tuple(CLOCKS), required=True)
    parser.add_argument("--works", required=True, help="JSON")
    options = parser.parse_args()
    answers = take_stdout()
    todo = [Work(**work) for work in json.loads(options.works)]
    bench = EngineBench(
        options.model,
        threads=options.threads,
        kv_type=options.kv_type,
        compute_type=options.compute_type,
        prompt_compute_type=options.prompt_compute_type,
        weight_memory=options.weight_memory,
        works=todo,
        clock=options.clock,
    )

    def measure(work: Work, variant: str) -> float:
        return bench.measure(work)

    model = bench.runner.model
    prompts = ", bf16 prompts" if model.has_bf16_prompts else ""
    settings = (
        f"threads {options.threads}, tier {model.tier}, {options.compute_type} answers{prompts}, {options.kv_type} KV, "
        f"weights {model.weight_memory}"
    )
    try:
        serve(About(version="redoubt", settings=settings, variants=("",), load_s=bench.load_s), measure, answers)
    finally:
        bench.close()


if __name__ == "__main__":
    main()
