"""The benches of `redoubt bench`: name, module, and what each measures. Each has its own options (--help).

They are loaded by name on demand: `bench` is above `app` and needs packages that serving does not.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Final, cast

BENCHES: Final[Mapping[str, tuple[str, str]]] = {
    "engine": ("bench.engine", "the engine itself: prompts, answers, loading"),
    "serving": ("bench.serving", "the service over the bare engine"),
    "conversations": ("bench.conversations.command", "real conversations that arrive at random, also at other servers"),
    "gains": ("bench.gains", "what each optimization of the engine gains by itself"),
    "loads": ("bench.loads", "first tokens, many users, a start, and lengths beside llama.cpp"),
    "embeddings": ("bench.embeddings", "texts a second beside llama.cpp, and a chat beside them"),
    "drafts": ("bench.drafts", "what a draft model gains, by how many of its tokens are right"),
    "kernels": ("bench.kernels", "each kernel against the machine's memory and peak"),
    "memory": ("bench.memory", "saved pages: first tokens after a restart"),
    "documents": ("bench.documents", "questions about documents: the first, the second, after a restart"),
    "faults": ("bench.faults.measure", "requests that are lost when something dies"),
    "overload": ("bench.faults.overload", "who waits how long under a flood"),
    "soak": ("bench.faults.soak", "whether a busy service grows"),
    "cluster": ("bench.cluster.measure", "a cluster of pods over one machine"),
    "scale": ("bench.scale.measure", "routing among many workers, by simulation; what an ingress costs"),
    "confidential": ("bench.confidential", "what TLS and attestation cost"),
    "report": ("bench.report.command", "this machine with one model, as a page with plots"),
    "compare": ("bench.compare", "our engine beside others"),
    "table": ("bench.table.command", "the documentation's tables, on this machine"),
    "published": ("bench.published.command", "what stands beside the figures of the papers that the project came from"),
}
NEED_VERIFIER: Final = ("confidential",)


def load(name: str) -> Callable[[Sequence[str]], int]:
    """Loads a bench's command, which takes its arguments and returns the exit status. Raises ImportError."""
    return cast("Callable[[Sequence[str]], int]", import_module(BENCHES[name][0]).main)


def usage() -> str:
    lines = [f"  {name:15}{about}" for name, (_, about) in BENCHES.items()]
    return "\n".join(["Usage: redoubt bench WHAT [OPTIONS]", "", *lines, "", "Each has its own --help."])
