"""Quantizes a model's layers in order, each with its inputs in the quantized model.

Two streams of activations run through the layers: `exact` is the unquantized model's, `seen` that of the layers
quantized so far, both computed by the engine. A layer has stages (query/key/value, or Gated DeltaNet's inputs instead;
output; gate/up; down), each of matrices that share an input; when a stage's turn comes, the engine runs the layer with
what is quantized already. In memory are the streams and one layer, never a whole model. Does not know how codes are
chosen (`quant.methods`) or where tensors come from.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from quant.calibration.layer_engine import LayerEngine
from quant.calibration.layer_file import LayerFile, layer_decoder
from quant.calibration.sums import InputSums, expert_moments, mean_square, summed
from quant.codes.int8 import quantize_int8
from quant.codes.matrix import F32, U8, QuantizedMatrix
from quant.families.description import Decoder
from quant.families.names import EngineTensor, engine_tensors
from quant.methods.row_parts import by_rows
from quant.packed.packed_matrix import MatrixInfo, pack_float, pack_quantized

PREFIX: Final = "model.layers.0."
ATTENTION: Final = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.gate_proj", "self_attn.q_a_proj",
    "self_attn.kv_a_proj", "delta.qkv_proj", "delta.gate_proj", "conv.input_proj",
)  # fmt: skip
"""Candidates for the matrices of a layer's first stage; a layer has some of them, and all take its input."""
OUTPUT: Final = ("self_attn.o_proj", "delta.output_proj", "conv.output_proj")
GATES: Final = ("mlp.gate_proj", "mlp.up_proj")
EXPERT_GATES: Final = ("mlp.experts.gate_proj", "mlp.experts.up_proj")
SHARED_GATES: Final = ("mlp.shared.gate_proj", "mlp.shared.up_proj")
NEAR_GROUP: Final = 32
"""The group size of the int8 matrices that stand for unquantized ones."""

Arrays = Mapping[str, NDArray[Any]]
Missing = Callable[[F32], F32]
"""Maps a matrix to its outputs' deficit, as a mean of products with its inputs (see Chosen)."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A matrix, or one expert's rows of one, whose codes are to be chosen.

    Over all tokens, with s the input in the quantized model and x that in the unquantized one: moments is the mean of
    s s^T, and missing the mean of (W x + r - W s) s^T; None where it is not known. r is the difference from the
    quantized model's residual stream to the unquantized one's where W's output is added to the stream, else 0.
    """

    name: str
    weights: F32
    moments: F32
    missing: F32 | None


@dataclass(frozen=True, slots=True)
class LayerWork:
    """A layer's weights, and the callbacks that quantize them; by full names of tensors."""

    infos: Mapping[str, MatrixInfo]
    vectors: Mapping[str, F32]
    """Norms and biases."""
    read: Callable[[str, int, int], F32]
    """Reads rows [begin, end) of a matrix, unquantized."""
    as_is: frozenset[str]
    """Matrices whose codes are not chosen."""
    pack: Callable[[str], U8]
    """Returns the packed bytes of a matrix in `as_is`."""
    choose: Callable[[Chosen], U8]
    """Chooses codes for the rows; returns packed bytes [tiles, tile_bytes]."""
    save: Callable[[str, U8], None]


@dataclass(slots=True)
class Streams:
    """Activations between layers, fp32 [windows, tokens, hidden] each."""

    exact: F32
    seen: F32


def embedded(ids: NDArray[np.int32], rows: Callable[[NDArray[np.intp]], F32]) -> F32:
    """Returns embedding rows [windows, tokens, hidden] of ids [windows, tokens]. `rows` reads ascending rows."""
    numbers, places = np.unique(ids, return_inverse=True)
    return rows(numbers.astype(np.intp))[places.reshape(ids.shape)]


def run_layer(number: int, decoder: Decoder, work: LayerWork, streams: Streams) -> None:
    """Quantizes layer `number` and runs both streams through it, in place."""
    layer = LayerInWork(number, decoder, work, streams.exact.shape[1])
    attention = layer.names(*ATTENTION)
    with layer.exact() as engine:
        inputs = _Inputs(engine, streams.seen, "attention_input")
        original = _original(engine, streams.exact, layer)
        if layer.chooses(attention):
            sums = inputs.moved(original["attention_input"])
            layer.quantize(attention, sums.moments, sums.moved)
        else:
            layer.quantize(attention)
    if layer.kind.latent is not None:
        _latent(layer, original, streams.seen)
    _output(layer, original, streams.seen)
    if layer.kind.mlp is not None:
        _mlp(layer, original, streams.seen)
    if layer.kind.experts is not None:
        _experts(layer, original, streams.seen)
    streams.exact[:] = original["hidden"].reshape(streams.exact.shape)
    with layer.seen() as engine:
        for part, arrays in engine.activations(streams.seen, ("hidden",)):
            streams.seen[part] = arrays["hidden"].reshape(streams.seen[part].shape)


class LayerInWork:
    """A layer of which some matrices are quantized already."""

    def __init__(self, number: int, decoder: Decoder, work: LayerWork, window_tokens: int) -> None:
        self.decoder, self.work, self._tokens = layer_decoder(decoder, number), work, window_tokens
        self.kind = self.decoder.kinds[0]
        self._prefix = f"model.layers.{number}."
        tensors = engine_tensors(self.decoder)
        self._matrices = {n: t for n, t in tensors.items() if t.role != "vector" and n.startswith(PREFIX)}
        self._vectors = {n: work.vectors[self.full(n)] for n, t in tensors.items() if t.role == "vector"}
        self._packed = {n: self._router(n) for n, t in self._matrices.items() if t.role == "router"}

    def full(self, name: str) -> str:
        """The full-model name of a tensor of layer 0."""
        return self._prefix + name.removeprefix(PREFIX)

    def _router(self, name: str) -> U8:
        return self.work.pack(self.full(name))

    def names(self, *short: str) -> tuple[str, ...]:
        """Filters the names of matrices that the layer has."""
        return tuple(name for name in short if f"{PREFIX}{name}.weight" in self._matrices)

    def bias(self, short: str) -> F32 | np.float32:
        """A matrix' bias; 0 if it has none."""
        return self._vectors.get(f"{PREFIX}{short}.bias", np.float32(0))

    def tensor(self, short: str) -> EngineTensor:
        """The engine's description of a matrix."""
        return self._matrices[f"{PREFIX}{short}.weight"]

    def chooses(self, names: tuple[str, ...]) -> bool:
        """Whether codes are chosen for any of the matrices."""
        return any(self.full(f"{PREFIX}{name}.weight") not in self.work.as_is for name in names)

    def exact(self) -> LayerEngine:
        matrices = {}
        for name, tensor in self._matrices.items():
            rows, cols = tensor.shape
            info = MatrixInfo("fp32", rows, cols, 0, None, tensor.count)
            matrices[name] = (info, pack_float(self.work.read(self.full(name), 0, rows), "fp32"))
        return LayerEngine(LayerFile.of(self.decoder, matrices, self._vectors), self._tokens, exact=True)

    def near(self) -> LayerEngine:
        """The layer with int8 in place of the matrices whose codes are to be chosen, run with int8 activations."""
        matrices = {}
        for name, tensor in self._matrices.items():
            rows, cols = tensor.shape
            if name in self._packed or self.full(name) in self.work.as_is:
                packed = self._packed[name] if name in self._packed else self.work.pack(self.full(name))
                matrices[name] = (self.work.infos[self.full(name)], packed)
                continue
            near = _near(name, self.work.read(self.full(name), 0, rows))
            matrices[name] = (MatrixInfo("int8", rows, cols, NEAR_GROUP, None, tensor.count), pack_quantized(near))
        return LayerEngine(LayerFile.of(self.decoder, matrices, self._vectors), self._tokens, exact=False)

    def seen(self) -> LayerEngine:
        """The layer as quantized so far, with unused zeros for the rest."""
        matrices = {}
        for name in self._matrices:
            info = self.work.infos[self.full(name)]
            zeros = None if name in self._packed else np.zeros((info.tiles, info.tile_bytes), np.uint8)
            matrices[name] = (info, self._packed[name] if zeros is None else zeros)
        return LayerEngine(LayerFile.of(self.decoder, matrices, self._vectors), self._tokens, exact=False)

    def quantize(self, names: tuple[str, ...], moments: F32 | None = None, missing: Missing | None = None) -> None:
        """Quantizes matrices that share an input. moments: needed if the codes of any are chosen."""
        for short in names:
            name = self.full(f"{PREFIX}{short}.weight")
            if name in self.work.as_is:
                self.keep(short, self.work.pack(name))
                continue
            assert moments is not None
            weights = self.work.read(name, 0, self.tensor(short).shape[0])
            lacks = None if missing is None else missing(weights)
            self.keep(short, self.work.choose(Chosen(name, weights, moments, lacks)))

    def quantize_stacks(self, names: tuple[str, ...], moments: Iterable[F32]) -> None:
        """Quantizes stacks that share their inputs. moments: of each of a stack's matrices, taken one by one."""
        chosen = tuple(name for name in names if self.chooses((name,)))
        self.quantize(tuple(name for name in names if name not in chosen))
        if not chosen:
            return
        packed: dict[str, list[U8]] = {short: [] for short in chosen}
        for number, own in enumerate(moments):
            for short, parts in packed.items():
                tensor, name = self.tensor(short), self.full(f"{PREFIX}{short}.weight")
                rows = tensor.shape[0] // tensor.count
                weights = self.work.read(name, number * rows, (number + 1) * rows)
                parts.append(self.work.choose(Chosen(name, weights, own, None)))
        for short, parts in packed.items():
            self.keep(short, np.concatenate(parts))

    def keep(self, short: str, packed: U8) -> None:
        """Keeps and saves a quantized matrix."""
        self._packed[f"{PREFIX}{short}.weight"] = packed
        self.work.save(self.full(f"{PREFIX}{short}.weight"), packed)


def _near(name: str, values: F32) -> QuantizedMatrix:
    return by_rows(len(values), lambda part: quantize_int8(name, values[part], NEAR_GROUP))


@dataclass(frozen=True, slots=True)
class _Inputs:
    """A stage's inputs in the quantized model."""

    engine: LayerEngine
    hidden: F32
    name: str

    def moved(self, original: F32) -> InputSums:
        """Sums with the differences between inputs; original: the unquantized model's [tokens, inputs]."""
        return summed((rows, original[place] - rows) for place, rows, _ in self._rows(()))

    def missed(self, wanted: F32, base: str | None, bias: F32 | np.float32) -> InputSums:
        """Sums with the differences between the stage's actual base plus bias and its wanted output.

        base: the activation that the stage's output is added to; "" for the layer's input, None for nothing.
        """

        def rows() -> Iterator[tuple[F32, F32]]:
            for place, inputs, arrays in self._rows((base,) if base else ()):
                there = self.hidden.reshape(-1, self.hidden.shape[-1])[place] if base == "" else np.float32(0)
                yield inputs, wanted[place] - bias - (arrays[base] if base else there)

        return summed(rows())

    def _rows(self, besides: tuple[str, ...]) -> Iterator[tuple[slice, F32, Arrays]]:
        tokens = self.hidden.shape[1]
        for part, arrays in self.engine.activations(self.hidden, (self.name, *besides)):
            yield slice(part.start * tokens, part.stop * tokens), arrays[self.name], arrays


def _original(engine: LayerEngine, hidden: F32, layer: LayerInWork) -> dict[str, F32]:
    """Returns the unquantized layer's activations, [tokens, ...] each."""
    names = ["attention_input", "attention_output", "mlp_input", "hidden"]
    if layer.kind.mlp_output_norm:
        names.append("mlp_output")
    sizes = {name: int(hidden.shape[2]) for name in names}
    latent = layer.kind.latent
    if latent is not None and latent.query_rank:
        sizes["query_input"] = latent.query_rank
    tokens = hidden.shape[0] * hidden.shape[1]
    kept = {name: np.empty((tokens, size), np.float32) for name, size in sizes.items()}
    for part, arrays in engine.activations(hidden, list(sizes)):
        for name, values in kept.items():
            values[part.start * hidden.shape[1] : part.stop * hidden.shape[1]] = arrays[name]
    return kept


def _latent(layer: LayerInWork, original: Arrays, seen: F32) -> None:
    """Quantizes the matrices that make queries and values from latents, each head with its own inputs' moments."""
    queries = layer.names("self_attn.q_b_proj")
    if queries and layer.chooses(queries):
        with layer.seen() as engine:
            sums = _Inputs(engine, seen, "query_input").moved(original["query_input"])
        layer.quantize(queries, sums.moments, sums.moved)
    else:
        layer.quantize(queries)
    _quantize_heads(layer, "self_attn.key_up_proj", "key_up_input", seen)
    _quantize_heads(layer, "self_attn.value_up_proj", "value_up_input", seen)


def _quantize_heads(layer: LayerInWork, short: str, inputs: str, seen: F32) -> None:
    """Quantizes a stack with a matrix for each head. inputs: the activation that has all heads' inputs."""
    if not layer.chooses((short,)):
        layer.quantize((short,))
        return
    heads, cols = layer.tensor(short).count, layer.tensor(short).shape[1]
    moments, tokens = np.zeros((heads, cols, cols), np.float32), seen.shape[0] * seen.shape[1]
    with layer.seen() as engine:
        for _, arrays in engine.activations(seen, (inputs,)):
            by_head = arrays[inputs].reshape(-1, heads, cols)
            for head in range(heads):
                moments[head] += by_head[:, head].T @ by_head[:, head]
    moments /= np.float32(tokens)
    layer.quantize_stacks((short,), moments)


def _output(layer: LayerInWork, original: Arrays, seen: F32) -> None:
    names = layer.names(*OUTPUT)
    has_norm = layer.kind.attention_output_norm and not layer.kind.norms_sum
    if not layer.chooses(names):
        layer.quantize(names)
        return
    with layer.seen() as engine:
        inputs = _Inputs(engine, seen, "output_input")
        sums = inputs.missed(original["attention_output"], None if has_norm else "", layer.bias(*names))
    layer.quantize(names, sums.moments, sums.missed)


def _mlp(layer: LayerInWork, original: Arrays, seen: F32) -> None:
    gates, down = layer.names(*GATES), ("mlp.down_proj",)
    if layer.chooses(gates):
        with layer.seen() as engine:
            sums = _Inputs(engine, seen, "mlp_input").moved(original["mlp_input"])
        layer.quantize(gates, sums.moments, sums.moved)
    else:
        layer.quantize(gates)
    if not layer.chooses(down):
        layer.quantize(down)
        return
    if layer.kind.experts is not None:
        # Both outputs are added before the norm whose output is known, so this one's deficit is unknown.
        with layer.seen() as engine:
            inners = [arrays["dense_down_input"] for _, arrays in engine.activations(seen, ("dense_down_input",))]
        layer.quantize(down, mean_square(np.concatenate(inners)))
        return
    has_norm = layer.kind.mlp_output_norm
    base = "mlp_input" if layer.kind.norms_sum else None if has_norm else "attention_output"
    wanted = original["mlp_output"] if has_norm else original["hidden"]
    with layer.seen() as engine:
        sums = _Inputs(engine, seen, "down_input").missed(wanted, base, layer.bias(*down))
    # Where only attention has a norm of its own, "attention_output" is not the residual stream.
    corrects = has_norm or not layer.kind.attention_output_norm
    layer.quantize(down, sums.moments, sums.missed if corrects else None)


def _experts(layer: LayerInWork, original: Arrays, seen: F32) -> None:
    """Quantizes experts, each with its own inputs' moments; only the shared MLP's gate and up are corrected."""
    gates, down = layer.names(*EXPERT_GATES), ("mlp.experts.down_proj",)
    shared, shared_down = layer.names(*SHARED_GATES), layer.names("mlp.shared.down_proj")
    name = "mlp_input" if layer.kind.mlp is None else "experts_input"
    with layer.seen() as engine:
        arrays, pairs = _collected(engine, seen, (name, "pairs"))
    inputs = arrays[name]
    moments = mean_square(inputs)
    if shared:
        sums = summed([(inputs, original["mlp_input"] - inputs)])
        layer.quantize(shared, sums.moments, sums.moved)
    _quantize_experts(layer, gates, lambda rows: inputs[pairs[rows, 0]], pairs[:, 1], moments)
    with layer.seen() as engine:
        wanted = ("down_input", "pairs", *(("shared_down_input",) if shared else ()))
        arrays, pairs = _collected(engine, seen, wanted)
    inners = arrays["down_input"]
    _quantize_experts(layer, down, lambda rows: inners[rows], pairs[:, 1], mean_square(inners))
    if shared:
        layer.quantize(shared_down, mean_square(arrays["shared_down_input"]))


def _collected(engine: LayerEngine, hidden: F32, wanted: tuple[str, ...]) -> tuple[dict[str, F32], NDArray[np.int32]]:
    """Returns activations of all windows by name, and pairs (token, counted over all windows; expert)."""
    found: dict[str, list[NDArray[Any]]] = {name: [] for name in wanted}
    for part, arrays in engine.activations(hidden, wanted):
        for name in wanted:
            found[name].append(arrays[name])
        found["pairs"][-1][:, 0] += part.start * hidden.shape[1]
    joined = {name: np.concatenate(parts) for name, parts in found.items()}
    return joined, joined.pop("pairs")


def _quantize_experts(
    layer: LayerInWork,
    names: tuple[str, ...],
    inputs: Callable[[NDArray[np.intp]], F32],
    experts: NDArray[np.int32],
    moments: F32,
) -> None:
    """Quantizes stacks that share their inputs. experts: the expert of each row."""
    layer.quantize_stacks(names, expert_moments(inputs, experts, layer.tensor(names[0]).count, moments))
