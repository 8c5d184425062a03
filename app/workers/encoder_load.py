"""Loads what a worker of an encoder runs: the native model on its cores, and the head behind it.

Knows nothing of requests.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.engine.encoding.head import ACTIVATIONS, DenseLayer, Head
from app.model_folder import encoder_settings, read_json
from app.sealing.sealed_model import SealedModel
from app.settings.applications import ModelApplicationSettings
from app.workers.native_options import bind_memory, native_files, resident_sizes
from app.workers.numa import Slot, thread_places
from app.workers.packed_header import PackedHeader, read_header

if TYPE_CHECKING:
    from app.engine.encoding.native_encoder import NativeEncoder

logger = logging.getLogger("ray.serve")

EncoderFactory = Callable[[ModelApplicationSettings, Path | SealedModel, Slot, int], "tuple[NativeEncoder, Head]"]
"""(settings, the model's files, cores, number of threads) -> the loaded model, and what is made of its output."""


def is_encoder(files: Path | SealedModel) -> bool:
    """Whether a converted model is an encoder. Raises ChatModelError naming the file."""
    return encoder_settings(read_json(files / "config.json")) is not None


def load_encoder(
    settings: ModelApplicationSettings, files: Path | SealedModel, slot: Slot, threads: int
) -> "tuple[NativeEncoder, Head]":
    """Loads the native model on these cores. Raises what `NativeEncoder` raises, and ChatModelError."""
    from app.engine.encoding.native_encoder import NativeEncoder

    engine = settings.engine
    header = read_header(files)
    if header is None or "encoder" not in header.decoder:
        raise ValueError(f"{files}: its weights are no encoder's; convert the model again")
    found = encoder_settings(read_json(files / "config.json")) or {}
    decoder = header.decoder
    cpus, nodes = thread_places(slot, threads)
    bind_memory(settings, slot, nodes)
    encoder = NativeEncoder(
        native_files(files),
        threads=threads,
        cpus=cpus,
        nodes=nodes,
        bind_weights=settings.worker.bind_memory,
        compute_type=engine.compute_type,
        kv_type=engine.kv_type,
        weight_memory="mapped" if settings.sleep.after_s is not None else engine.weight_memory,
        max_tokens=min(found["max_tokens"], engine.max_context_tokens or found["max_tokens"]),
        positions=decoder["max_positions"] if decoder.get("token_types", 0) > 1 else 0,
    )
    sizes = resident_sizes(encoder.model)
    logger.info("Batches have at most %d tokens. Memory, at most: %s", encoder.max_step_tokens, sizes)
    return encoder, _head(files, header, decoder["encoder"])


def _head(files: Path | SealedModel, header: PackedHeader, described: dict[str, Any]) -> Head:
    dense = []
    for number, layer in enumerate(described.get("dense", ())):
        prefix = f"encoder.dense.{number}."
        weight = header.vector(files, prefix + "weight").reshape(layer["rows"], layer["cols"])
        bias = header.vector(files, prefix + "bias") if layer.get("bias", True) else None
        epsilon = layer.get("norm_epsilon", 0.0)
        norm = header.vector(files, prefix + "norm.weight") if epsilon else None
        dense.append(DenseLayer(weight, bias, ACTIVATIONS[layer.get("activation", "identity")], norm, epsilon))
    return Head(
        described["pooling"], described.get("normalized", True), tuple(dense), scores=described.get("scores", False)
    )
