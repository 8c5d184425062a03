"""Builds the Serve applications; the only place that binds deployments and sets Serve's options for them.

No `from __future__ import annotations` here: Serve reads the type of `build`'s argument at run time.
"""

import os
from pathlib import Path
from typing import Any, TypeVar, cast

import ray
from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.deployment import Application, Deployment
from ray.serve.exceptions import RayServeException

from app.controller.router import router_kwargs
from app.interface.http.places import RESERVED_PLACES
from app.interface.ingress import Ingress
from app.model_check import check_draft_of, check_files
from app.model_folder import ChatModelError
from app.ray_internals import keep_on_loopback
from app.sealing.image import SealedModelError
from app.sealing.sealed_model import open_model
from app.settings.accounts import AccountsSettings
from app.settings.applications import ModelApplicationSettings, ServiceSettings
from app.settings.environment import ATTESTED_FRONT
from app.settings.ingress import IngressSettings
from app.settings.knobs import SettingsError
from app.workers.encoder_load import is_encoder
from app.workers.encoder_worker import EncoderWorker
from app.workers.worker import Worker

AnySettings = TypeVar("AnySettings", bound=ModelApplicationSettings)

_DRAIN_POLL_S = 0.2
_INGRESS_CHECK_S = 1.0
"""Health check period of an ingress."""
_MOST_ACCOUNT_CALLS = 4096
"""The most concurrent calls of all ingresses; each ingress has two that wait for news."""
_ACCOUNTS_SHUTDOWN_S = 5.0
_ONE_MORE = 1
"""Extra replicas in a rolling change, in per cent; Serve rounds up, so it is one for up to 100 replicas."""


def build(args: ServiceSettings) -> Application:
    """Builds the ingress with the workers of one model. Serve makes `args` from the configuration file.

    Raises RayServeException if clients are to verify the machine and there is no front through which they could, or if
    the model can't be served. `serve status` shows its message, and of other exceptions a traceback.
    """
    if args.attestation.evidence != "none" and os.environ.get(ATTESTED_FRONT) != "1":
        raise RayServeException(
            "attestation.evidence: only `redoubt serve` and nodes with REDOUBT_EVIDENCE have the front that ends TLS "
            "and shows evidence"
        )
    args = checked(args)
    workers = worker_deployment(args).bind(args)
    accounts = () if args.accounts is None else (accounts_deployment().bind(args.accounts),)
    ingress = args.ingress
    return (
        cast(Deployment, Ingress)
        .options(
            name="Ingress",
            num_replicas=ingress.count,
            **_spread(ingress),
            max_ongoing_requests=ingress.max_ongoing_requests + RESERVED_PLACES,
            graceful_shutdown_timeout_s=args.worker.drain_timeout_s,
            graceful_shutdown_wait_loop_s=_DRAIN_POLL_S,
            health_check_period_s=_INGRESS_CHECK_S,
            ray_actor_options={"num_cpus": ingress.ray_num_cpus},
        )
        .bind(args, workers, *accounts)
    )


def build_model(args: ModelApplicationSettings) -> Application:
    """Builds the workers of a further model, without routes. The ingress of `build` finds them by itself.

    Raises RayServeException if the model can't be served.
    """
    args = checked(args)
    none_at_all = {"min_replicas": 0, "max_replicas": 1, "initial_replicas": 0}
    root = serve.deployment(name="Root", autoscaling_config=none_at_all)(Root)
    return root.bind(worker_deployment(args).bind(args))


def checked(args: AnySettings) -> AnySettings:
    """Returns the settings with the model's absolute path, for all replicas. Raises RayServeException.

    A relative path begins where this process runs: in a task of Ray's that is where Ray was started, and not where
    `serve deploy` was called. An absolute one may be on other nodes only, where replicas find what is wrong with it.
    """
    given = Path(args.model.folder or args.model.sealed or "")
    args = args.model_copy(update={"model": args.model.absolute()})
    if given.exists():
        try:
            check_files(args.model_card())
            check_draft_of(args)
        except SettingsError as error:
            raise RayServeException(str(error)) from error
    elif not given.is_absolute():
        raise RayServeException(
            f"model: there is no {given} in {Path.cwd()}, where Ray was started; give an absolute path"
        )
    elif _is_only_node():
        raise RayServeException(f"model: there is no {given}; convert the model first: redoubt convert SRC {given}")
    return args


def _is_only_node() -> bool:
    return ray.is_initialized() and sum(bool(node["Alive"]) for node in ray.nodes()) == 1  # type: ignore[no-untyped-call]


class Root:
    """A deployment without replicas, to which the workers are bound.

    Serve requires a root deployment, which behind HAProxy may have no request router of its own.
    """

    def __init__(self, workers: Any) -> None:
        pass


def worker_deployment(settings: ModelApplicationSettings) -> Deployment:
    """The workers' deployment, not yet bound to settings."""
    worker, router = settings.worker, settings.router
    routing: dict[str, Any] = {
        "request_router_class": "app.controller.router.WorkerRouter",
        "request_router_kwargs": router_kwargs(
            policy=router.policy,
            expiration_s=router.expiration_s,
            forget_after_s=router.forget_after_s,
            report_period_s=worker.heartbeat_period_s,
        ),
        "request_routing_stats_period_s": worker.heartbeat_period_s,
        "request_routing_stats_timeout_s": router.expiration_s,
    }
    decorate = serve.deployment(
        name="Worker",
        # Running and queued requests together: Serve sends no more to a worker, and tries the next one.
        max_ongoing_requests=worker.max_concurrent_requests + worker.max_queued_requests,
        health_check_period_s=worker.health_check_period_s,
        health_check_timeout_s=worker.health_check_timeout_s,
        graceful_shutdown_timeout_s=worker.drain_timeout_s,
        graceful_shutdown_wait_loop_s=_DRAIN_POLL_S,
        max_surge_percent=_ONE_MORE if worker.surges else 0,
        ray_actor_options={"num_cpus": worker.ray_num_cpus, "resources": worker.ray_resources},
        request_router_config=RequestRouterConfig(**routing),
        **_scale(settings),
    )
    return decorate(EncoderWorker if _is_encoder(settings) else Worker)


def _is_encoder(settings: ModelApplicationSettings) -> bool:
    """Whether the model makes vectors; False where its files are on other nodes only, whose workers then refuse it."""
    try:
        return is_encoder(open_model(settings.model_card()))
    except (ChatModelError, SealedModelError, OSError):
        return False


def accounts_deployment() -> Deployment:
    """The accounts' deployment, not yet bound to settings. A single replica owns the database."""
    # Imported here, because a service without accounts needs no database library.
    from app.accounts.shared import SharedAccounts

    class Accounts(SharedAccounts):
        def __init__(self, settings: AccountsSettings) -> None:
            keep_on_loopback()
            super().__init__(settings)

    decorate = serve.deployment(
        name="Accounts",
        num_replicas=1,
        max_ongoing_requests=_MOST_ACCOUNT_CALLS,
        graceful_shutdown_timeout_s=_ACCOUNTS_SHUTDOWN_S,
        graceful_shutdown_wait_loop_s=_DRAIN_POLL_S,
        ray_actor_options={"num_cpus": 0},
    )
    return decorate(Accounts)


def _spread(ingress: IngressSettings) -> dict[str, Any]:
    """How many replicas a node may have, and whether a rolling change begins with a new one.

    Replicas with a node each might find no node for one more, so they are replaced one after another.
    """
    if ingress.max_per_node is None or ingress.count == 1:
        return {"max_surge_percent": _ONE_MORE}
    return {"max_replicas_per_node": ingress.max_per_node}


def _scale(settings: ModelApplicationSettings) -> dict[str, Any]:
    scaling = settings.worker.autoscaling
    if scaling is None:
        return {"num_replicas": settings.worker.count}
    return {
        "autoscaling_config": {
            "min_replicas": scaling.min_workers,
            "max_replicas": scaling.max_workers,
            "target_ongoing_requests": scaling.target_ongoing_requests,
            "upscale_delay_s": scaling.upscale_delay_s,
            "downscale_delay_s": scaling.downscale_delay_s,
            "policy": {"policy_function": "app.controller.autoscaling:without_batches"},
        }
    }
