"""`redoubt bench cluster`: what a Ray cluster costs and brings, beside the service on one machine, in one run.

    python -m bench.cluster.measure MODEL --streams 1,8 --json          (as root)

Starts the service twice in network namespaces (`pods`): as `redoubt serve` on one core, and as a cluster of a head and
two worker pods of one core each, deployed as KubeRay does it. The cluster has one worker first and two afterwards. The
two services alternate with the same requests, so the one-machine service is the measure of both phases.

- `tokens_per_s`: all output tokens over the time from the first request to the end of the last stream.
- `first_token_s`: from sending a single request to its first text.
- `over_one_machine`: the cluster's tokens per second over those of the service on one machine, in the same round.

On a machine of two cores the second worker shares its core with the clients, the ingress, and Ray.
"""

import argparse
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from tqdm import tqdm  # type: ignore[import-untyped]

from bench.cluster.operator import Operator, request
from bench.cluster.pods import Network, Pod, wait_until
from bench.common import ROOT, machine, number_list, print_result
from bench.serving import HttpSide
from bench.serving_client import Order

TOKEN = "0" * 64
START_TIMEOUT_S = 300.0
_LARGEST_TOKEN = 20000
"""Prompts are made of tokens below; every model that is measured has more."""


@dataclass(frozen=True, slots=True)
class ClusterBenchOptions:
    """What to measure."""

    model: Path
    streams: tuple[int, ...] = (1, 8)
    prompt: int = 32
    generate: int = 64
    repeats: int = 3


def one_machine_configuration(options: ClusterBenchOptions) -> dict[str, Any]:
    """ray_configs/local.yaml with one compute thread."""
    made: dict[str, Any] = yaml.safe_load((ROOT / "ray_configs/local.yaml").read_text(encoding="utf-8"))
    arguments = made["applications"][0]["args"]
    arguments["worker"] |= {"threads": 1, "max_concurrent_requests": max(options.streams)}
    # Random tokens and their continuations repeat themselves, so that guesses would dominate the result.
    arguments["engine"] |= {"guess_tokens": 0}
    made["http_options"]["host"] = "0.0.0.0"
    return made


def cluster_configuration(options: ClusterBenchOptions, workers: int) -> dict[str, Any]:
    """The same service on a cluster, with as many workers of one NUMA node each."""
    made = one_machine_configuration(options)
    made["proxy_location"] = "EveryNode"
    arguments = made["applications"][0]["args"]
    arguments["model"]["folder"] = str(options.model)
    arguments["worker"] |= {"count": workers, "ray_num_cpus": 0.5, "ray_resources": {"numa_node": 1.0}}
    return made


def measure_cluster(options: ClusterBenchOptions) -> dict[str, object]:
    """Runs the bench; the result is ready for JSON. Raises RuntimeError."""
    if options.model.is_relative_to("/tmp"):
        raise RuntimeError(f"{options.model}: pods have a /tmp of their own, so the model has to be elsewhere")
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-cluster-", dir=build) as folder:
        network = Network(Path(folder))
        try:
            single = _start_single(network, options, Path(folder))
            front, operator = _start_cluster(network, options)
            prefix = ("ip", "netns", "exec", network.client)
            sides = {
                "one_machine": HttpSide(single.address, 8000, options.model.name, prefix),
                "cluster": HttpSide(front.address, 8000, options.model.name, prefix),
            }
            phases = {"1": _rounds(sides, options)}
            operator.put(cluster_configuration(options, 2))
            wait_until(lambda: _live_workers(network, front) == 2, START_TIMEOUT_S, "the second worker is there")
            phases["2"] = _rounds(sides, options)
        except AssertionError as error:
            raise RuntimeError(str(error)) from error
        finally:
            network.close()
    return {
        "model": options.model.name,
        "workers": phases,
        **{name: value for name, value in asdict(options).items() if name not in ("model", "streams")},
        **machine(),
    }


def _start_single(network: Network, options: ClusterBenchOptions, folder: Path) -> Pod:
    config = folder / "service.yaml"
    config.write_text(yaml.safe_dump(one_machine_configuration(options)), encoding="utf-8")
    arguments = ["serve", "--config", str(config), "--model", str(options.model)]
    pod = network.start_pod("single", arguments, cpus="0")
    wait_until(
        lambda: not pod.is_running() or request(network, pod.address, 8000, "/health")[0] == 200,
        START_TIMEOUT_S,
        "the service on one machine answers",
    )
    if not pod.is_running():
        raise RuntimeError(pod.log)
    return pod


def _start_cluster(network: Network, options: ClusterBenchOptions) -> tuple[Pod, Operator]:
    head = network.start_pod("head", ["node", "head"], cpus="0-1", environment={"RAY_AUTH_TOKEN": TOKEN})
    variables = {"RAY_AUTH_TOKEN": TOKEN, "FQ_RAY_IP": head.address, "REDOUBT_MODELS": str(options.model)}
    workers = [
        network.start_pod(f"worker{cpu}", ["node", "worker"], cpus=str(cpu), environment=variables) for cpu in (0, 1)
    ]
    operator = Operator(network, head.address, TOKEN)
    wait_until(lambda: operator.get()[0] == 200, START_TIMEOUT_S, "the head takes configurations")
    operator.put(cluster_configuration(options, 1))
    operator.wait_until_running(START_TIMEOUT_S)
    (front,) = [pod for pod in workers if any("Ingress" in line for line in pod.processes().values())]
    wait_until(lambda: _live_workers(network, front) == 1, START_TIMEOUT_S, "the first worker is there")
    return front, operator


def _live_workers(network: Network, front: Pod) -> int:
    return request(network, front.address, 8000, "/v1/workers")[1].count('"state":"alive"')


def _rounds(sides: dict[str, HttpSide], options: ClusterBenchOptions) -> dict[str, Any]:
    """Medians of all rounds but the first; ratios are those of each round."""
    rng = random.Random(7)
    rates: dict[str, dict[int, list[float]]] = {name: {n: [] for n in options.streams} for name in sides}
    first: dict[str, list[float]] = {name: [] for name in sides}
    for _ in tqdm(range(options.repeats + 1), file=sys.stderr, unit="round", leave=False):
        for streams in options.streams:
            for name, side in sides.items():
                receipts = side.run(_orders(rng, options, streams, options.generate))
                took_s = max(r.end_s for r in receipts) - min(r.sent_s for r in receipts)
                rates[name][streams].append(streams * options.generate / took_s)
        for name, side in sides.items():
            (receipt,) = side.run(_orders(rng, options, 1, 2))
            first[name].append(receipt.first_s - receipt.sent_s)
    return {
        "tokens_per_s": {
            name: {str(n): round(statistics.median(taken[1:]), 1) for n, taken in by_streams.items()}
            for name, by_streams in rates.items()
        },
        "over_one_machine": {
            str(n): round(
                statistics.median(
                    ours / one for ours, one in zip(rates["cluster"][n][1:], rates["one_machine"][n][1:], strict=True)
                ),
                3,
            )
            for n in options.streams
        },
        "first_token_s": {name: round(statistics.median(taken[1:]), 4) for name, taken in first.items()},
    }


def _orders(rng: random.Random, options: ClusterBenchOptions, streams: int, generate: int) -> list[Order]:
    prompts = (rng.choices(range(_LARGEST_TOKEN), k=options.prompt) for _ in range(streams))
    return [Order(0.0, tuple(prompt), generate) for prompt in prompts]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="redoubt bench cluster", description="Measure a cluster of pods.")
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder of a converted model")
    parser.add_argument("--streams", type=number_list, default=(1, 8), help="concurrent requests (default 1,8)")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of each prompt (default %(default)s)")
    parser.add_argument("--generate", type=int, default=64, help="tokens of each answer (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="rounds; medians count (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of an indented one")
    parsed = parser.parse_args(arguments)
    options = ClusterBenchOptions(
        parsed.model.absolute(), parsed.streams, parsed.prompt, parsed.generate, parsed.repeats
    )
    return print_result(lambda: measure_cluster(options), (RuntimeError, OSError), indent=None if parsed.json else 2)


if __name__ == "__main__":
    raise SystemExit(main())
