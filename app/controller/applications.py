"""Finds the other models' applications on this Serve: which run, and the way to their workers."""

import asyncio
from collections.abc import Mapping

from ray import serve
from ray.serve.schema import ApplicationStatusOverview

from app.controller.worker_client import Arrivals, WorkerClient
from app.messages.workers import FoundApplication

_WORKERS = "Worker"
_OF_A_MODEL = {"Root", _WORKERS}  # see `app.deploy.build_model`
_LEAVING = ("DELETING", "NOT_STARTED")


class ServeApplications:
    """The applications of `app.deploy.build_model` in this Serve, for `app.model_directory`."""

    def __init__(self, own: str, arrivals: Arrivals) -> None:
        """own: the application of the front door, which is left out."""
        self._own = own
        self._arrivals = arrivals

    async def find(self) -> Mapping[str, FoundApplication]:
        """Asks Serve's controller, in a thread."""
        status = await asyncio.get_running_loop().run_in_executor(None, serve.status)
        # An application that is being built anew has no deployments for a moment, though its workers go on.
        return {
            name: FoundApplication(_runs(application))
            for name, application in status.applications.items()
            if name != self._own
            and set(application.deployments) in (_OF_A_MODEL, set())
            and application.status not in _LEAVING
        }

    def connect(self, name: str) -> WorkerClient:
        """A handle; asks nobody."""
        return WorkerClient(serve.get_deployment_handle(_WORKERS, name, _check_exists=False), self._arrivals)


def _runs(application: ApplicationStatusOverview) -> bool:
    workers = application.deployments.get(_WORKERS)
    return workers is not None and "RUNNING" in workers.replica_states
