"""The controller: LOTTERY and SHORTEST_QUEUE as Ray Serve request routers. Interface only; being written."""

from typing import Any

from ray.serve.handle import DeploymentHandle

from app.worker_table import WorkerRow


def worker_rows(handle: DeploymentHandle[Any]) -> list[WorkerRow]:
    """The worker table of the handle's router in this process; empty until its first update. Any thread."""
    raise NotImplementedError
