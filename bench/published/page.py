"""Writes the tables of docs/published.md between their marks, from the JSONs. Measures nothing."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from bench.published import papers, quality, thesis
from bench.published.results import Results, sources
from bench.table.markdown import between_marks

Make = Callable[[Results], list[str]]
ORIGINAL: Final = thesis.SHAPES
TABLES: Final[Mapping[str, tuple[Make, Sequence[str]]]] = {
    "summary": (thesis.summary, ()),
    "memory": (thesis.memory, ORIGINAL),
    "load": (thesis.load, ()),
    "perplexity": (quality.perplexity, ("quality-longbench-smollm2-135m",)),
    "answers": (quality.answers, ("answers-smollm2-135m",)),
    "ability": (quality.ability, quality.ABILITY),
    "weights": (quality.weights, quality.WEIGHTS),
    "granularity": (quality.granularity, quality.GRANULARITY),
    "response": (thesis.response, ()),
    "tokens": (thesis.tokens, ()),
    "start": (thesis.start, ("loads-start-embedded",)),
    "concurrency": (thesis.concurrency, ("loads-concurrency-embedded",)),
    "confidential": (thesis.confidential, ("confidential-embedded",)),
    "first-token": (papers.first_token, papers.FIRST_TOKEN),
    "gains": (papers.gains, ("gains-embedded",)),
    "kernel-waits": (papers.kernel_waits, ("kernel-waits-embedded",)),
    "batches": (papers.batches, ("kernels-4096x4096",)),
    "llama-cpp": (papers.beside_llama_cpp, papers.LENGTHS),
    "accuracy": (quality.accuracy, ("quality-methods-smollm2-135m",)),
    "tiers": (papers.tiers, ("kernels-tiers", "ops-attention-tiers")),
    "stages": (papers.stages, ("original-135m", "stages-17-embedded")),
    "shares": (papers.shares, ("stages-embedded",)),
    "floats": (papers.float_types, ("original-135m",)),
    "pages": (papers.pages, ()),
    "page-error": (papers.page_error, ("kv-error-embedded",)),
}
"""By the name in the marks: what writes it, and the results that its lines of sources name."""


def written(page: str, results: Results) -> str:
    """The page with all tables anew. Raises ValueError if a mark is missing or a file is no JSON."""
    for name, (make, files) in TABLES.items():
        lines = make(results)
        told = sources([file for each in files for file in results.shown(each)])
        page = between_marks(page, name, "\n".join([*lines, *(["", *told] if told else [])]))
    return page
