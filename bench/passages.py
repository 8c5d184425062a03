"""What a large collection takes in an ingress: to open its passages, to hold them, and to search them.

Documents of made-up words, as often as words are in texts (Zipf), with vectors by chance. Opening counts words and
joins them to an index; unsealing comes on top. Run: `python -m bench.passages`; prints one JSON object.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.knowledge.index import AddedDocument, Index, OpenDocument, OpenDocuments, search
from app.knowledge.passages import Passage, Vectors
from bench.common import at_least, machine, memory_bytes, print_result

OF_A_DOCUMENT: Final = 40
WORDS_OF_A_PASSAGE: Final = 140
WORDS: Final = 200_000
DIMENSIONS: Final = 384
QUESTION_WORDS: Final = 12
STATUS: Final = "/proc/self/status"


def measured(passages: int, searches: int) -> dict[str, Any]:
    """Opens so many passages, searches them, and adds one document more."""
    rng = np.random.default_rng(1)
    words = np.array([f"w{number:x}" for number in range(WORDS)])

    def text(count: int) -> str:
        return " ".join(words[np.minimum(rng.zipf(1.1, count), WORDS) - 1])

    def vectors(count: int) -> NDArray[np.float32]:
        found = rng.standard_normal((count, DIMENSIONS), np.float32)
        found /= np.linalg.norm(found, axis=1, keepdims=True)
        return found

    index = Index()
    before_bytes, open_s = memory_bytes(STATUS, "VmRSS"), 0.0
    documents, added = list[OpenDocument](), dict[int, AddedDocument]()
    for number in range(passages // OF_A_DOCUMENT + 1):
        made = [Passage(text(WORDS_OF_A_PASSAGE), 1, "Heading", 0) for _ in range(OF_A_DOCUMENT)]
        document, kept = OpenDocument(f"{number}", f"{number}.md", made, number=number), Vectors.of(vectors(len(made)))
        began_s = time.perf_counter()
        added[number] = AddedDocument.of(document, kept, index.vocabulary)
        open_s += time.perf_counter() - began_s
        documents.append(document)
    last = documents.pop()
    began_s = time.perf_counter()
    index = index.changed(documents, added)
    join_s = time.perf_counter() - began_s
    new = {last.number: added[last.number]}
    del added
    held_bytes = memory_bytes(STATUS, "VmRSS") - before_bytes
    took_s = list[float]()
    for _ in range(searches):
        question, vector = text(QUESTION_WORDS), vectors(1)[0]
        began_s = time.perf_counter()
        search(OpenDocuments(documents, [index]), question, vector, 10)
        took_s.append(time.perf_counter() - began_s)
    began_s = time.perf_counter()
    index.changed([*documents, last], new)
    return {
        "passages": len(documents) * OF_A_DOCUMENT,
        "open_s": round(open_s, 2),
        "join_s": round(join_s, 2),
        "add_one_document_s": round(time.perf_counter() - began_s, 3),
        "search_ms": round(1000 * statistics.median(took_s), 2),
        "search_worst_ms": round(1000 * max(took_s), 2),
        "index_bytes": index.size_bytes,
        "held_bytes": held_bytes,
        "peak_bytes": memory_bytes(STATUS, "VmHWM") - before_bytes,
        **machine(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.passages", description=__doc__)
    parser.add_argument("--passages", type=at_least(OF_A_DOCUMENT), default=100_000)
    parser.add_argument("--searches", type=at_least(1), default=50)
    parser.add_argument("--out", type=Path, help="where to write the JSON")
    options = parser.parse_args()
    return print_result(lambda: measured(options.passages, options.searches), (OSError,), indent=1, out=options.out)


if __name__ == "__main__":
    raise SystemExit(main())
