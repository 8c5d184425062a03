"""Converts a checkpoint into a packed model: plans every tensor's type, then quantizes and writes piece by piece.

A piece is a run of rows, so rounding to nearest needs a few megabytes of memory whatever the size of the model; what is
held whole are the norms and biases. Does not know file formats (`sources`), formulas (`codes`) or the layout
(`packed`).
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from kernels import _native
from quant.calibration.block import is_computed
from quant.calibration.work_folder import WorkFolder, work_folder, work_folder_bytes
from quant.codes.lut4 import TABLES
from quant.codes.matrix import F32, U8, QuantizedMatrix
from quant.conversion.calibrated import (
    FOUR_BIT,
    QUICK,
    QUICK_TOKENS,
    SIGN_ROUND,
    WINDOW_TOKENS,
    calibrate,
    mixed_roundings,
    windows_for,
)
from quant.conversion.draft_head import with_draft_head
from quant.conversion.foretold import Forecast, check_resources, how_far, plan_of
from quant.conversion.mixed import with_roundings
from quant.conversion.pieces import PieceMaker, keeps
from quant.conversion.plan import (
    FOUR_BIT_QTYPES,
    calibrated_type,
    check_options,
    coarsely_planned,
    dominant,
    plan_matrices,
)
from quant.conversion.requantized import requantization_notes
from quant.conversion.tuned import CODES_SHARE, TUNED, divided, tune, tuned_name
from quant.conversion.upgrade import is_old_layout, upgrade
from quant.errors import QuantError, SourceError, TensorError
from quant.families.names import EngineTensor, engine_tensors
from quant.files.atomic_folder import atomic_folder
from quant.files.json_file import read_json_object, write_json
from quant.methods.granularity import EXTENTS, Extent
from quant.methods.registry import METHODS
from quant.packed.packed_file import FILE_NAME, PackedPlan, is_packed_model
from quant.packed.packed_matrix import TILE_OUTPUTS, MatrixInfo
from quant.packed.piecewise import write_packed
from quant.sources.open_source import open_source
from quant.sources.source import Source, SourceTensor

MOST_BITS: Final = 8.5
"""Upper limit of average bits per weight: int8 in groups of 32."""
METHOD_NAMES: Final = ("auto", *METHODS, SIGN_ROUND, TUNED)


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """The result of a conversion. `notes`: sentences for the user."""

    folder: Path
    qtype: str
    group_size: int
    method: str
    matrices: int
    weights: int
    """Number of weights in all matrices, without norms and biases."""
    size_bytes: int
    seconds: float
    notes: tuple[str, ...]

    @property
    def bits_per_weight(self) -> float:
        """Average over the whole file, norms included."""
        return 8 * self.size_bytes / self.weights


def convert(
    source: Path,
    out: Path,
    *,
    qtype: str = "auto",
    group_size: int | None = None,
    head_qtype: str | None = None,
    method: str = "auto",
    extent: str = "group",
    bits: float | None = None,
    calibration_text: Path | None = None,
    chat_template: str | None = None,
    check: Callable[[Path], Sequence[str]] = lambda folder: (),
    force: bool = False,
    progress: bool = True,
    tell: Callable[[str], None] | None = None,
) -> ConversionReport:
    """Converts a checkpoint (a Hugging Face folder or a GGUF file) into the packed model folder `out`.

    qtype: "auto" keeps the source's own 4-bit and 8-bit codes where this engine has such a type (GGUF's Q4_0, Q4_1,
    Q8_0 and others, GPTQ, AWQ, compressed-tensors) and converts everything else to int8 where the source has codes of
    more than 4.5 bits, to lut4 where "quick", "gptq" or "tuned" chooses the codes (`calibrated_type`), otherwise to
    sym_int4. Any other type requantizes, except matrices that have that type and group already.

    group_size: 32, 64 or 128 inputs that share a scale, 64 by default; beside kept codes, their group.

    head_qtype: the type of the output head, and of the embedding where the two are tied.

    extent: "channel" or "tensor" gives each row or each matrix of the layers one scale (quant.methods.granularity).
    They are rounded to nearest; group_size applies to the other matrices.

    bits: a budget of bits per weight for the layers' matrices. Each gets the 4-bit type in groups of 128, 64 or 32, or
    int8 (quant.conversion.mixed). The 4-bit type is qtype, sym_int4 for "auto"; group_size applies to the other
    matrices.

    method: how the layers' 4-bit codes are chosen, one of METHOD_NAMES; "auto" is "quick", or "rtn" where layers can't
    run one by one. All but "rtn" run a text through the model, layer by layer. calibration_text is that text, UTF-8, or
    None for the one that ships. The progress of an interrupted calibration is kept beside `out`: the same call resumes
    it.

    Where the layers have 4 bits, the embedding (tied or not) is int8 with the same group: looking up rows costs no
    speed, and a tied head is the layer that quantization hurts most. It costs half a byte per weight: 0.5 GB for a
    vocabulary of 128k and a width of 8k. An untied head has the layers' type, rounded to nearest.

    chat_template: replaces the source's. check: is called with a folder that has everything but the weights, before
    these are computed; returns notes for the report, and may raise.

    The folder appears whole or not at all. An existing one is an error without `force`; with it, only a converted model
    is replaced. progress: shows a bar on the standard error. tell: gets a sentence on the time, memory and disk that
    this will take, before any of it is spent; to measure that takes about two seconds.

    An EAGLE-3 head becomes a folder for `model.draft`, rounded to nearest, without a tokenizer and unchecked.

    A source that is a packed model of an older layout is copied into today's, with the same weights.

    Raises:
        QuantError: see quant.errors; every message names the file, the tensor or the option. ResourceError: the disk or
            the memory is not enough.
        KeyboardInterrupt: the message says what the next run does.
    """
    started = time.monotonic()
    check_options(qtype, group_size, head_qtype)
    _check_method(qtype, method, extent, bits)
    if is_packed_model(source):
        options = (qtype, group_size, head_qtype, method, extent, bits, chat_template)
        if options != ("auto", None, None, "auto", "group", None, None):
            raise SourceError(f"{source}: is converted already, and its weights stay as they are: give no options")
        return _upgraded(source, out, force, started)
    checkpoint = open_source(source)
    is_head = checkpoint.decoder.is_draft_head
    if is_head and (method not in ("auto", "rtn") or bits is not None or chat_template is not None):
        raise QuantError(
            f"{source}: is an EAGLE-3 head, which is rounded to nearest and has no chat template: give no method, no"
            " budget of bits and no template"
        )
    checkpoint = with_draft_head(checkpoint, calibration_text)
    expected = engine_tensors(checkpoint.decoder)
    kind = "sym_int4" if bits is not None and qtype == "auto" else qtype
    infos = plan_matrices(checkpoint, expected, kind, group_size, head_qtype)
    used = "rtn" if extent != "group" else _method(method, checkpoint, infos, expected)
    if extent != "group":
        infos = coarsely_planned(infos, expected)
    elif kind == "auto" and used in (QUICK, "gptq", TUNED):
        fresh = calibrated_type(_native.default_tier())
        infos = plan_matrices(checkpoint, expected, kind, group_size, head_qtype, fresh)
    _check_served(checkpoint, method, extent, bits)
    vectors = {name: _vector(checkpoint.tensors[name]) for name, each in expected.items() if each.role == "vector"}
    with atomic_folder(out, force=force, replaceable=is_packed_model) as folder:
        checkpoint.write_tokenizer(folder)
        write_json(folder / "config.json", checkpoint.config)
        if chat_template is not None:
            path = folder / "tokenizer_config.json"
            write_json(path, {**read_json_object(path), "chat_template": chat_template})
        notes = () if is_head else check(folder)
        ids = None
        if used != "rtn" or bits is not None:
            share = CODES_SHARE if used == TUNED else 1.0
            most = QUICK_TOKENS if used == QUICK else None
            ids = windows_for(checkpoint.decoder, folder, calibration_text, share, most)
        coarse = {name for name, each in expected.items() if each.role == "linear"} if extent != "group" else set()
        maker = PieceMaker(checkpoint, cast("Extent", extent), frozenset(coarse))
        cost = plan_of(checkpoint, expected, infos, used, ids, bits)
        check_resources(cost, out, work_folder_bytes(out))
        forecast = None if tell is None else Forecast.measured(cost, checkpoint, infos, maker)
        if tell is not None and forecast is not None:
            tell(forecast.beginning())
        if bits is not None:
            assert ids is not None
            roundings = mixed_roundings(checkpoint, infos, vectors, ids, bits, progress=progress)
            infos = with_roundings(infos, roundings)
        main = dominant([infos[name] for name, tensor in expected.items() if tensor.role == "linear"])
        plan = PackedPlan(
            decoder=checkpoint.decoder,
            matrices=infos,
            vectors={name: len(values) for name, values in vectors.items()},
            qtype=main.type,
            group_size=main.group,
            source=f"{checkpoint.name} sha256:{fingerprint(checkpoint.files)}",
        )
        if used == "rtn":
            _write(folder, plan, maker, vectors, None, progress)
        else:
            assert ids is not None
            with work_folder(out, _digest(plan, used, ids)) as work, _saying_how_far(work, checkpoint):
                if tell is not None and forecast is not None and work.steps_done:
                    tell(forecast.resuming(work.steps_done))
                base = "gptq" if used == TUNED else used
                own, others = divided(ids) if used == TUNED else (ids, ids)
                calibrate(checkpoint, infos, vectors, base, own, maker.piece, work, progress=progress)
                if used == TUNED:
                    tune(checkpoint, infos, vectors, others, maker.piece, work, progress=progress)
                _write(folder, plan, maker, vectors, work, progress)
    return ConversionReport(
        folder=out,
        qtype=main.type,
        group_size=main.group,
        method=used,
        matrices=len(infos),
        weights=sum(info.rows * info.cols for info in infos.values()),
        size_bytes=plan.size_bytes(),
        seconds=time.monotonic() - started,
        notes=(*checkpoint.notes, *notes, *_loss_notes(checkpoint, infos, out / FILE_NAME)),
    )


def _upgraded(source: Path, out: Path, force: bool, started: float) -> ConversionReport:
    if not is_old_layout(source):
        raise SourceError(f"{source}: is a converted model already: redoubt serve --model {source}")
    packed = upgrade(source, out, force=force)
    return ConversionReport(
        folder=out,
        qtype=packed.metadata.get("qtype", ""),
        group_size=int(packed.metadata.get("group_size", "0")),
        method="copy",
        matrices=len(packed.matrices),
        weights=sum(info.rows * info.cols for info in packed.matrices.values()),
        size_bytes=(out / FILE_NAME).stat().st_size,
        seconds=time.monotonic() - started,
        notes=("The weights are those of the older layout, bit for bit.",),
    )


@contextmanager
def _saying_how_far(work: WorkFolder, checkpoint: Source) -> Iterator[None]:
    """Adds the calibration's progress to the message of a KeyboardInterrupt."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        done = how_far(work.steps_done, len(checkpoint.decoder.layers))
        again = "goes on from there" if work.steps_done else "begins again"
        raise KeyboardInterrupt(f"interrupted after {done}; the same command {again}") from interrupt


def _check_method(qtype: str, method: str, extent: str, bits: float | None) -> None:
    if method not in METHOD_NAMES:
        raise QuantError(f"method {method!r} is not one of {', '.join(METHOD_NAMES)}")
    if method == SIGN_ROUND and qtype in TABLES:
        raise QuantError(f"method 'signround' knows sym_int4 and asym_int4, not {qtype}")
    if extent not in EXTENTS:
        raise QuantError(f"extent {extent!r} is not one of {', '.join(EXTENTS)}")
    if extent != "group" and (method not in ("auto", "rtn") or bits is not None):
        raise QuantError(f"a scale per {extent} is rounded to nearest: it takes neither a method nor a budget of bits")
    if extent != "group" and qtype not in (*FOUR_BIT_QTYPES, "int8"):
        raise QuantError(f"a scale per {extent} needs an integer qtype, not {qtype!r}")
    if bits is not None and not bits <= MOST_BITS:
        raise QuantError(f"bits {bits:g}: int8, the largest type of a budget, takes {MOST_BITS} bits a weight")
    if bits is not None and qtype not in ("auto", *FOUR_BIT_QTYPES):
        raise QuantError(f"a budget of bits needs a 4-bit qtype, not {qtype!r}")


def _method(
    wanted: str, checkpoint: Source, infos: Mapping[str, MatrixInfo], expected: Mapping[str, EngineTensor]
) -> str:
    """The effective method: "rtn" if every layer's codes are kept or have more than 4 bits."""
    chosen = any(
        tensor.role == "linear" and infos[name].type in FOUR_BIT and not keeps(checkpoint.tensors[name], infos[name])
        for name, tensor in expected.items()
    )
    if not chosen:
        return "rtn"
    if wanted != "auto":
        return wanted
    return QUICK if checkpoint.decoder.runs_by_layer else "rtn"


def _check_served(checkpoint: Source, method: str, extent: str, bits: float | None) -> None:
    """Raises QuantError for options that are not supported for a model of this kind."""
    if extent == "tensor" and any(kind.experts is not None for kind in checkpoint.decoder.kinds):
        raise QuantError("one scale per tensor is not made for models with experts: use a scale per channel or group")
    if is_computed(checkpoint.decoder, WINDOW_TOKENS):
        return
    if method not in ("auto", "rtn") and not checkpoint.decoder.runs_by_layer:
        raise QuantError(
            f"method {method!r} runs layers one by one, and this model's take keys of other layers or inputs by token:"
            " use rtn"
        )
    if method in (TUNED, SIGN_ROUND):
        raise QuantError(f"method {method!r} knows only layers like Llama's, which this model's are not: use gptq")
    if bits is not None:
        raise QuantError("a budget of bits knows only layers like Llama's, which this model's are not: choose a qtype")


def _digest(plan: PackedPlan, method: str, ids: NDArray[np.int32]) -> str:
    """Digests everything that a calibration's result depends on; the plan's header has the source's fingerprint."""
    return hashlib.sha256(plan.header() + method.encode() + str(ids.shape).encode() + ids.tobytes()).hexdigest()


def _write(
    folder: Path,
    plan: PackedPlan,
    maker: PieceMaker,
    vectors: Mapping[str, F32],
    work: WorkFolder | None,
    progress: bool,
) -> None:
    """Writes the packed file. Tensors that `work` has are copied from there; the others are made piece by piece."""

    def made(name: str) -> NDArray[Any] | None:
        names = () if work is None else (tuned_name(name), name)
        return next((work.load(each) for each in names if work is not None and work.has(each)), None)

    def piece(name: str, info: MatrixInfo, begin: int, end: int) -> U8:
        packed = made(name)
        if packed is not None:
            return np.asarray(packed[begin // TILE_OUTPUTS : -(-end // TILE_OUTPUTS)])
        return maker.piece(name, info, begin, end)

    def vector(name: str) -> F32:
        tuned = made(name)
        return vectors[name] if tuned is None else np.asarray(tuned)

    write_packed(folder / FILE_NAME, plan, piece, vector, label="Converting", progress=progress)


def fingerprint(files: Iterable[Path]) -> str:
    """SHA-256 over the files' own SHA-256 digests, in order, in hex."""
    total = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()


def _vector(tensor: SourceTensor) -> F32:
    values = tensor.read(0, tensor.shape[0])
    if isinstance(values, QuantizedMatrix) or not np.isfinite(values).all():
        raise TensorError(tensor.name, "is quantized, or holds NaN or infinite values")
    return values


def _loss_notes(checkpoint: Source, infos: Mapping[str, MatrixInfo], packed: Path) -> Iterator[str]:
    """Sentences for the user about values that were rounded in an unexpected way."""
    pairs = [(checkpoint.tensors[name], info) for name, info in infos.items()]
    if any(
        source.group and info.group and (source.stored, source.group) != (info.type, info.group)
        for source, info in pairs
    ):
        yield "The source's own codes were requantized, which loses quality; qtype auto keeps them."
    yield from requantization_notes(checkpoint, packed)
    if any(info.type == "bf16" and source.stored != "bf16" for source, info in pairs):
        yield "Weights were rounded to bf16's short mantissa; fp32 keeps them as they are."
    if any(info.type == "fp16" and source.stored != "fp16" for source, info in pairs):
        yield "Weights were rounded to fp16; fp32 keeps them as they are."
