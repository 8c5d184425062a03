"""Our engine as one of the processes that `bench.compare` talks to: `python -m bench.contender MODEL --threads N`."""

import argparse

from bench.engine import EngineBench, add_options, options_of
from bench.work import About, Work, serve


def main() -> None:
    """The process."""
    parser = argparse.ArgumentParser()
    add_options(parser)
    options = options_of(parser.parse_args())
    bench = EngineBench(
        options.model,
        threads=options.threads,
        kv_type=options.kv_type,
        weight_memory=options.weight_memory,
        works=options.works(),
        clock=options.clock,
    )

    def measure(work: Work, variant: str) -> float:
        return bench.measure(work)

    model = bench.runner.model
    settings = f"threads {options.threads}, tier {model.tier}, {options.kv_type} KV, weights {model.weight_memory}"
    try:
        serve(About(version="redoubt", settings=settings, variants=("",), load_s=bench.load_s), measure)
    finally:
        bench.close()


if __name__ == "__main__":
    main()
