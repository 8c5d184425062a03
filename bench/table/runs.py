"""What the tables need to have measured: runs of `bench.compare`, what each takes, and which are done already.

The estimate is rough: shares of the machine's limits that engines of each kind reached elsewhere. Measures no engine.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from bench.compare import OURS, TURN_S, shortened
from bench.models import BenchModel
from bench.rates import Rates
from bench.starting import NO_ROOM
from bench.table.results import PREFIX, Machine
from bench.work import Work, works

GGUF_PEERS: Final = ("llama_cpp", "ik_llama_cpp", "openvino_genai")
INSTALLING: Final[Mapping[str, str]] = {
    "llama_cpp": "llama.cpp (is compiled: about 5 minutes on 2 cores)",
    "ik_llama_cpp": "ik_llama.cpp (a minute)",
    "openvino_genai": "OpenVINO GenAI (a minute)",
    "vllm_cpu": "vLLM (2 to 5 minutes)",
    "ipex_llm": "IPEX-LLM (2 to 5 minutes)",
}
FILE_BYTES_PER_WEIGHT: Final = 0.6
"""Size of our packed form, and of the Q4_0 GGUF; a Hugging Face folder takes 2."""
OUR_MEMORY_BYTES: Final = 1 << 30
"""Our engine's memory beside the weights, with keys and values."""


@dataclass(frozen=True, slots=True)
class Speed:
    """An engine's speed in shares of the machine's limits, and its measurements' overhead."""

    prompt: float
    decode: float
    variants: int
    load_s_per_weight: float
    start_s: float = 0.0
    keeps_contexts: bool = False
    """Computes the context before a decoding once, not each time."""


SPEEDS: Final[Mapping[str, Speed]] = {
    OURS: Speed(0.6, 0.65, 1, 1e-9),
    "llama_cpp": Speed(0.25, 0.3, 4, 1e-9, keeps_contexts=True),
    "ik_llama_cpp": Speed(0.35, 0.3, 4, 2e-9, keeps_contexts=True),
    "openvino_genai": Speed(0.4, 0.3, 2, 10e-9),
    "vllm_cpu": Speed(0.25, 0.25, 1, 10e-9, start_s=100.0),
    "ipex_llm": Speed(0.25, 0.2, 1, 20e-9, start_s=20.0),
}


@dataclass(frozen=True, slots=True)
class Run:
    """One call of `bench.compare`."""

    name: str
    """Name within the JSON's name."""
    model: str
    prompts: tuple[int, ...]
    batches: tuple[int, ...]
    decode_context: int
    repeats: int
    peers: tuple[str, ...]
    generate: int = 32
    tuning_tokens: int = 1024
    """Less for large models, whose prompts of 512 tokens take half a minute on two cores."""

    @property
    def works(self) -> list[Work]:
        """The works to measure."""
        return works(self.prompts, self.decode_context, self.generate, self.batches)

    def file(self, machine: Machine) -> str:
        """The JSON's name on a machine."""
        name = re.sub(r"[^a-z0-9.]+", "-", machine.name.lower().replace("zen ", "zen")).strip("-")
        return f"{PREFIX}{self.name}-{name}-{machine.threads}-threads.json"

    def arguments(self, threads: int, out: Path) -> list[str]:
        """The command line of `redoubt bench compare`."""
        return [
            *("--model", self.model, "--threads", str(threads), "--peers", ",".join(self.peers)),
            *("--repeats", str(self.repeats), "--prompt", _listed(self.prompts), "--batch", _listed(self.batches)),
            *("--decode-context", str(self.decode_context), "--generate", str(self.generate)),
            *("--tuning-tokens", str(self.tuning_tokens), "--out", str(out)),
        ]


RUNS: Final = (
    Run("embedded", "embedded", (512,), (1, 8, 32), 128, 3, (*GGUF_PEERS, "vllm_cpu")),
    Run("1.1b", "1.1b", (512,), (1, 8, 16, 32), 128, 2, GGUF_PEERS, tuning_tokens=512),
    # A prompt of 8,192 takes a minute on two cores, so one round is what there is time for.
    Run("1.1b-8192", "1.1b", (8192,), (1,), 8192, 1, GGUF_PEERS, tuning_tokens=512),
    Run("qwen3-8b", "qwen3-8b", (512,), (1, 8), 128, 2, GGUF_PEERS, tuning_tokens=256),
    Run("8b", "8b", (512,), (1,), 128, 2, GGUF_PEERS, tuning_tokens=256),
    Run("7b", "7b", (512,), (1,), 512, 2, GGUF_PEERS, tuning_tokens=256),
    Run("a3b-12", "a3b-12", (512,), (1, 8), 128, 2, GGUF_PEERS, tuning_tokens=256),
    Run("gpt-oss-12", "gpt-oss-12", (512,), (1, 8), 128, 2, GGUF_PEERS, tuning_tokens=256),
    Run("hybrid-8", "hybrid-8", (512,), (1, 8), 128, 2, GGUF_PEERS, tuning_tokens=256),
    Run("a3b", "a3b", (512,), (1, 8), 128, 1, GGUF_PEERS, tuning_tokens=256),
)


def chosen_runs(models: Sequence[str], peers: Sequence[str] | None, *, quick: bool) -> list[Run]:
    """The runs of these models; with other peers than usual, or one round each."""
    return [
        replace(run, peers=run.peers if peers is None else tuple(peers), repeats=1 if quick else run.repeats)
        for run in RUNS
        if run.model in models
    ]


def is_finished(path: Path, run: Run, commit: str, code_at: str | None) -> bool:
    """Whether a JSON has all of a run, of today's engine without uncommitted changes.

    Of the peers too, but for those that have no room in this machine's memory: that will not change.
    """
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        lasting = {name for name, reason in result["missing"].items() if NO_ROOM in reason}
        measured = set(result["engines"]) | lasting
        same_code = result["commit"] == commit or (code_at is not None and result.get("code_at") == code_at)
        return (
            same_code
            and not commit.endswith("-dirty")
            and not result["commit"].endswith("-dirty")
            and result["rounds_finished"] >= run.repeats
            and {work.name for work in run.works} <= set(result["works"])
            and set(run.peers) <= measured
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def missing_peers(path: Path) -> list[str]:
    """The peers that a finished run's JSON lacks."""
    return sorted(json.loads(path.read_text(encoding="utf-8"))["missing"])


def estimated_s(run: Run, weights: int, rates: Rates) -> float:
    """Roughly the seconds that a run takes, without installing peers and making models.

    weights: the model's, which all are read for a token. rates: the machine's limits.
    """
    total_s = 0.0
    for name in (OURS, *run.peers):
        speed = SPEEDS[name]
        tuning = 2 * speed.variants if speed.variants > 1 else 1
        total_s += speed.start_s + weights * speed.load_s_per_weight * speed.variants
        for work in run.works:
            short_s, short_context_s = _work_s(shortened(work, run.tuning_tokens), weights, rates, speed)
            once_s, context_s = _work_s(work, weights, rates, speed)
            if speed.keeps_contexts:
                total_s += tuning * max(TURN_S, short_s) + speed.variants * short_context_s
                total_s += run.repeats * max(TURN_S, once_s) + context_s
            else:
                total_s += tuning * max(TURN_S, short_s + short_context_s)
                total_s += run.repeats * max(TURN_S, once_s + context_s)
    return total_s


def _work_s(work: Work, weights: int, rates: Rates, speed: Speed) -> tuple[float, float]:
    """Seconds of a work, and of the contexts before it."""
    macs_per_s = rates.macs_per_s or rates.read_bytes_per_s  # the peak is not known: one weight a byte is slow enough
    long = 0.6 if work.context_tokens > 4096 else 1.0  # attention
    prompts_s = work.streams * work.context_tokens * weights / (macs_per_s * speed.prompt * long)
    if work.kind == "prefill":
        return prompts_s, 0.0
    step_s = max(weights * FILE_BYTES_PER_WEIGHT / rates.read_bytes_per_s, work.streams * weights / macs_per_s)
    return work.new_tokens * step_s / (speed.decode * long), prompts_s


def peers_that_fit(run: Run, weights: int, free_bytes: int, bytes_per_weight: Mapping[str, float]) -> tuple[str, ...]:
    """The peers that memory suffices for beside our engine and the peers before them.

    bytes_per_weight: what each may take at most. Our own weights do not count, because they are
    mapped from a file.
    """
    left = float(free_bytes - OUR_MEMORY_BYTES)
    fit = []
    for name in run.peers:
        needed = weights * bytes_per_weight[name]
        if needed <= left:
            fit.append(name)
            left -= needed
    return tuple(fit)


def unmade_bytes(model: BenchModel, weights: int, peers: Sequence[str]) -> int:
    """Bytes of disk that the model's forms will take which are not there yet."""
    bytes_of = 0.0
    if not (model.packed / "config.json").exists():
        bytes_of += weights * FILE_BYTES_PER_WEIGHT
    if not model.gguf.exists():
        bytes_of += weights * FILE_BYTES_PER_WEIGHT
    if {"vllm_cpu", "ipex_llm"} & set(peers) and not model.hf.exists():
        bytes_of += weights * 2.0
    return int(bytes_of)


def our_memory_bytes(weights: int) -> int:
    """Our own engine's memory."""
    return int(weights * FILE_BYTES_PER_WEIGHT) + OUR_MEMORY_BYTES


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))
