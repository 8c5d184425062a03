"""`redoubt bench confidential`: what it costs that clients can verify the service, in one run.

    python -m bench.confidential MODEL --threads 2 --json

Starts the service plain, and then with evidence; the second one is asked through both of its ports in turn: plain HTTP
on loopback, and TLS through its front. With `--evidence coco`, inside a confidential container, the same run measures
a trust domain; a run of the same machine outside of it is its comparison.

- `load_s`: a worker's weights, from a folder and from a sealed model (`bench.sealed`), from the page cache.
- `start_s`: until the service is ready. The attested one computes its models' digests first.
- `tokens_per_s`, `first_token_s`, `next_token_s`: as in `redoubt bench serving`, each request on a new connection.
- `front_cpu_over_decoding`: CPU time of the front over the time in which it passed tokens on.
- `new_connection_ms`, `warm_request_ms`: one GET of /health, by the same HTTP library: plain, and by a client that
  verifies. The verified new connection includes the server's quote and the verdict.

Soft evidence costs a client what a processor's does; the quote itself is the server's time, and is quicker to make.
"""

import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2

from bench.common import OneLineParser, machine, number_list, print_result
from bench.processes import cpu_s
from bench.sealed import measure_sealed
from bench.serving import HttpSide, Rounds, RunningService, ServingBenchOptions, running_service
from redoubt_verify import client as verifying_client

PUBLISHED = {
    "note": "published for TDX on other hardware with another model and engine: [plain, TDX]",
    "load_s": [1.77, 4.56],
    "first_token_s": [4.039, 4.423],
    "next_token_s": [0.161, 0.173],
}
_VOCABULARY = 20000
"""Prompts are made of tokens below; every model that is measured has more."""
_CONNECTIONS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidentialBenchOptions(ServingBenchOptions):
    streams: tuple[int, ...] = (1, 8)
    evidence: str = "soft"
    policy: Path | None = None
    """Policy of the clients; None: the service's own, with soft evidence."""


def measure_confidential(options: ConfidentialBenchOptions) -> dict[str, object]:
    """Runs the bench; the result is ready for JSON. Raises RuntimeError, ValueError, OSError."""
    with TemporaryDirectory(prefix="redoubt-bench-") as folder:
        sealed = measure_sealed(
            options.model, threads=options.threads, repeats=options.repeats, cold=False, folder=Path(folder)
        )
    with running_service(options) as plain:
        start_s = {"plain": round(plain.started_s, 2)}
    with running_service(options, options.evidence) as service:
        assert service.tls_port is not None
        start_s["attested"] = round(service.started_s, 2)
        sides = {
            "plain": HttpSide("127.0.0.1", service.port, options.model.name),
            "attested": HttpSide("127.0.0.1", service.tls_port, options.model.name, tls=True),
        }
        rounds = Rounds(sides, options, vocab_size=_VOCABULARY)
        front = _front(service)
        before_s = cpu_s(front)
        rounds.run()
        front_s = cpu_s(front) - before_s
        requests = _requests(service, options)
    return {
        "model": options.model.name,
        "trust_domain": in_trust_domain(),
        "load_s": sealed["load_s"],
        "start_s": start_s,
        "tokens_per_s": rounds.tokens_per_s(),
        "attested_over_plain": rounds.ratios("attested", "plain"),
        "first_token_s": rounds.first_token_s(),
        "next_token_s": rounds.next_token_s(),
        "front_cpu_over_decoding": round(front_s / rounds.decoding_s["attested"], 4),
        **requests,
        "published": PUBLISHED,
        **{name: value for name, value in asdict(options).items() if name not in ("model", "streams", "policy")},
        **machine(),
    }


def in_trust_domain() -> bool:
    """Whether this machine is a TDX guest."""
    return "tdx_guest" in Path("/proc/cpuinfo").read_text(encoding="utf-8").split()


def _requests(service: RunningService, options: ConfidentialBenchOptions) -> dict[str, Any]:
    """Milliseconds of a request on a new connection, and on one that is open and verified."""
    urls = {"plain": f"http://127.0.0.1:{service.port}", "attested": f"https://127.0.0.1:{service.tls_port}"}
    policy = options.policy or _own_policy(service)

    def plain() -> Any:
        return httpx2.Client(trust_env=False)

    def attested() -> Any:
        return verifying_client(urls["attested"], policy, allow_insecure=options.evidence == "soft")

    new: dict[str, list[float]] = {name: [] for name in urls}
    warm: dict[str, list[float]] = {name: [] for name in urls}
    makers: dict[str, Callable[[], Any]] = {"plain": plain, "attested": attested}
    for _ in range(_CONNECTIONS):
        for name, make in makers.items():
            with make() as client:
                for times in (new[name], warm[name]):
                    with _timed(times):
                        client.get(f"{urls[name]}/health").raise_for_status()
    return {
        "new_connection_ms": {name: round(statistics.median(taken) * 1e3, 2) for name, taken in new.items()},
        "warm_request_ms": {name: round(statistics.median(taken) * 1e3, 2) for name, taken in warm.items()},
    }


@contextmanager
def _timed(times: list[float]) -> Iterator[None]:
    began_s = time.perf_counter()
    yield
    times.append(time.perf_counter() - began_s)


def _own_policy(service: RunningService) -> Path:
    """The policy that a service with soft evidence prints the path of. Raises ValueError if there is none."""
    found = re.search(r"--policy (\S+)", service.log.read_text(encoding="utf-8"))
    if found is None:
        raise ValueError("clients need a policy: --policy FILE (see docs/confidential.md)")
    return Path(found[1])


def _front(service: RunningService) -> int:
    """The process id of a service's front."""
    children = Path(f"/proc/{service.pid}/task/{service.pid}/children").read_text(encoding="utf-8").split()
    (front,) = [pid for pid in children if b"front.cfg" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return int(front)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = OneLineParser(prog="redoubt bench confidential", description="Measure the cost of evidence.")
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder of a converted model")
    parser.add_argument("--threads", type=int, required=True, help="compute threads")
    parser.add_argument("--streams", type=number_list, default=(1, 8), help="concurrent requests (default 1,8)")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of each prompt (default %(default)s)")
    parser.add_argument("--generate", type=int, default=128, help="tokens of each answer (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="rounds; medians count (default %(default)s)")
    parser.add_argument("--evidence", choices=("soft", "coco"), default="soft", help="of the service (default soft)")
    parser.add_argument("--policy", type=Path, help="what clients demand; with soft evidence the service's own")
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of an indented one")
    parsed = vars(parser.parse_args(arguments))
    indent = None if parsed.pop("json") else 2
    options = ConfidentialBenchOptions(**parsed | {"model": parsed["model"].absolute()})
    return print_result(lambda: measure_confidential(options), (RuntimeError, ValueError, OSError), indent=indent)


if __name__ == "__main__":
    raise SystemExit(main())
