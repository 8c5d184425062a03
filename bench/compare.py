"""Our engine against others on the same model, alternating in one run: `python -m bench.compare MODEL --gguf FILE ...`.

Each contender is a process of its own with the model loaded. A first round finds the variant (attention, KV layout)
that serves each peer best at each work; then come `--repeats` rounds in which all take turns at each work, so that a
noisy neighbour meets everybody. Prints one JSON object: tokens a second (median, and all rounds), and the ratio of
ours to each peer's (of the medians, and the lowest and highest within one round). A peer that can't be installed or
that breaks is reported as such.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]

from bench.engine import EngineBenchOptions, add_options, commit, options_of
from bench.peers import Peer
from bench.work import Contender, Work, contender
from kernels import _native

ROOT = Path(__file__).parent.parent
PEER_NAMES = ("llama_cpp",)
OURS = "redoubt"


def our_command(options: EngineBenchOptions) -> Sequence[str]:
    """Starts our engine with the same sizes."""
    batches = ",".join(map(str, options.batches))
    return [
        *(sys.executable, "-m", "bench.contender", str(options.model.resolve()), "--threads", str(options.threads)),
        *("--prompt", str(options.prompt), "--generate", str(options.generate), "--batch", batches),
        *("--decode-context", str(options.decode_context), "--kv-type", options.kv_type),
        *("--weight-memory", options.weight_memory, "--clock", options.clock),
    ]


class Comparison:
    """The contenders and what each has shown so far."""

    def __init__(self, contenders: Sequence[Contender], works: Sequence[Work], repeats: int) -> None:
        """Begins with nothing measured."""
        self.contenders = list(contenders)
        self.failures: dict[str, str] = {}
        self._works = works
        self._repeats = repeats
        self._best: dict[tuple[str, Work], str] = {}
        self._rounds: dict[tuple[str, Work], list[float]] = {}

    def run(self) -> None:
        """Tunes, then measures in turns. A contender whose process ends is dropped, with the reason."""
        with tqdm(total=(1 + self._repeats) * len(self._works), file=sys.stderr, unit="work", leave=False) as progress:
            for repeat in range(1 + self._repeats):
                for work in self._works:
                    progress.set_description(work.name if repeat else f"tuning {work.name}")
                    for one in list(self.contenders):
                        try:
                            self._turn(one, work, tune=repeat == 0)
                        except (RuntimeError, OSError) as error:
                            self.failures[one.name] = f"{work.name}: {error}"
                            self.contenders.remove(one)
                    progress.update()

    def _turn(self, one: Contender, work: Work, *, tune: bool) -> None:
        if tune:
            taken = {variant: one.measure(work, variant) for variant in one.about.variants}
            self._best[one.name, work] = min(taken, key=taken.__getitem__)
        else:
            seconds = one.measure(work, self._best[one.name, work])
            self._rounds.setdefault((one.name, work), []).append(work.tokens / seconds)

    def figures(self, one: Contender) -> dict[str, Any]:
        """One contender's tokens a second."""
        return {
            **{"version": one.about.version, "settings": one.about.settings, "load_s": round(one.about.load_s, 3)},
            "tokens_per_s": {
                work.name: {
                    "median": round(statistics.median(self._rounds[one.name, work]), 1),
                    "rounds": [round(rate, 1) for rate in self._rounds[one.name, work]],
                    "variant": self._best[one.name, work],
                }
                for work in self._works
            },
        }

    def ratios(self, ours: str, peer: str) -> dict[str, Any]:
        """How many times as fast we are."""
        result = {}
        for work in self._works:
            a, b = self._rounds[ours, work], self._rounds[peer, work]
            within = [x / y for x, y in zip(a, b, strict=True)]
            result[work.name] = {
                "of_medians": round(statistics.median(a) / statistics.median(b), 2),
                "lowest": round(min(within), 2),
                "highest": round(max(within), 2),
            }
        return result


def compare(options: EngineBenchOptions, gguf: Path, peers: Sequence[Peer]) -> dict[str, Any]:
    """Runs everything; the result is ready for JSON. Raises RuntimeError if our own engine breaks."""
    failures: dict[str, str] = {}
    with ExitStack() as processes:
        contenders = [processes.enter_context(contender(OURS, our_command(options), ROOT))]
        for peer in peers:
            try:
                peer.install(ROOT)
                command = peer.command(ROOT, gguf.resolve(), options.threads, options.clock)
                contenders.append(processes.enter_context(contender(peer.name, command, ROOT)))
            except (subprocess.CalledProcessError, RuntimeError, OSError) as error:
                failures[peer.name] = str(error)
        comparison = Comparison(contenders, options.works(), options.repeats)
        comparison.run()
    if OURS in comparison.failures:
        raise RuntimeError(f"our engine failed: {comparison.failures[OURS]}")
    return {
        "model": options.model.name,
        "gguf": gguf.name,
        "cpu": _native.cpu_model(),
        "threads": options.threads,
        "commit": commit(),
        "decode_context": options.decode_context,
        "generate": options.generate,
        "clock": options.clock,
        "engines": {one.name: comparison.figures(one) for one in comparison.contenders},
        "ratios": {one.name: comparison.ratios(OURS, one.name) for one in comparison.contenders if one.name != OURS},
        "failures": failures | comparison.failures,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status: 1 if a peer is missing from the result."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description="Compare our engine with others.")
    add_options(parser)
    parser.add_argument("--gguf", type=Path, required=True, help="the same model for peers that read GGUF")
    parser.add_argument("--peers", nargs="+", choices=PEER_NAMES, default=PEER_NAMES, help="(default: all)")
    parsed = parser.parse_args(arguments)
    peers: list[Peer] = [import_module(f"bench.peers.{name}").PEER for name in parsed.peers]
    result = compare(options_of(parsed), parsed.gguf, peers)
    print(json.dumps(result, indent=2))
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
