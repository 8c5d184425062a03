"""What the pages of this folder share: a tiny random model, its tensors as the engine has them, and comparisons."""

import json
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from quant.conversion.convert import convert
from quant.families.description import Decoder
from quant.families.family import Family, Piece, Tensor, TensorRole
from quant.families.registry import family_of
from tests.families import decoder_reference
from tests.kernels.tiny_model import Sequences
from tests.quant.checkpoints import byte_tokenizer
from tests.sizes import FULL

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
VOCABULARY = 320
TOKENS = 150
"""More than any window of these models, and two pages of keys."""


def prompt(tokens: int = TOKENS, seed: int = 0) -> list[int]:
    """Token ids."""
    return [int(each) for each in np.random.default_rng(seed).integers(0, VOCABULARY, tokens)]


def random_model(
    kind: str, folder: Path, *, attention: str = "eager", configuration: str | None = None, **options: Any
) -> Any:
    """Saves a transformers model of random weights, large enough to tell models apart; returns it.

    kind: the names of its classes without "Config" and "ForCausalLM"; attention: transformers' implementation;
    configuration: the configuration's class where it has another name.
    """
    import torch
    import transformers

    torch.manual_seed(0)
    tokens = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    config = getattr(transformers, f"{configuration or kind}Config")(**{"vocab_size": VOCABULARY, **tokens, **options})
    config._attn_implementation = attention
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = 1.0 if parameter.ndim == 1 and "norm" in name.lower() else 0.0
            parameter.copy_(torch.randn_like(parameter) * 0.1 + centre)
            if name.endswith("A_log"):  # memories from one token to some hundred
                parameter.copy_(torch.linspace(1.0, -6.0, len(parameter)))
    model.save_pretrained(folder)
    return model


def reference_logits(model: Any, ids: list[int]) -> F32:
    """transformers' logits [tokens, vocabulary]."""
    import torch

    with torch.no_grad():
        result: F32 = model(torch.tensor([ids]), use_cache=False).logits[0].float().numpy()
    return result


def stored_tensors(folder: Path) -> dict[str, NDArray[Any]]:
    """All tensors of a folder of one or several safetensors files."""
    return {name: each for path in sorted(folder.glob("*.safetensors")) for name, each in load_file(path).items()}


def engine_tensors(tensors: Mapping[str, Tensor], stored: Mapping[str, NDArray[Any]]) -> dict[str, F64]:
    """The engine's tensors in float64. Fails unless shapes fit and each stored number is used exactly once."""
    uses = {name: np.zeros(each.shape, np.int8) for name, each in stored.items()}
    made = {}
    for name, tensor in tensors.items():
        values = np.concatenate([_piece(piece, tensor.role, stored, uses) for piece in tensor.pieces])
        assert values.shape == tensor.shape, name
        assert values.shape[0] % tensor.count == 0, name
        made[name] = values
    for name, used in uses.items():
        assert (used == 1).all(), f"{name} is used {used.min()} to {used.max()} times"
    return made


def _piece(
    piece: Piece, role: TensorRole, stored: Mapping[str, NDArray[Any]], uses: Mapping[str, NDArray[np.int8]]
) -> F64:
    taken = []
    for array in (stored[piece.name], uses[piece.name]):
        view = array if piece.index is None else array[piece.index]
        if role == "vector" or view.ndim == 3:
            view = view.reshape(-1) if role == "vector" else view.reshape(-1, view.shape[-1])
        taken.append(view.T if piece.transposed else view)
    rows = slice(None) if piece.rows is None else piece.rows
    cols = slice(None) if piece.cols is None else piece.cols
    if taken[0].ndim > 1:
        taken = [each[:, cols] for each in taken]
    taken[1][rows] += 1
    taken[1][: piece.padding] += 1
    values: F64 = taken[0][rows].astype(np.float64)
    if piece.normalized:
        values = values / np.linalg.norm(values, axis=1, keepdims=True)
    if piece.exponential:
        values = np.exp(values)
    return values * piece.scale + piece.offset


def engine_weights(family: Family, config: Mapping[str, Any], folder: Path) -> tuple[Decoder, dict[str, F64]]:
    """The description of a saved model and its tensors; `ignored` ones are left out as the converter does."""
    decoder = family.describe(config, "config.json")
    stored = {
        name: each
        for name, each in stored_tensors(folder).items()
        if not any(fnmatch(name, pattern) for pattern in family.unused(config, decoder))
    }
    for tensors in (family.tensors, *family.alternatives):
        made = tensors(config, decoder)
        if all(piece.name in stored for tensor in made.values() for piece in tensor.pieces):
            return decoder, engine_tensors(made, stored)
    missing = {piece.name for each in family.tensors(config, decoder).values() for piece in each.pieces} - set(stored)
    raise AssertionError(f"the model lacks {sorted(missing)}; it has {sorted(stored)}")


def close(ours: NDArray[Any], theirs: NDArray[Any]) -> None:
    """fp32 both: a few hundred roundings on the way, relative to the size of the logits."""
    assert theirs.std() > 0.1
    assert np.abs(ours - theirs).max() < 1000 * np.finfo(np.float32).eps * np.abs(theirs).max()


def check_description(folder: Path, theirs: F32) -> Decoder:
    """The folder's description, computed in float64, gives these logits of `prompt()`."""
    config = json.loads((folder / "config.json").read_text())
    decoder, weights = engine_weights(family_of(config, "config.json"), config, folder)
    close(decoder_reference.logits(decoder, weights, prompt()), theirs)
    return decoder


def check(folder: Path, model: Any) -> Decoder:
    """Description and engine give the logits of transformers' model, which is saved in the folder."""
    return check_folder(folder, reference_logits(model, prompt()))


def check_folder(folder: Path, theirs: F32) -> Decoder:
    """The same for any reference's logits of `prompt()`."""
    decoder = check_description(folder, theirs)
    check_converted(folder, theirs)
    return decoder


def check_converted(folder: Path, theirs: F32) -> None:
    """The same of the engine alone, for folders with more than the description's tensors, or with quantized ones."""
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    packed = folder.parent / f"{folder.name} packed"
    convert(folder, packed, qtype="fp32", progress=False)
    check_engine(packed, theirs)


def check_engine(packed: Path, theirs: F32) -> None:
    """The engine's logits are these. With FULL: the same bits whatever the chunks and whoever computes beside them.

    That is no matter of the family: tests/kernels/test_decoder.py has it for what descriptions can say.
    """
    ids, context = prompt(), 256
    whole = Sequences(packed, sequences=1, context=context).logits({0: ids})
    close(whole, theirs)
    if not FULL:
        return
    for size in (7, 1):
        alone = Sequences(packed, sequences=1, context=context)
        parts = [alone.logits({0: ids[at : at + size]}) for at in range(0, len(ids), size)]
        np.testing.assert_array_equal(np.concatenate(parts), whole, err_msg=f"chunks of {size}")
    together = Sequences(packed, sequences=3, context=context)
    others = {1: prompt(90, 1), 2: prompt(40, 2)}
    first = together.logits({1: others[1][:50], 0: ids[:61], 2: others[2]})[50:111]
    rest = together.logits({1: others[1][50:], 0: ids[61:]})[40:]
    np.testing.assert_array_equal(np.concatenate([first, rest]), whole, err_msg="beside others")


def write_folder(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    """A folder with other names and keys than transformers would give it. tensors: NumPy's or torch's."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    save_file({name: np.ascontiguousarray(each) for name, each in tensors.items()}, folder / "model.safetensors")
