"""How well passages are found: by words, by vectors, by both, and with a reranker.

    python -m bench.eval.retrieval ENCODER [--reranker MODEL] [--out FILE]

The documents are the project's own documentation, the questions in retrieval_questions.toml. A passage is right if it
is of the file that answers and has the answer's words. Recall@5: whether one of the first five is right; nDCG@10: 1
where the first one is, less the later the first right one comes. The same of a few short documents in Chinese, German
and Russian (retrieval_languages.toml). A running service computes vectors and scores; REDOUBT_API_KEY is a key of it,
if it has users.
"""

import argparse
import json
import math
import os
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.client.v1 import connect
from app.documents.document import Section
from app.knowledge.index import CANDIDATES, AddedDocument, Hit, Index, OpenDocument, OpenDocuments, search
from app.knowledge.passages import Vectors, cut
from bench.common import commit

ROOT: Final = Path(__file__).parents[2]
QUESTIONS: Final = Path(__file__).with_name("retrieval_questions.toml")
LANGUAGES: Final = Path(__file__).with_name("retrieval_languages.toml")
_NO_WORD: Final = "\x00"
_TEXTS_AT_ONCE: Final = 256

Embed = Callable[[Sequence[str], str], NDArray[np.float32]]
"""Texts and their kind, "query" or "document", to vectors [n, dimensions]."""
Score = Callable[[str, Sequence[str]], NDArray[np.float32]]


def questions() -> list[dict[str, str]]:
    return list(tomllib.loads(QUESTIONS.read_text())["questions"])


def pages() -> dict[str, str]:
    """Returns the documentation: its files' names and texts."""
    return {path.name: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))}


def languages() -> dict[str, tuple[dict[str, str], list[dict[str, str]]]]:
    """Returns for each language documents, by name, and questions about them."""
    found = tomllib.loads(LANGUAGES.read_text())
    return {
        language: (
            {one["name"]: one["text"] for one in found["documents"] if one["language"] == language},
            [one for one in found["questions"] if one["language"] == language],
        )
        for language in dict.fromkeys(one["language"] for one in found["documents"])
    }


def opened(texts: Mapping[str, str], embed: Embed | None) -> OpenDocuments:
    """Returns documents, cut and embedded. texts: by their names. embed: None: they get no vectors."""
    index, documents, added = Index(), list[OpenDocument](), dict[int, AddedDocument]()
    for number, (name, text) in enumerate(texts.items()):
        document = OpenDocument(name, name, cut([Section(text)], place=name), number=number)
        searched = [passage.searched() for passage in document.passages]
        vectors = None if embed is None else Vectors.of(embed(searched, "document"))
        documents.append(document)
        added[number] = AddedDocument.of(document, vectors, index.vocabulary)
    return OpenDocuments(documents, [index.changed(documents, added)])


def is_right(hit: Hit, question: dict[str, str]) -> bool:
    return hit.document.name == question["file"] and question["says"] in " ".join(hit.passage.text.split())


def measured(ranked: Sequence[Sequence[Hit]], asked: Sequence[dict[str, str]]) -> dict[str, float]:
    """Returns recall@5 and nDCG@10, means over the questions."""
    recall = ndcg = 0.0
    for hits, question in zip(ranked, asked, strict=True):
        first = next((rank for rank, hit in enumerate(hits[:10]) if is_right(hit, question)), None)
        if first is not None:
            recall += first < 5
            ndcg += 1 / math.log2(first + 2)
    return {"recall@5": recall / len(asked), "ndcg@10": ndcg / len(asked)}


def compared(
    texts: Mapping[str, str], asked: Sequence[dict[str, str]], embed: Embed, score: Score | None
) -> dict[str, Any]:
    """Returns recall@5 and nDCG@10 of each way to find the answers."""
    documents = opened(texts, embed)
    vectors = embed([one["ask"] for one in asked], "query")
    ways: dict[str, list[list[Hit]]] = {"words": [], "vectors": [], "both": []}
    if score is not None:
        ways["both, reranked"] = []
    for question, vector in zip(asked, vectors, strict=True):
        ways["words"].append(search(documents, question["ask"], None, 10))
        ways["vectors"].append(search(documents, _NO_WORD, vector, 10))
        both = search(documents, question["ask"], vector, CANDIDATES)
        ways["both"].append(both[:10])
        if score is not None:
            searched = [hit.document.passages[hit.index].searched(hit.document.place) for hit in both]
            scores = score(question["ask"], searched)
            ways["both, reranked"].append([both[at] for at in np.argsort(-scores, kind="stable")[:10]])
    return {
        "questions": len(asked),
        "documents": len(documents),
        "passages": sum(len(each.passages) for each in documents),
        "ways": {name: measured(ranked, asked) for name, ranked in ways.items()},
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.eval.retrieval", description=__doc__)
    parser.add_argument("encoder", help="a model of the service that makes vectors")
    parser.add_argument("--reranker", help="a model of the service that scores pairs")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="a running service")
    parser.add_argument("--out", type=Path, help="where to write the JSON")
    options = parser.parse_args(argv)
    client = connect(options.url, os.environ.get("REDOUBT_API_KEY"))

    def embed(texts: Sequence[str], kind: str) -> NDArray[np.float32]:
        rows = list[list[float]]()
        for begin in range(0, len(texts), _TEXTS_AT_ONCE):
            some = list(texts[begin : begin + _TEXTS_AT_ONCE])
            made = client.embeddings.create(model=options.encoder, input=some, extra_body={"input_type": kind})
            rows += [one.embedding for one in made.data]
        found = np.array(rows, np.float32)
        lengths: NDArray[np.float32] = np.linalg.norm(found, axis=1, keepdims=True)
        return np.divide(found, lengths)

    def score(question: str, texts: Sequence[str]) -> NDArray[np.float32]:
        body = {"model": options.reranker, "query": question, "documents": list(texts)}
        found: Any = client.post("/rerank", body=body, cast_to=object)
        scores = np.zeros(len(texts), np.float32)
        for one in found["results"]:
            scores[one["index"]] = one["relevance_score"]
        return scores

    scored = None if options.reranker is None else score
    report: dict[str, Any] = {
        "encoder": options.encoder,
        "reranker": options.reranker,
        "commit": commit(),
        **compared(pages(), questions(), embed, scored),
        "languages": {language: compared(*one, embed, scored) for language, one in languages().items()},
    }
    for language, found in {"en": report, **report["languages"]}.items():
        for name, row in found["ways"].items():
            print(f"{language} {name:16}" + "  ".join(f"{measure} {value:.3f}" for measure, value in row.items()))
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
