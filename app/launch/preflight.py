"""Finds problems before anything starts that would stop the service minutes later, or keep it waiting.

It looks at the models' files and at the machine; it starts nothing, and loads no weights. The settings themselves are
checked elsewhere.
"""

import math
import os
from collections.abc import Sequence
from pathlib import Path

from app.interface.request.access_log import check_folder
from app.interface.request.callers import read_api_keys
from app.interface.request.traces import check_library
from app.launch.config_file import ServiceConfig
from app.model_check import check_draft_of, check_files
from app.settings.applications import ModelApplicationSettings
from app.settings.knobs import SettingsError
from app.settings.worker import WorkerSettings
from app.workers.awake_models import check_awake, most_awake_bytes
from app.workers.drafts import draft_bytes, drafting_bytes
from app.workers.machine_memory import NoRoomError, needed_bytes
from app.workers.numa import Slot, spanning_slot, worker_slots

_RAY_BYTES = 2 << 30
"""Memory of a Ray's processes, the ingress and the workers without weights and cache."""


def check_start(config: ServiceConfig, nodes: Sequence[Slot], memory_bytes: int, share: int | None) -> list[str]:
    """Returns warnings for the user, a sentence each. Raises SettingsError for what the machine or files can't do.

    nodes: the machine's. memory_bytes: what the service may use. share: cores of each worker, from `shared_cores`.
    """
    keys = config.application.args.ingress.api_key_file
    if keys is not None:
        read_api_keys(Path(keys))
    if (log_folder := config.application.args.ingress.access_log_folder) is not None:
        check_folder(Path(log_folder))
    if config.application.args.ingress.traces_endpoint is not None:
        check_library()
    notes = list[str]()
    for application in config.applications:
        notes += check_files(application.args.model_card())
        check_draft_of(application.args)
        if share is None:
            _check_cores(application.args.worker, nodes)
        _check_pages_folder(application.args.memory.folder)
    check_processor()  # before what needs the native extension for sizes
    _check_memory(config, memory_bytes)
    return notes


def check_processor() -> None:
    """Raises SettingsError for a processor that has nothing above the scalar kernels, unless these are asked for."""
    try:
        from kernels._native import cpu_model, default_tier

        tier = default_tier()
    except (ImportError, ValueError) as error:  # REDOUBT_ISA names a tier that this machine lacks
        raise SettingsError(str(error)) from error
    if tier == "scalar" and not os.environ.get("REDOUBT_ISA"):
        raise SettingsError(
            f"this machine's processor ({cpu_model()}) has no AVX2, which the engine needs; REDOUBT_ISA=scalar in the"
            " environment serves without it, too slowly for more than a try"
        )


def ray_cpus(config: ServiceConfig, cores: int) -> int:
    """Logical CPUs of a private Ray, enough that every replica is placed: Ray's book-keeping, not cores.

    cores: the machine's.
    """
    workers = [one.args.worker for one in config.applications]
    ingress = config.application.args.ingress
    reserved = ingress.count * ingress.ray_num_cpus + sum(worker.most * worker.ray_num_cpus for worker in workers)
    return max(cores, math.ceil(reserved))


def memory_beside_bytes(config: ServiceConfig) -> int:
    """The most memory that a second service with this configuration takes beside a running one."""
    return sum(_memory(config)) + _RAY_BYTES


def _check_pages_folder(folder: str | None) -> None:
    if folder is None:
        return
    try:
        Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(
            f"memory.folder: {folder}: {error.strerror}; it must be a folder that can be written to"
        ) from error


def _check_cores(worker: WorkerSettings, nodes: Sequence[Slot]) -> None:
    try:
        slots = [spanning_slot(nodes)] if worker.numa == "all" else worker_slots(nodes, worker.cpus_per_worker)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    if worker.most > len(slots):
        cores = sum(len(node.cpus) for node in nodes)
        raise SettingsError(
            f"worker: {worker.most} workers, but this machine of {cores} cores has room for {len(slots)} of"
            f" {len(slots[0].cpus)} cores; worker.cpus_per_worker divides it among more"
        )


def _memory(config: ServiceConfig) -> tuple[int, int]:
    """Bytes of the weights, each counted once, and of all workers' KV caches; of models that sleep the largest's."""
    awake = [_memory_of(one.args) for one in config.applications if one.args.sleep.after_s is None]
    sleepers = [_memory_of(one.args) for one in config.applications if one.args.sleep.after_s is not None]
    counted = [*awake, max(sleepers, key=sum, default=(0, 0))]
    return sum(weights for weights, _ in counted), sum(cache for _, cache in counted)


def _memory_of(args: ModelApplicationSettings) -> tuple[int, int]:
    folder = args.model.folder
    weights = 0 if folder is None else (Path(folder) / "model.safetensors").stat().st_size
    of_draft, keys = _drafting_bytes(args)
    return weights + of_draft, args.worker.most * (args.engine.kv_memory_bytes + keys)


def _drafting_bytes(args: ModelApplicationSettings) -> tuple[int, int]:
    """As `drafting_bytes`; a sealed model's keys are not known before it is opened, its draft model's weights are."""
    folder = args.model.folder
    return (draft_bytes(args), 0) if folder is None else drafting_bytes(args, Path(folder))


def _check_memory(config: ServiceConfig, memory_bytes: int) -> None:
    for args in (one.args for one in config.applications if one.args.sleep.after_s is not None):
        needed = needed_bytes(args.model.path, args.engine.kv_memory_bytes + sum(_drafting_bytes(args)))
        try:
            check_awake(args.model.name, needed, most_awake_bytes(args.sleep, memory_bytes))
        except NoRoomError as error:
            raise SettingsError(str(error)) from error
    weights, cache = _memory(config)
    if weights + cache > memory_bytes:
        raise SettingsError(
            f"engine.kv_memory_bytes: {_gb(cache)} for all workers and {_gb(weights)} of weights are more than the"
            f" {_gb(memory_bytes)} of this machine"
        )


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
