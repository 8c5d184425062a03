"""A worker's report for the operator's capacity calculator, from its model's header and its warm-up.

Measures nothing beyond the warm-up. Knows the packed file's header, and no weights.
"""

from dataclasses import asdict
from pathlib import Path

from app.capacity.demand import windows_of
from app.capacity.heads import mixed_heads_of
from app.capacity.states import states_of
from app.messages.capacity import WorkerCapacity
from app.sealing.sealed_model import SealedModel
from app.settings.worker import EngineSettings
from app.workers.machine_memory import available_memory_bytes
from app.workers.native_options import chosen_kv_type, native_files
from app.workers.packed_header import read_header
from app.workers.warm_up import WarmUp


def worker_capacity(
    files: Path | SealedModel, engine: EngineSettings, warm: WarmUp, kv_pages: int, *, keeps_windows: bool = False
) -> WorkerCapacity | None:
    """Makes the report; None for a folder without weights, as in tests, or a warm-up without a first token.

    keeps_windows: whether layers with a sliding window keep only its keys.
    """
    from kernels import _native

    header = read_header(files)
    if warm.token_s <= 0 or header is None:
        return None
    folder = native_files(files)
    kv_type = chosen_kv_type(engine, folder)
    decoder, matrices = header.decoder, header.matrices
    mixed = mixed_heads_of(decoder)
    return WorkerCapacity(
        layers=len(decoder["layers"]),
        hidden=decoder["hidden_size"],
        heads=decoder["heads"],
        kv_heads=decoder["kv_heads"],
        head_dim=decoder["head_dim"],
        layer_weights=matrices.layer_weights,
        layer_bytes=matrices.layer_bytes,
        head_weights=matrices.head_weights,
        head_bytes=matrices.head_bytes,
        other_bytes=matrices.other_bytes,
        kv_type=kv_type,
        kv_tokens=kv_pages * _native.PAGE_TOKENS,
        vendor="intel" if _native.is_intel_cpu() else "amd",
        prompt_tokens=warm.prompt_tokens,
        prompt_s=warm.prompt_s,
        token_s=warm.token_s,
        memory_left_bytes=available_memory_bytes(),
        expert_bytes=matrices.expert_bytes,
        expert_weights=matrices.expert_weights,
        experts=matrices.experts,
        experts_per_token=matrices.experts_per_token,
        windows=windows_of(decoder),
        keeps_windows=keeps_windows,
        states=asdict(states_of(decoder)),
        mixed=None if mixed is None else asdict(mixed),
    )
