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
        works=options.works(),
        clock=options.clock,
    )

    def measure(work: Work, variant: str) -> float:
        return bench.measure(work)

    settings = f"threads {options.threads}, tier {bench.runner.model.tier}, {options.kv_type} KV"
    try:
        serve(About(version="redoubt", settings=settings, variants=("",), load_s=bench.load_s), measure)
    finally:
        bench.close()


if __name__ == "__main__":
    main()
