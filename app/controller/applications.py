"""Finds other models' applications in this Serve: which are running, and a client for their workers."""

import asyncio
from collections.abc import Mapping

from ray import serve
from ray.serve.schema import ApplicationStatusOverview

from app.controller.worker_client import Arrivals, WorkerClient
from app.messages.workers import FoundApplication
from app.ray_internals import handle_of

_WORKERS = "Worker"
_OF_A_MODEL = {"Root", _WORKERS}  # see `app.deploy.build_model`
_LEAVING = ("DELETING", "NOT_STARTED")


class ServeApplications:
    """Finds applications of `app.deploy.build_model` in this Serve, for `app.interface.generate.model_directory`."""

    def __init__(self, own: str, arrivals: Arrivals, *, wait_for_worker_s: float) -> None:
        """own: the ingress' own application, which is skipped. wait_for_worker_s: see WorkerClient."""
        self._own = own
        self._arrivals = arrivals
        self._wait_for_worker_s = wait_for_worker_s

    async def find(self) -> Mapping[str, FoundApplication]:
        """Returns the applications by name, as Serve's controller lists them (called in a thread)."""
        status = await asyncio.get_running_loop().run_in_executor(None, serve.status)
        # While Serve rebuilds an application it lists none of its deployments, although its workers go on.
        return {
            name: FoundApplication(_has_running_worker(application))
            for name, application in status.applications.items()
            if name != self._own
            and set(application.deployments) in (_OF_A_MODEL, set())
            and application.status not in _LEAVING
        }

    def connect(self, name: str) -> WorkerClient:
        """Makes a client for that application's workers, without a remote call."""
        return WorkerClient(handle_of(_WORKERS, name), self._arrivals, wait_for_worker_s=self._wait_for_worker_s)


def _has_running_worker(application: ApplicationStatusOverview) -> bool:
    workers = application.deployments.get(_WORKERS)
    return workers is not None and "RUNNING" in workers.replica_states
