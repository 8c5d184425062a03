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

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from bench.cluster.operator import Operator, request
from bench.cluster.pods import Network, Pod, wait_until
from bench.common import ROOT, OneLineParser, machine, number_list, print_result
from bench.serving import HttpSide, Load, Rounds

TOKEN = "0" * 64
START_TIMEOUT_S = 300.0
_PROMPT_TOKENS = 20000
"""Prompts are made of tokens below; every model that is measured has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterBenchOptions(Load):
    model: Path
    streams: tuple[int, ...] = (1, 8)
    generate: int = 64


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
    """Makes the configuration of the same service on a cluster, with `workers` workers of one NUMA node each."""
    made = one_machine_configuration(options)
    made["proxy_location"] = "EveryNode"
    arguments = made["applications"][0]["args"]
    arguments["model"]["folder"] = str(options.model)
    arguments["worker"] |= {"count": workers, "ray_num_cpus": 0.5, "ray_resources": {"numa_node": 1.0}}
    return made


def measure_cluster(options: ClusterBenchOptions) -> dict[str, object]:
    """Runs the bench; the result is ready for JSON. Raises RuntimeError."""
    with tempfile.TemporaryDirectory(prefix="redoubt-bench-") as folder:
        network = Network(Path(folder), visible=[Path(folder), options.model])
        try:
            single = _start_single(network, options, Path(folder))
            front, operator = _start_cluster(network, options)
            prefix = ("ip", "netns", "exec", network.client)
            sides = {
                "one_machine": HttpSide(single.address, 8000, options.model.name, prefix),
                "cluster": HttpSide(front.address, 8000, options.model.name, prefix),
            }
            phases = {"1": _measured(sides, options)}
            operator.put(cluster_configuration(options, 2))
            wait_until(lambda: _live_workers(network, front) == 2, START_TIMEOUT_S, "the second worker is there")
            phases["2"] = _measured(sides, options)
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
    variables = {"RAY_AUTH_TOKEN": TOKEN, "FQ_RAY_IP": head.address, "REDOUBT_NODE_MODELS": str(options.model)}
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


def _measured(sides: dict[str, HttpSide], options: ClusterBenchOptions) -> dict[str, Any]:
    rounds = Rounds(sides, options, vocab_size=_PROMPT_TOKENS)
    rounds.run()
    return {
        "tokens_per_s": rounds.tokens_per_s(),
        "over_one_machine": rounds.ratios("cluster", "one_machine"),
        "first_token_s": rounds.first_token_s(),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = OneLineParser(prog="redoubt bench cluster", description="Measure a cluster of pods.")
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder of a converted model")
    parser.add_argument("--streams", type=number_list, default=(1, 8), help="concurrent requests (default 1,8)")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of each prompt (default %(default)s)")
    parser.add_argument("--generate", type=int, default=64, help="tokens of each answer (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="rounds; medians count (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of an indented one")
    parsed = parser.parse_args(arguments)
    options = ClusterBenchOptions(
        model=parsed.model.absolute(),
        streams=parsed.streams,
        prompt=parsed.prompt,
        generate=parsed.generate,
        repeats=parsed.repeats,
    )
    return print_result(lambda: measure_cluster(options), (RuntimeError, OSError), indent=None if parsed.json else 2)


if __name__ == "__main__":
    raise SystemExit(main())
