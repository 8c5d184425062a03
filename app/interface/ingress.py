"""The interface as a Ray Serve deployment: opens the models' tokenizers and connects HTTP to the workers.

The routes are in `app.interface.http_api`, which knows nothing of Ray.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle

from app.controller.accounts_client import ServeAccounts
from app.controller.applications import ServeApplications
from app.controller.worker_client import Arrivals, WorkerClient
from app.core_files import leave_no_core_files
from app.interface.generate.model_directory import ModelDirectory
from app.interface.generate.service import IngressFacts, Service
from app.interface.http.closing_ends import end_by_closing
from app.interface.http_api import build_http_app
from app.interface.request.access_log import AccessLog
from app.interface.request.callers import read_api_keys
from app.interface.request.traces import Traces
from app.interface.users.gate import AccountsGate
from app.interface.users.kv_pages import UserKvPages
from app.ray_internals import keep_on_loopback, share_held_port
from app.running_mark import RunningMark
from app.settings.applications import ServiceSettings
from app.settings.environment import HELD_PORTS, OWN_PROXY, RAY_FOLDER
from app.settings.knobs import SettingsError

logger = logging.getLogger("ray.serve")

_FIRST_SEARCH_TIMEOUT_S = 10.0
_LONGEST_CLOSE_S = 5.0
_DRAINING = 0.75
"""The part of the time to drain that answers without clients have; requests end before, and storing comes after."""


@serve.deployment
@serve.ingress()
class Ingress:
    """Answers HTTP. Bound with the settings, the handle of its own model's workers, and that of the accounts, if any.

    It finds other models itself.
    """

    def __init__(
        self, settings: ServiceSettings, workers: DeploymentHandle[Any], accounts: DeploymentHandle[Any] | None = None
    ) -> None:
        """Opens the model's tokenizer, not its weights. Raises ChatModelError or SealedModelError."""
        leave_no_core_files()
        keep_on_loopback()
        end_by_closing()
        if os.environ.get(HELD_PORTS) == "1":
            share_held_port()
        ingress = settings.ingress
        self._search_period_s = ingress.model_search_period_s
        self._drain_s = _DRAINING * settings.worker.drain_timeout_s
        replica = serve.get_replica_context()
        self._arrivals = Arrivals()
        wait_s = settings.router.wait_for_worker_s
        others = ServeApplications(replica.app_name, self._arrivals, wait_for_worker_s=wait_s)
        own = WorkerClient(workers, self._arrivals, wait_for_worker_s=wait_s)
        self._directory = ModelDirectory(settings.model_card(), own, others)
        self._gate: AccountsGate | None = None
        self._batches = None if settings.accounts is None else settings.accounts.batches
        if settings.accounts is not None and accounts is not None:
            saves = settings.memory.folder is not None
            kv_pages = UserKvPages(self._directory.call_each, settings.memory.bytes_per_user) if saves else None
            client = ServeAccounts(accounts, self._arrivals.reader)
            self._gate = AccountsGate(
                client,
                client,
                client,
                client,
                guests=settings.accounts.guests,
                revocation_s=settings.accounts.revocation_s,
                kv_pages=kv_pages,
                most_running=ingress.max_ongoing_requests,
                mark=RunningMark(Path(folder) if (folder := os.environ.get(RAY_FOLDER)) else None),
            )
        folder = ingress.access_log_folder
        self._traces: Traces | None = None
        if ingress.traces_endpoint is not None:
            self._traces = Traces(
                ingress.traces_endpoint, version=version("redoubt"), ingress=replica.replica_id.unique_id
            )
        self._service = Service(
            models=self._directory.models,
            workers=self._directory.workers,
            # Beams of a request are sequences of one worker.
            settings=ingress.model_copy(
                update={"max_beams": min(ingress.max_beams, settings.worker.max_concurrent_requests)}
            ),
            api_keys=() if ingress.api_key_file is None else read_api_keys(Path(ingress.api_key_file)),
            behind_own_proxy=os.environ.get(OWN_PROXY) == "1",
            ingress=IngressFacts(
                id=replica.replica_id.unique_id,
                node=socket.gethostname(),
                replicas=ingress.count,
                version=version("redoubt"),
                up_since=time.time(),
            ),
            traces=self._traces,
            access_log=None if folder is None else _access_log(Path(folder), ingress.access_log_bytes),
            follow_models=self._directory.follow,
        )

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Serve calls this once, after the constructor."""
        return build_http_app(self._service, self._gate, self._watching, self._batches)

    @asynccontextmanager
    async def _watching(self, app: FastAPI) -> AsyncIterator[None]:
        """Searches for other models and follows revocations while the application runs.

        The application becomes ready after the first search.
        """
        await self._arrivals.open()
        searching = self._directory.watch(self._search_period_s, first := asyncio.Event())
        watches = [asyncio.create_task(searching)]
        if self._gate is not None:
            watches.append(asyncio.create_task(self._gate.watch()))
        with suppress(TimeoutError):
            await asyncio.wait_for(first.wait(), _FIRST_SEARCH_TIMEOUT_S)
        batches = [] if app.state.batches is None else [asyncio.create_task(app.state.batches.run())]
        try:
            yield
        finally:
            for task in batches:  # another ingress goes on with them
                task.cancel()
            await asyncio.gather(*batches, return_exceptions=True)
            if self._gate is not None:
                await self._gate.running.close(self._drain_s)
            self._arrivals.close()
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)
            for written in (self._traces, self._service.access_log):
                if written is not None:
                    with suppress(TimeoutError):  # a disk or a collector hangs
                        await asyncio.wait_for(asyncio.to_thread(written.close), _LONGEST_CLOSE_S)


def _access_log(folder: Path, most_bytes: int) -> AccessLog | None:
    """Opens the access log; if that fails, logs why and returns None, since a replacement ingress must start."""
    try:
        return AccessLog(folder, most_bytes)
    except SettingsError as error:
        logger.error("There is no access log until the next start: %s", error)
        return None
