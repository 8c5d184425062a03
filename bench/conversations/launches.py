"""How each server of a run is started: ours as users start it, and the peers' with their best settings.

Starts nothing. Knows the servers' options, and nothing of requests.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]

from app.model_folder import is_draft_head
from bench.common import ROOT
from bench.conversations.server import Launch
from bench.models import BenchModel
from bench.peers.http_server import HttpPeer, Sizes
from bench.processes import free_port
from kernels import _native
from quant.files.json_file import read_json_object

OURS: Final = "redoubt"
PEERS: Final[Mapping[str, str]] = {
    "llama_cpp": "llama_server",
    "llama_cpp_native": "llama_server_native",
    "vllm_cpu": "vllm_server",
    "openvino_genai": "openvino_server",
}
"""Servers by name, and their files below bench.peers."""
QUEUED: Final = 4096
"""Requests that our service takes before it refuses one: more than any load has, for peers do not refuse either."""
SERVICE_BYTES: Final = 2 << 30
"""Approximate memory of our service besides weights and pages: Ray, and the processes in it."""
PEER_BYTES: Final = 1 << 30
"""Approximate memory of a peer's server besides weights, keys and values: its libraries, and activations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSettings:
    """How our service is set up where it differs from its defaults."""

    workers: int = 1
    guesses: bool = True
    prefix_cache: bool = True
    kv_type: str = "auto"
    draft: Path | None = None
    """A smaller model that drafts."""
    drafts: bool = True
    """Whether it drafts, or the model's own layer of multi-token prediction."""

    def in_words(self) -> str:
        """Describes the settings for the result."""
        return (
            f"{self.workers} worker{'s' if self.workers > 1 else ''}, guesses {'on' if self.guesses else 'off'}, "
            f"prefix cache {'on' if self.prefix_cache else 'off'}, KV {self.kv_type}"
            f"{f', {self.draft.name} drafts' if self.draft and self.drafts else ''}"
            f"{'' if self.drafts else ', drafts off'}"
        )


VARIANTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "no_guesses": {"guesses": False},
    "no_prefix_cache": {"prefix_cache": False},
    "kv_int8": {"kv_type": "int8"},
    "no_drafts": {"drafts": False},
}
"""Our service with one setting switched: what it is worth."""


def own_launches(
    packed: Sequence[Path],
    settings: OwnSettings,
    variants: Sequence[str],
    sizes: Sizes,
    folder: Path,
    logs: Path,
    *,
    name: str = OURS,
) -> list[Launch]:
    """Our service, and one more for each variant. packed: the models. folder: for their configurations."""
    kinds = {name: settings} | {f"{name}_{one}": replace(settings, **VARIANTS[one]) for one in variants}
    return [_own_launch(name, packed, own, sizes, folder, logs) for name, own in kinds.items()]


def _own_launch(name: str, packed: Sequence[Path], own: OwnSettings, sizes: Sizes, folder: Path, logs: Path) -> Launch:
    values = yaml.safe_load((ROOT / "ray_configs/local.yaml").read_text(encoding="utf-8"))
    arguments = values["applications"][0]["args"]
    workers = own.workers * len(packed)
    threads = max(1, sizes.threads // workers)
    arguments["worker"] |= {
        "count": own.workers,
        "threads": threads,
        "max_concurrent_requests": -(-sizes.slots // workers),
        "max_queued_requests": QUEUED,
        "ray_num_cpus": 0.1,
    }
    arguments["ingress"]["max_ongoing_requests"] = QUEUED
    if workers > 1:
        arguments["worker"]["cpus_per_worker"] = threads
    arguments["engine"] |= {
        "kv_memory_bytes": sizes.kv_bytes // workers,
        "kv_type": own.kv_type,
        "prefix_cache": own.prefix_cache,
        **({} if own.guesses else {"guess_tokens": 0}),
        **({} if own.drafts else {"draft_tokens": 0}),
    }
    config = folder / f"{name}.yaml"
    config.write_text(yaml.safe_dump(values), encoding="utf-8")
    port = free_port()
    drafting = [] if own.draft is None else [own.draft]
    drafts_bytes = _draft_kv_bytes(packed[0], own.draft, sizes.kv_bytes) if own.draft and own.drafts else 0
    weights_bytes = sum(file.stat().st_size for one in (*packed, *drafting) for file in one.glob("*.safetensors"))
    return Launch(
        name=name,
        version="this commit",
        settings=f"redoubt serve, {sizes.slots} at once, {own.in_words()}, {sizes.kv_bytes / 2**30:.1f} GiB KV",
        command=(
            *("setpriv", "--pdeathsig", "TERM"),  # then it ends whole, also when this bench is killed
            *(sys.executable, "-m", "app.cli", "serve", "--config", str(config)),
            *("--port", str(port)),
            *(word for one in packed for word in ("--model", str(one))),
            *(word for one in drafting for word in ("--draft", str(one))),
        ),
        folder=ROOT,
        log=logs / f"conversations-{name}.log",
        port=port,
        environment=dict(os.environ),
        workers=workers,
        models=len(packed),
        may_be_stopped=False,
        needed_bytes=weights_bytes * (1 + own.workers) + sizes.kv_bytes + drafts_bytes + SERVICE_BYTES,
    )


def _draft_kv_bytes(packed: Path, draft: Path, kv_bytes: int) -> int:
    """Memory for what drafts, beside the model's `kv_bytes`: keys and values of as many tokens."""
    page_bytes = _native.Model.kv_page_bytes
    own_bytes = page_bytes(str(packed), "int16")
    if is_draft_head(read_json_object(draft / "config.json")):
        return kv_bytes * (page_bytes(str(packed), "int16", predicts=str(draft)) - own_bytes) // own_bytes
    return kv_bytes * page_bytes(str(draft), "int16") // own_bytes


def peer_launch(name: str, model: BenchModel, sizes: Sizes, environments: Path) -> Launch:
    """Installs a peer and makes its form of the model. Raises InstallError and what making the model raises."""
    peer: HttpPeer = import_module(f"bench.peers.{PEERS[name]}").PEER
    peer.install(environments)
    path = model.make_gguf() if peer.reads == "gguf" else model.make_hf()
    port = free_port()
    start = peer.start(peer.python(environments).absolute(), path.absolute(), port, sizes)
    own_variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return Launch(
        name=name,
        version=peer.version,
        settings=f"{sizes.threads} threads, {start.settings}",
        command=("setpriv", "--pdeathsig", "KILL", *start.command),
        folder=ROOT if "bench.peers" in " ".join(start.command) else environments,
        log=environments / f"conversations-{name}.log",
        port=port,
        environment=own_variables | dict(start.environment),
        may_be_stopped=True,
        needed_bytes=int(peer.memory_per_weight_bytes * weight_count(model.packed)) + (sizes.kv_gib << 30) + PEER_BYTES,
    )


def weight_count(packed: Path) -> int:
    """Estimates the number of a packed model's weights, at about 4.5 bits each."""
    return int(sum(file.stat().st_size for file in packed.glob("*.safetensors")) * 8 / 4.5)
