"""What each native model of a worker is loaded with, its own and the one that drafts: its cores, types and weights.

The native extension is imported inside the functions, as in `load`. Knows nothing of a model's pages.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from app.sealing.sealed_model import SealedModel
from app.settings.applications import ModelApplicationSettings
from app.settings.worker import EngineSettings
from app.workers.numa import Slot, thread_places

if TYPE_CHECKING:
    from kernels import _native


class NativeOptions(TypedDict):
    """Arguments of `NativeRunner`."""

    threads: int
    cpus: tuple[int, ...]
    nodes: tuple[int, ...]
    bind_weights: bool
    compute_type: str
    prompt_compute_type: str
    kv_type: str
    """Not "auto"."""
    weight_memory: str


def native_options(
    settings: ModelApplicationSettings, folder: "str | _native.ModelFiles", slot: Slot, threads: int
) -> NativeOptions:
    """Returns the options of a model on these cores. Raises `_native.PackedFileError`, OSError."""
    engine = settings.engine
    cpus, nodes = thread_places(slot, threads)
    return NativeOptions(
        threads=threads,
        cpus=cpus,
        nodes=nodes,
        bind_weights=settings.worker.bind_memory,
        compute_type=engine.compute_type,
        prompt_compute_type=engine.prompt_compute_type,
        kv_type=chosen_kv_type(engine, folder),
        weight_memory="mapped" if settings.sleep.after_s is not None else engine.weight_memory,
    )


def chosen_kv_type(engine: EngineSettings, folder: "str | _native.ModelFiles") -> str:
    """Returns the type of a model's keys and values, not "auto". Raises `_native.PackedFileError`, OSError."""
    from kernels import _native

    return _native.Model.chosen_kv_type(folder, engine.kv_type, engine.compute_type, engine.prompt_compute_type)


def native_files(files: Path | SealedModel) -> "str | _native.ModelFiles":
    """Returns a model's files as the native extension takes them."""
    return str(files) if isinstance(files, Path) else files


def bind_memory(settings: ModelApplicationSettings, slot: Slot, nodes: Sequence[int]) -> None:
    """Puts what this process allocates from now on where its threads are, unless `worker.bind_memory` is off.

    nodes: of the threads; empty: all are on the slot's node.
    """
    from kernels import _native

    if not settings.worker.bind_memory:
        return
    if nodes:
        _native.interleave_memory(sorted(set(nodes)))
    else:
        _native.bind_memory_to_node(slot.numa_node)


def resident_sizes(model: "_native.Model") -> str:
    """Returns the parts of a model's memory in MB, for the log."""
    return ", ".join(f"{name} {count / 1e6:.0f} MB" for name, count in model.resident_bytes().items())
