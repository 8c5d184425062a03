"""Two real Serve replicas of different speeds behind the real router; the model is the tests' fake one, slowed down.

Run as a program, in a process of its own: prints one JSON object, {policy: {"speeds": {id: tokens per
second}, "counts": {id: requests}, "queue_lengths": {id: of requests that never end}}}, and beside the policies
"batches": {"chats": tokens of each chat, "lines": whether each line of a batch had its own tokens, "held": how many
lines had places before the chats came}.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.engine.model_runner import Batch, ModelRunner
from app.launch.ray_environment import LOOPBACK, ray_environment
from app.messages.requests import GenerateRequest, Priority, SamplingParams
from app.settings.applications import ServiceSettings, parse_settings
from app.workers.numa import Slot
from tests.fakes import FakeRunner, FakeSampler

MARK = 999
STEP_S = {True: 0.24, False: 0.06}  # the worker on the first cores is the slow one; on a busy machine both sleep longer
LOTTERY_REQUESTS = 600
HELD_REQUESTS = 60


class SlowRunner(FakeRunner):
    """Writes one line for each of the test's requests into `log`."""

    def __init__(self, log: Path, step_s: float) -> None:
        super().__init__(kv_pages=4096, max_sequences=64, max_step_tokens=128, max_context_tokens=4096)
        self.log = log
        self.step_s = step_s

    def make_sampler(self, prompt_token_ids: Sequence[int], sampling: SamplingParams, seed: int) -> FakeSampler:
        if prompt_token_ids[0] == MARK:
            with self.log.open("a") as log:
                log.write(f"{os.getpid()}\n")
        return super().make_sampler(prompt_token_ids, sampling, seed)

    def step(self, batch: Batch) -> NDArray[np.int32] | None:
        time.sleep(self.step_s)
        return super().step(batch)


def settings_for(policy: str) -> ServiceSettings:
    return parse_settings(
        {
            "model": {"folder": "fake"},
            "worker": {
                "count": 2,
                "cpus_per_worker": 1,
                "ray_num_cpus": 0.1,
                "max_concurrent_requests": 64,
                "warm_up_prompt_tokens": 8,
            },
            "engine": {"max_step_tokens": 128, "prompt_chunk_tokens": 64},
            "router": {"policy": policy},
        }
    )


def request(number: int, new_tokens: int) -> GenerateRequest:
    return GenerateRequest(f"r{number}", (MARK, 1 + number % 900), new_tokens, tenant=b"")


async def measure(policy: str, log: Path) -> dict[str, object]:
    from ray import serve

    from app.controller.worker_client import Arrivals, WorkerClient
    from app.deploy import worker_deployment

    def make_runner(settings: ServiceSettings, files: object, slot: Slot, threads: int) -> ModelRunner:
        return SlowRunner(log, STEP_S[slot.cpus[0] == min(os.sched_getaffinity(os.getppid()))])

    settings = settings_for(policy)
    handle = serve.run(worker_deployment(settings).bind(settings, make_runner), name=policy, route_prefix=None)
    client = WorkerClient(handle, Arrivals(), wait_for_worker_s=0)
    while sum(row.check_heart_beat for row in client.workers()) < 2:
        await asyncio.sleep(0.05)
    ids = {str(row.pid): row.worker_id for row in client.workers()}
    result: dict[str, object] = {"speeds": {row.worker_id: row.speed for row in client.workers()}}
    places = asyncio.Semaphore(16)

    async def one(number: int) -> None:
        async with places, aclosing(client.generate(request(number, 1))) as deltas:
            async for _ in deltas:
                pass

    await asyncio.gather(*(one(number) for number in range(LOTTERY_REQUESTS if policy == "LOTTERY" else 50)))
    result["counts"] = Counter(ids[pid] for pid in log.read_text().split())
    if policy == "SHORTEST_QUEUE":
        while any(row.queue_length for row in client.workers()):
            await asyncio.sleep(0.05)
        held = [client.generate(request(1000 + number, 2000)) for number in range(HELD_REQUESTS)]
        await asyncio.gather(*(anext(deltas) for deltas in held))
        result["queue_lengths"] = {row.worker_id: row.queue_length for row in client.workers()}
        for deltas in held:
            await deltas.aclose()
    serve.delete(policy)
    return result


LINES = 3
CHATS = 4


async def batches(log: Path) -> dict[str, object]:
    """A batch has all the places that it may have, and then as many chats come as the worker has places."""
    from ray import serve

    from app.controller.worker_client import Arrivals, WorkerClient
    from app.deploy import worker_deployment

    def make_runner(settings: ServiceSettings, files: object, slot: Slot, threads: int) -> ModelRunner:
        return SlowRunner(log, 0.01)

    settings = settings_for("SHORTEST_QUEUE")
    few = {"count": 1, "max_concurrent_requests": 2, "max_queued_requests": CHATS - 2}
    settings = settings.model_copy(update={"worker": settings.worker.model_copy(update=few)})
    handle = serve.run(worker_deployment(settings).bind(settings, make_runner), name="batches", route_prefix=None)
    arrivals = Arrivals()
    await arrivals.open()
    client = WorkerClient(handle, arrivals, wait_for_worker_s=0)
    while sum(row.check_heart_beat for row in client.workers()) < 1:
        await asyncio.sleep(0.05)

    async def tokens_of(asked: GenerateRequest) -> list[int]:
        async with aclosing(client.generate(asked)) as deltas:
            return [token async for delta in deltas for token in delta.token_ids]

    sampling = SamplingParams(seed=5)
    lines = [replace(request(number, 300), sampling=sampling, priority=Priority.BATCH) for number in range(LINES)]
    running = [asyncio.create_task(tokens_of(line)) for line in lines]
    while (held := client.workers()[0].batch) < LINES:
        await asyncio.sleep(0.05)
    chats = await asyncio.gather(*(tokens_of(request(100 + number, 20)) for number in range(CHATS)))
    expected = [list(SlowRunner(log, 0).expected_tokens(line)) for line in lines]
    made = await asyncio.gather(*running)
    serve.delete("batches")
    arrivals.close()
    return {
        "held": held,
        "chats": [len(tokens) for tokens in chats],
        "lines": [got == right for got, right in zip(made, expected, strict=True)],
    }


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="redoubt-", dir="/tmp") as folder:
        os.environ.update(ray_environment(Path(folder), os.environ))
        import ray

        from app.ray_internals import start_local_ray

        start_local_ray(
            address=LOOPBACK,
            folder=Path(folder) / "ray",
            include_dashboard=False,
            namespace="serve",
            object_store_memory=100 << 20,
            log_to_driver=False,
        )
        try:
            results = {}
            for policy in ("LOTTERY", "SHORTEST_QUEUE"):
                results[policy] = asyncio.run(measure(policy, Path(folder) / policy))
            results["batches"] = asyncio.run(batches(Path(folder) / "batches"))
            json.dump(results, sys.stdout)
        finally:
            ray.shutdown()


if __name__ == "__main__":
    main()
