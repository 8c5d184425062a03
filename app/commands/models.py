"""`redoubt convert`, `export`, `seal` and `synth`: how models are made. Each command imports what it needs itself."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from app.commands.one_line import one_line_errors


class QType(StrEnum):
    """How weight matrices are stored; `auto` keeps the 4-bit codes of a GGUF file; otherwise see `convert`."""

    AUTO = "auto"
    SYM_INT4 = "sym_int4"
    ASYM_INT4 = "asym_int4"
    NF4 = "nf4"
    LUT4 = "lut4"
    INT8 = "int8"
    FP16 = "fp16"
    BF16 = "bf16"
    FP32 = "fp32"


class GroupSize(StrEnum):
    """The number of weights that share a scale."""

    G32 = "32"
    G64 = "64"
    G128 = "128"
    CHANNEL = "channel"
    TENSOR = "tensor"


class Method(StrEnum):
    """How 4-bit codes are chosen; all but `rtn` use activations that are computed from a calibration text."""

    AUTO = "auto"
    RTN = "rtn"
    QUICK = "quick"
    SCALE = "scale"
    GPTQ = "gptq"
    SIGNROUND = "signround"
    TUNED = "tuned"


def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="A Hugging Face model folder, a GGUF file (of a split one the first part), a folder that an older"
            " Redoubt converted, or the name of a model, as `redoubt pull` takes it.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Argument(metavar="OUT", help="The folder to write. [default: in the store]", show_default=False),
    ] = None,
    qtype: Annotated[
        QType,
        typer.Option(
            help="How to store weight matrices. auto: the codes of a GGUF file; otherwise lut4 where codes are"
            " calibrated and this processor has VNNI, and sym_int4."
        ),
    ] = QType.AUTO,
    group_size: Annotated[
        GroupSize | None,
        typer.Option(
            help="Number of weights that share a scale; channel (one row) and tensor are for comparison, with rtn only."
            " [default: 64; 32 for kept codes]",
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        Method,
        typer.Option(
            help="How 4-bit codes are chosen: rtn (round to nearest), quick (by the inputs of one short text, a"
            " minute or two per billion weights), scale (scales weighted by activations), gptq, signround; tuned: gptq,"
            " then scales and norms fitted to the outputs of the unquantized model. auto: quick."
        ),
    ] = Method.AUTO,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The calibration text. [default: the one that comes with Redoubt]", show_default=False
        ),
    ] = None,
    bits: Annotated[
        float | None,
        typer.Option(
            help="Average bits per weight of the layers, reached by storing some matrices as int8 or with other groups:"
            " up to 8.25, and from 4.125 (asym_int4: 4.25) if the model allows groups of 128.",
            show_default=False,
        ),
    ] = None,
    chat_template: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A chat template (Jinja), instead of the model's own.", show_default=False),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it is a converted model.")] = False,
    keep_source: Annotated[bool, typer.Option("--keep-source", help="Keep in the store what was fetched.")] = False,
) -> None:
    """Quantize a model and pack it for the engine."""
    from app.commands.pulling import Conversion, converted, converted_into_store
    from app.model_folder import ChatModelError, read_template
    from app.models.names import read_name
    from quant.errors import QuantError

    with one_line_errors(QuantError, ChatModelError, OSError):
        extent = group_size.value if group_size in (GroupSize.CHANNEL, GroupSize.TENSOR) else "group"
        options = Conversion(
            qtype=qtype.value,
            group_size=int(group_size.value) if group_size and extent == "group" else None,
            extent=extent,
            method=method.value,
            calibration_text=calibrate,
            bits=bits,
            chat_template=None if chat_template is None else read_template(chat_template),
        )
        meant = read_name(source)
        if out is not None and isinstance(meant, Path):
            converted(meant, out, options, force=force)
        else:
            converted_into_store(source, options, out=out, force=force, keep_source=keep_source)


class ExportType(StrEnum):
    """How exported weights are stored."""

    FP32 = "fp32"
    BF16 = "bf16"


def export(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The folder of a converted model.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write.")],
    dtype: Annotated[ExportType, typer.Option(help="fp32 keeps every weight exactly.")] = ExportType.FP32,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it is an earlier export.")] = False,
) -> None:
    """Write the weights of a converted model as floats, in a folder that transformers can load."""
    from quant.conversion.export import export as export_model
    from quant.errors import QuantError

    with one_line_errors(QuantError, OSError):
        report = export_model(model, out, dtype=dtype.value, force=force)
    print(f"{report.folder}: {report.tensors} tensors, {dtype.value}, {report.size_bytes / 1e6:.0f} MB")


def seal(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The folder of a converted model.")],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="A block device, which is overwritten, or the file to write.")
    ],
    key: Annotated[Path, typer.Option(metavar="FILE", help="The key: 32 bytes.")],
    new_key: Annotated[bool, typer.Option("--new-key", help="Make the key's file.")] = False,
    name: Annotated[
        str | None, typer.Option(help="The model's name in the API; the folder's by default.", show_default=False)
    ] = None,
) -> None:
    """Encrypt a converted model, so that a service reads it from a disk that it does not trust."""
    from app.sealing.image import SealedModelError
    from app.sealing.keys import make_key_file, read_key_file
    from app.sealing.seal import seal as seal_model
    from quant.errors import QuantError

    with one_line_errors(SealedModelError, QuantError, OSError):
        used = make_key_file(key) if new_key else read_key_file(key)
        try:
            report = seal_model(model, out, used, name=name)
        except BaseException:
            if new_key:
                key.unlink(missing_ok=True)
            raise
    on_device = f" on the block device {out}, from its beginning" if report.on_device else f" in {out}"
    print(f"{report.name}: {report.image_bytes / 1e6:.0f} MB{on_device}; digest {report.digest}")


def synth(
    shape: Annotated[
        str, typer.Argument(metavar="SHAPE", help="Whose shape, as llama3.1-8b or qwen3-4b; an unknown one lists all.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write.")],
    layers: Annotated[
        int | None, typer.Option(min=1, help="Only so many of its layers. [default: all]", show_default=False)
    ] = None,
    predicts: Annotated[
        bool, typer.Option("--predicts", help="With a layer of multi-token prediction, if the shape's family has one.")
    ] = False,
    head: Annotated[
        bool, typer.Option("--head", help="An EAGLE-3 head that drafts for the shape, in place of the model.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it is a converted model.")] = False,
) -> None:
    """Write a converted model of a known shape with random weights, for measurements."""
    from quant.conversion.synth import synth as synthesize
    from quant.errors import QuantError

    with one_line_errors(QuantError, OSError):
        synthesize(shape, out, layers=layers, predicts=predicts, head=head, force=force)
