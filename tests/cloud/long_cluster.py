"""A cluster of pods on this machine, the long way (`make cluster`): scaled by load, killed, cut off, changed in use.

Each test prints what it measured. The pods run on the two cores of a small machine, so times are upper bounds.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.cluster.operator import Operator
from bench.cluster.operator import request as send
from bench.cluster.pods import Network, Pod, wait_until
from tests.cloud.authority import make_authority
from tests.cloud.test_cluster import QUESTION, TOKEN, cluster_configuration, is_ready, says, start_worker

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.timeout(900),
]

HEAD = {"RAY_AUTH_TOKEN": TOKEN}


class Cluster:
    """A head, an operator, and workers that come and go."""

    def __init__(self, folder: Path, model: Path, **environment: str) -> None:
        self.network = Network(folder, visible=[folder])
        self.model = model
        self._environment = environment
        self.head = self.network.start_pod("head", ["node", "head"], cpus="0-1", environment=HEAD | environment)
        self.operator = Operator(self.network, self.head.address, TOKEN)

    def add_worker(self, name: str, cpus: str) -> Pod:
        return start_worker(
            self.network, self.head, name, cpus, REDOUBT_NODE_MODELS=str(self.model), **self._environment
        )

    def configuration(self, **worker: Any) -> dict[str, Any]:
        made = cluster_configuration(self.model)
        made["applications"][0]["args"]["worker"] |= worker  # type: ignore[index]
        return made

    def deploy(self, configuration: dict[str, Any]) -> float:
        """Puts it as the operator does; returns how many seconds it took until it ran."""
        wait_until(lambda: self.operator.get()[0] == 200, 60, "the head takes configurations")
        began_s = time.monotonic()
        self.operator.put(configuration)
        self.operator.wait_until_running(180)
        return time.monotonic() - began_s

    def deploy_two_workers(self) -> tuple[Pod, Pod]:
        """Workers "one" and "two"; the one with the ingress comes first."""
        one, two = self.add_worker("one", "0"), self.add_worker("two", "1")
        self.deploy(self.configuration(count=2))
        front, other = (one, two) if "Ingress" in " ".join(one.processes().values()) else (two, one)
        wait_until(lambda: self.alive(front) == {"one", "two"}, 90, "both workers are there")
        return front, other

    def ask(self, pod: Pod, **changes: Any) -> tuple[int, str]:
        return send(self.network, pod.address, 8000, "/v1/chat/completions", method="POST", body=QUESTION | changes)

    def rows(self, pod: Pod) -> list[dict[str, Any]]:
        status, body = send(self.network, pod.address, 8000, "/v1/workers")
        return list(json.loads(body)["data"]) if status == 200 else []

    def alive(self, pod: Pod) -> set[str]:
        """The nodes whose workers are alive."""
        return {row["node"] for row in self.rows(pod) if row["state"] == "alive"}


@contextmanager
def cluster(folder: Path, model: Path, **environment: str) -> Iterator[Cluster]:
    made = Cluster(folder, model, **environment)
    try:
        wait_until(lambda: is_ready(made.network, made.head), 90, "the head is ready")
        yield made
    finally:
        made.network.close()


class Load:
    """Clients that ask one question after the other, and count what comes back."""

    def __init__(self, cluster: Cluster, pods: Callable[[int], Pod], clients: int, **changes: Any) -> None:
        """pods: whom a client asks."""
        self.statuses: Counter[int] = Counter()
        self.failures: list[str] = []
        self.texts: set[str] = set()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(cluster, pods, number, changes)) for number in range(clients)
        ]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, cluster: Cluster, pods: Callable[[int], Pod], number: int, changes: dict[str, Any]) -> None:
        give_up_s = time.monotonic() + 300
        while not self._stop.is_set() and time.monotonic() < give_up_s:
            status, body = cluster.ask(pods(number), **changes)
            self.statuses[status] += 1
            if status == 200:
                self.texts.add(json.loads(body)["choices"][0]["message"]["content"])
            else:
                self.failures.append(body[:200])
                time.sleep(0.2)


def report(**figures: object) -> None:
    print(json.dumps(figures), flush=True)


def demands(cluster: Cluster) -> int:
    """How many NUMA nodes the cluster asks for and has not, as KubeRay's autoscaler reads it from the GCS."""
    program = (
        "import sys; from ray.autoscaler.v2.sdk import get_cluster_status as get;"
        "print(sum('numa_node' in str(one) for one in get(sys.argv[1]).resource_demands.ray_task_actor_demand))"
    )
    command = ["ip", "netns", "exec", cluster.network.client, sys.executable, "-c", program]
    variables = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    found = subprocess.run(
        [*command, f"{cluster.head.address}:6379"], env=variables, capture_output=True, text=True, check=True
    )
    return int(found.stdout)


def test_both_policies_and_a_rolling_change_between_them(embedded_model: Path, tmp_path: Path) -> None:
    with cluster(tmp_path, embedded_model) as made:
        one, two = made.add_worker("one", "0"), made.add_worker("two", "1")
        configuration = made.configuration(count=2)
        configuration["applications"][0]["args"]["ingress"]["count"] = 2
        report(deployed_s=round(made.deploy(configuration), 1))
        wait_until(lambda: made.alive(one) == {"one", "two"}, 90, "both workers are there")
        wait_until(lambda: is_ready(made.network, one) and is_ready(made.network, two), 60, "both pods are ready")
        pods = [one, two]
        for policy in ("SHORTEST_QUEUE", "LOTTERY"):
            with Load(made, lambda number: pods[number % 2], clients=4) as load:
                before = {row["node"]: row["generated_tokens"] for row in made.rows(one)}
                time.sleep(15)
            wait_until(lambda: not any(row["running"] for row in made.rows(one)), 30, "the answers are done")
            time.sleep(2)  # for a heartbeat
            made_tokens = {row["node"]: row["generated_tokens"] - before[row["node"]] for row in made.rows(one)}
            report(policy=policy, statuses=load.statuses, generated_tokens=made_tokens)
            assert set(load.statuses) == {200}
            assert len(load.texts) == 1
            assert min(made_tokens.values()) > 0.15 * sum(made_tokens.values())
            if policy == "SHORTEST_QUEUE":
                changed = json.loads(json.dumps(configuration))
                changed["applications"][0]["args"]["router"]["policy"] = "LOTTERY"
                with Load(made, lambda number: pods[number % 2], clients=3) as load:
                    took_s = made.deploy(changed)
                    wait_until(lambda: made.alive(one) == {"one", "two"}, 90, "both workers are there again")
                report(rolling_change_s=round(took_s, 1), statuses=load.statuses, failures=load.failures[:3])


def test_scaled_by_load_and_back(embedded_model: Path, tmp_path: Path) -> None:
    scaling = {
        "min_workers": 1,
        "max_workers": 2,
        "target_ongoing_requests": 2.0,
        "upscale_delay_s": 2.0,
        "downscale_delay_s": 5.0,
    }
    with cluster(tmp_path, embedded_model) as made:
        one = made.add_worker("one", "0")
        made.deploy(made.configuration(autoscaling=scaling, count=1))
        assert demands(made) == 0
        with Load(made, lambda _: one, clients=8, max_tokens=64) as load:
            asked_s = wait_until(lambda: demands(made) > 0, 60, "the load asks for another NUMA node")
            two = made.add_worker("two", "1")  # what KubeRay's autoscaler does then
            joined_s = wait_until(lambda: made.alive(one) == {"one", "two"}, 120, "the second worker is there")
        report(scaled_up_asked_s=round(asked_s, 1), scaled_up_joined_s=round(joined_s, 1), statuses=load.statuses)
        assert set(load.statuses) == {200}
        with Load(made, lambda _: one, clients=1) as load:
            left_s = wait_until(lambda: made.alive(one) == {"one"}, 120, "one worker is left")
            two.terminate()  # what KubeRay does with an idle pod
            ended_s = wait_until(lambda: not two.is_running(), 90, "the idle pod ends")
        report(scaled_down_s=round(left_s, 1), pod_ended_s=round(ended_s, 1), statuses=load.statuses)
        assert set(load.statuses) == {200}


def test_a_worker_is_killed(embedded_model: Path, tmp_path: Path) -> None:
    with cluster(tmp_path, embedded_model) as made:
        front, other = made.deploy_two_workers()
        with Load(made, lambda _: front, clients=4) as load:
            time.sleep(5)
            other.kill()
            lost_s = wait_until(lambda: made.alive(front) == {front.name}, 30, "the loss is noticed")
            time.sleep(5)
            again = made.network.restart_pod(
                other,
                ["node", "worker"],
                cpus="1" if other.name == "two" else "0",
                environment={"RAY_AUTH_TOKEN": TOKEN, "FQ_RAY_IP": made.head.address},
            )
            back_s = wait_until(lambda: made.alive(front) == {"one", "two"}, 180, "the worker is back")
        report(noticed_s=round(lost_s, 1), back_s=round(back_s, 1), statuses=load.statuses, failures=load.failures[:5])
        assert again.is_running()
        # What was being computed there is lost; nothing else is.
        assert sum(count for status, count in load.statuses.items() if status != 200) <= 4
        assert len(load.texts) == 1


def test_the_head_is_killed(embedded_model: Path, tmp_path: Path) -> None:
    with cluster(tmp_path, embedded_model) as made:
        worker = made.add_worker("worker", "0")
        configuration = made.configuration()
        made.deploy(configuration)
        assert made.ask(worker)[0] == 200
        made.head.kill()
        without_head = made.ask(worker)[0]
        began_s = time.monotonic()
        made.head = made.network.restart_pod(made.head, ["node", "head"], cpus="0-1", environment=HEAD)
        wait_until(lambda: is_ready(made.network, made.head), 90, "the head is back")
        head_s = time.monotonic() - began_s
        # The operator sees a head without applications, and submits them again.
        wait_until(lambda: made.operator.get()[0] == 200 and not made.operator.applications(), 60, "an empty head")
        made.operator.put(configuration)
        wait_until(lambda: made.ask(worker)[0] == 200 and made.operator.is_running(), 240, worker.log)
        report(
            answer_without_head=without_head,
            head_ready_s=round(head_s, 1),
            service_back_s=round(time.monotonic() - began_s, 1),
            worker_log=worker.log.splitlines()[-8:],
        )


@pytest.mark.parametrize("seconds", [8, 75], ids=["short", "long"])
def test_a_partition_is_healed(seconds: int, embedded_model: Path, tmp_path: Path) -> None:
    with cluster(tmp_path, embedded_model) as made:
        front, other = made.deploy_two_workers()
        with Load(made, lambda _: front, clients=2) as load:
            made.network.unplug(other)
            time.sleep(seconds)
            ready = is_ready(made.network, other)
            made.network.plug_in_again(other)
            back_s = wait_until(lambda: made.alive(front) == {"one", "two"}, 240, "the worker is back")
        report(
            partition_s=seconds,
            ready_meanwhile=ready,
            back_s=round(back_s, 1),
            statuses=load.statuses,
            failures=load.failures[:3],
            log=other.log.splitlines()[-5:],
        )
        assert len(load.texts) == 1


def test_with_tls_no_prompt_crosses_the_network_in_the_clear(embedded_model: Path, tmp_path: Path) -> None:
    authority = make_authority(tmp_path / "authority")
    canary = "zanzibar-quetzal"
    with cluster(tmp_path, embedded_model, REDOUBT_TLS_CA=str(authority)) as made:
        front, other = made.deploy_two_workers()
        before = {row["node"]: row["computed_tokens"] for row in made.rows(front)}
        with made.network.capture() as packets:

            def ask(number: int) -> int:
                question = [{"role": "user", "content": f"{canary} {number}"}]
                return made.ask(front, messages=question, max_tokens=8)[0]

            with ThreadPoolExecutor(4) as clients:  # together, so that both workers get some
                assert set(clients.map(ask, range(12))) == {200}
            time.sleep(2)
        client = made.network.client_address
        between_pods = [data for source, target, data in packets if client not in (source, target)]
        computed = {row["node"]: row["computed_tokens"] - before[row["node"]] for row in made.rows(front)}
        report(packets=len(packets), between_pods=len(between_pods), computed_tokens=computed)
        assert computed[other.name] > 0  # so prompts did cross
        assert any(canary.encode() in data for _, _, data in packets)  # from the client, who has no TLS here
        assert not any(canary.encode() in data for data in between_pods)
        stranger = start_worker(made.network, made.head, "stranger", "1", REDOUBT_TLS_CA="")
        wait_until(lambda: says(made.network, stranger, "The head at"), 90, "a node without a certificate stays out")


def test_a_second_head_waits(embedded_model: Path, tmp_path: Path) -> None:
    with cluster(tmp_path, embedded_model) as made:
        second = made.network.join_pod(
            made.head, "second", ["node", "head", "--health-port", "8078"], cpus="1", environment=HEAD
        )
        wait_until(lambda: "probably another head" in second.log, 30, "the second head notices the first")
        assert second.is_running()
        for pod in (second, made.head):
            pod.terminate()
            assert pod.wait(60) == 0
