"""What the pages about encoders share: random models of transformers, converted, and compared text by text."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.engine.encoding.head import Head
from app.engine.encoding.native_encoder import NativeEncoder
from app.engine.encoding.pieces import Part, Piece
from app.settings.applications import ModelApplicationSettings
from app.settings.model import ModelSettings
from app.settings.worker import WorkerSettings
from app.workers.encoder_load import load_encoder
from app.workers.numa import Slot
from quant.conversion.convert import convert
from tests.families.parity import VOCABULARY
from tests.quant.checkpoints import byte_tokenizer

F32 = NDArray[np.float32]
LENGTHS = (150, 1, 33, 5, 64, 90)
"""Of a batch: less than a page of keys, a page, and more."""


def texts(lengths: Sequence[int] = LENGTHS) -> list[NDArray[np.int32]]:
    """Token ids of a batch."""
    rng = np.random.default_rng(7)
    return [rng.integers(3, VOCABULARY, length).astype(np.int32) for length in lengths]


def random_encoder(name: str, folder: Path, *, modules: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """Saves a transformers model of random weights; returns it.

    name: of its class. modules: the files of a sentence-transformers folder, by name.
    """
    import torch
    import transformers

    torch.manual_seed(0)
    kind = getattr(transformers, name)
    config = kind.config_class(**{"vocab_size": VOCABULARY, **options})
    config._attn_implementation = "eager"
    model = kind(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            centre = 1.0 if parameter.ndim == 1 and parameter_name.endswith("weight") else 0.0
            parameter.copy_(torch.randn_like(parameter) * 0.1 + centre)
    model.save_pretrained(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    for path, content in (modules or {}).items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(json.dumps(content))
    return model


@dataclass(frozen=True)
class Converted:
    """A converted encoder, loaded."""

    model: NativeEncoder
    head: Head
    folder: Path

    def hidden(self, batch: Sequence[NDArray[np.int32]], second: Sequence[int] | None = None, rows: int = 0) -> F32:
        """The final hidden states of a batch; rows: of a call, 0: all and all layers."""
        lengths = np.array([each.size for each in batch], np.int32)
        parts = lengths if second is None else np.array(second, np.int32)
        result = None
        for piece in self._pieces(int(lengths.sum()), rows):
            assert result is None
            result = self.model.encode(np.concatenate(batch), parts, lengths, piece)
        assert result is not None
        return result

    def _pieces(self, tokens: int, rows: int) -> Iterator[Piece]:
        if not rows:
            yield Piece(0, self.model.layers)
            return
        kinds: tuple[Part, ...] = ("keys", "rest")
        for layer in range(self.model.layers - 1):
            for kind in kinds:
                for begin in range(0, tokens, rows):
                    yield Piece(layer, layer + 1, kind, begin, min(begin + rows, tokens))
        yield Piece(self.model.layers - 1, self.model.layers)

    def vectors(self, batch: Sequence[NDArray[np.int32]], second: Sequence[int] | None = None) -> F32:
        """What the head makes of them."""
        return self.head.of(self.hidden(batch, second), np.array([each.size for each in batch], np.int32))


def converted(folder: Path, qtype: str = "fp32", compute_type: str = "fp32") -> Converted:
    """Converts a folder and loads it."""
    packed = folder.parent / f"{folder.name} {qtype}"
    convert(folder, packed, qtype=qtype, progress=False, force=True)
    settings = ModelApplicationSettings(
        model=ModelSettings(folder=str(packed)),
        engine={"compute_type": compute_type, "kv_type": "fp32" if compute_type == "fp32" else "auto"},  # type: ignore[arg-type]
        worker=WorkerSettings(bind_memory=False),
    )
    model, head = load_encoder(settings, packed, Slot(0, ()), 2)
    return Converted(model, head, packed)


def close(ours: NDArray[Any], theirs: NDArray[Any]) -> None:
    """fp32 both: a few hundred roundings on the way, relative to the size of the numbers."""
    assert theirs.std() > 0.01
    assert np.abs(ours - theirs).max() < 1000 * np.finfo(np.float32).eps * np.abs(theirs).max()


def check(folder: Path, model: Any, **inputs: Any) -> Converted:
    """The engine's hidden states are those of transformers, text by text, and the same bits alone and in pieces.

    inputs: further ones of the model.
    """
    import torch

    ours = converted(folder)
    batch = texts()
    with torch.no_grad():
        theirs = [
            model(torch.tensor(each[None].astype(np.int64)), **inputs).last_hidden_state[0].numpy() for each in batch
        ]
    hidden = ours.hidden(batch)
    close(hidden, np.concatenate(theirs))
    np.testing.assert_array_equal(ours.hidden(batch, rows=49), hidden, err_msg="in pieces")
    ends = np.cumsum([each.size for each in batch])
    for each, end in zip(batch, ends, strict=True):
        np.testing.assert_array_equal(ours.hidden([each]), hidden[end - each.size : end], err_msg="alone")
    return ours
