"""The `redoubt` command: reads the command line, calls the function that does the work, and prints its errors.

A user's mistake is one clear line on stderr and exit status 2 (1 if the work itself failed), never a traceback. Each
command imports what it needs itself: `redoubt --help` loads neither Ray nor the engine.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from app.commands import accounts
from app.commands.one_line import fail, one_line_errors
from app.launch.node.roles import Cores, Role

cli = typer.Typer(
    name="redoubt",
    help="A private chat service for the CPUs a team already owns.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
cli.add_typer(accounts.user, name="user")
cli.add_typer(accounts.key, name="key")
cli.command()(accounts.keygen)
cli.command()(accounts.rotate_key)
cli.command()(accounts.audit)
# For commands whose options are read by who does the work.
_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


class QType(StrEnum):
    """How weight matrices are stored; `auto` keeps the 4-bit codes of a GGUF file and is sym_int4 otherwise."""

    AUTO = "auto"
    SYM_INT4 = "sym_int4"
    ASYM_INT4 = "asym_int4"
    NF4 = "nf4"
    LUT4 = "lut4"
    INT8 = "int8"
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
    SCALE = "scale"
    GPTQ = "gptq"
    SIGNROUND = "signround"
    TUNED = "tuned"


class Evidence(StrEnum):
    """Where quotes come from: a confidential container, keys of our own to try it out, or nowhere."""

    COCO = "coco"
    SOFT = "soft"
    NONE = "none"


class Shape(StrEnum):
    """Models that `synth` can imitate."""

    LLAMA2_7B = "llama2-7b"
    TINYLLAMA_1_1B = "tinyllama-1.1b"


@cli.command()
def serve(
    config: Annotated[
        Path, typer.Option(help="The configuration file; env:NAME: the text in that environment variable.")
    ] = Path("ray_configs/local.yaml"),
    host: Annotated[str | None, typer.Option(help="The address to listen on, instead of the file's.")] = None,
    port: Annotated[int | None, typer.Option(help="The port, instead of the file's.", min=0, max=65535)] = None,
    model: Annotated[
        list[Path] | None,
        typer.Option(
            help="The converted model to serve, instead of the file's; repeat it for several models.",
            show_default=False,
        ),
    ] = None,
    attest: Annotated[
        Evidence | None,
        typer.Option(help="How clients verify this machine, instead of the file's attestation.evidence."),
    ] = None,
    dashboard: Annotated[bool, typer.Option("--dashboard", help="Start Ray's dashboard too.")] = False,
) -> None:
    """Serve models: the OpenAI API under /v1, the chat page at /. Ctrl-C stops it.

    While the service runs, models that are added to the configuration file are started, and removed ones are stopped.
    """
    from app.launch.local import serve_local
    from app.settings import SettingsError

    with one_line_errors(SettingsError):
        status = serve_local(
            config,
            host=host,
            port=port,
            model_folders=model or (),
            evidence=attest.value if attest is not None else None,
            dashboard=dashboard,
        )
    raise typer.Exit(status)


@cli.command()
def node(
    role: Annotated[Role, typer.Argument(help="What the node is in its cluster; a cluster has one head.")],
    address: Annotated[
        str | None,
        typer.Option(help="The head's address, HOST:6379. [default: KubeRay's FQ_RAY_IP]", show_default=False),
    ] = None,
    cores: Annotated[
        Cores,
        typer.Option(
            envvar="REDOUBT_CORES",
            help="exclusive: a worker starts only with whole cores of its own, all on one NUMA node. shared: with any.",
        ),
    ] = Cores.EXCLUSIVE,
    models: Annotated[
        str,
        typer.Option(
            envvar="REDOUBT_MODELS",
            help="Folders of converted models, or sealed ones, with colons between: the node joins when all are there.",
        ),
    ] = "",
    health_port: Annotated[
        int, typer.Option(envvar="REDOUBT_HEALTH_PORT", help="The port of /healthz and /readyz.", min=1, max=65535)
    ] = 8079,
    http_port: Annotated[
        int,
        typer.Option(envvar="REDOUBT_HTTP_PORT", help="The port in the service's http_options.", min=1, max=65535),
    ] = 8000,
    drain_timeout_s: Annotated[
        float,
        typer.Option(
            envvar="REDOUBT_DRAIN_TIMEOUT_S",
            help="How long requests on a worker's node may take to finish after SIGTERM, in seconds.",
            min=0,
        ),
    ] = 90.0,
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            envvar="REDOUBT_TLS_CA",
            help="A folder with ca.crt and ca.key (or tls.crt and tls.key): Ray's connections between nodes use TLS.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run one node of a Ray cluster, as a pod does. SIGTERM drains and stops it.

    With REDOUBT_EVIDENCE in the environment nodes prove themselves to each other: docs/confidential.md, Clusters.
    """
    from app.launch.node.options import node_options
    from app.launch.node.program import run_node
    from app.settings import SettingsError

    with one_line_errors(SettingsError):
        status = run_node(
            node_options(
                role,
                os.environ,
                address=address,
                cores=cores,
                models=tuple(Path(folder) for folder in models.split(":") if folder),
                health_port=health_port,
                http_port=http_port,
                drain_timeout_s=drain_timeout_s,
                tls_authority=tls_ca,
            )
        )
    raise typer.Exit(status)


@cli.command()
def certificate(
    authority: Annotated[Path, typer.Argument(metavar="CA", help="A folder with ca.crt and ca.key, or tls.*.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder for tls.crt, tls.key and ca.crt.")],
    address: Annotated[str, typer.Option(envvar="POD_IP", help="The node's address.")],
) -> None:
    """Issue the TLS certificate of one node of a Ray cluster, as a pod's init container does."""
    from app.launch.node.certificate import Authority, issue_certificate
    from app.settings import SettingsError

    with one_line_errors(SettingsError, OSError):
        issue_certificate(Authority.read(authority), out, address)


@cli.command()
def convert(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="A Hugging Face model folder or a GGUF file.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write.")],
    qtype: Annotated[
        QType,
        typer.Option(help="How to store weight matrices. auto: the codes of a GGUF file, otherwise sym_int4."),
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
            help="How 4-bit codes are chosen: rtn (round to nearest), scale (scales weighted by activations), gptq,"
            " signround; tuned: gptq, then scales and norms fitted to the outputs of the unquantized model."
            " auto: tuned up to two billion weights, otherwise gptq."
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
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it is a converted model.")] = False,
) -> None:
    """Quantize a model and pack it for the engine."""
    from quant.conversion.convert import convert as convert_model
    from quant.errors import QuantError

    with one_line_errors(QuantError, OSError):
        extent = group_size.value if group_size in (GroupSize.CHANNEL, GroupSize.TENSOR) else "group"
        report = convert_model(
            source,
            out,
            qtype=qtype.value,
            group_size=int(group_size.value) if group_size and extent == "group" else None,
            extent=extent,
            method=method.value,
            calibration_text=calibrate,
            bits=bits,
            force=force,
        )
    print(
        f"{report.folder}: {report.qtype} by {report.method}, group {report.group_size},"
        f" {report.bits_per_weight:.2f} bits a weight, {report.size_bytes / 1e6:.0f} MB in {report.seconds:.1f} s"
    )
    for note in report.notes:
        print(note)


class ExportType(StrEnum):
    """How exported weights are stored."""

    FP32 = "fp32"
    BF16 = "bf16"


@cli.command()
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


@cli.command()
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
        report = seal_model(model, out, make_key_file(key) if new_key else read_key_file(key), name=name)
    on_device = f" on the block device {out}, from its beginning" if report.on_device else f" in {out}"
    print(f"{report.name}: {report.image_bytes / 1e6:.0f} MB{on_device}; digest {report.digest}")


@cli.command()
def synth(
    shape: Annotated[Shape, typer.Argument(metavar="SHAPE", help="llama2-7b or tinyllama-1.1b.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it is a converted model.")] = False,
) -> None:
    """Write a converted model of a known shape with random weights, for measurements."""
    from quant.conversion.synth import synth as synthesize
    from quant.errors import QuantError

    with one_line_errors(QuantError, OSError):
        synthesize(shape.value, out, force=force)


@cli.command()
def chat(
    url: Annotated[str, typer.Option(help="The address of the service.")] = "http://127.0.0.1:8000",
    model: Annotated[str | None, typer.Option(help="The model to use; the first one by default.")] = None,
    system: Annotated[str | None, typer.Option(help="The system prompt.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.", min=0, max=2)] = None,
    max_tokens: Annotated[int | None, typer.Option(help="The most tokens of an answer.", min=1)] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="REDOUBT_API_KEY", help="The API key, if the service needs one.")
    ] = None,
) -> None:
    """Chat in the terminal. Ctrl-C stops an answer.

    Four words are for the chat itself where a line has nothing else: login asks for your name and password, logout ends
    that session and forgets this chat, exit and quit (or Ctrl-D) leave it. After exit the next chat is still logged in.
    """
    from app.client.terminal import ChatError, TerminalChat

    with one_line_errors(ChatError):
        TerminalChat(
            url, model=model, system=system, temperature=temperature, max_tokens=max_tokens, api_key=api_key
        ).run()


@cli.command(context_settings=_PASSED_ON)
def bench(
    context: typer.Context,
    what: Annotated[
        str, typer.Argument(metavar="engine|kernels|structured|serving|memory|cluster|confidential|compare")
    ] = "--help",
) -> None:
    """Measure the engine, kernels, structured output, the service, saved pages, a cluster, evidence, other engines."""
    if what == "--help":
        typer.echo(
            "Usage: redoubt bench engine|kernels|structured|serving|memory|cluster|confidential|compare [OPTIONS]\n\n"
            "Each has its own --help."
        )
        raise typer.Exit
    if what == "engine":
        from bench.engine import main as measure
    elif what == "kernels":
        from bench.kernels import main as measure
    elif what == "structured":
        from bench.structured import main as measure
    elif what == "serving":
        from bench.serving import main as measure
    elif what == "memory":
        from bench.memory import main as measure
    elif what == "cluster":
        from bench.cluster.measure import main as measure
    elif what == "confidential":
        with _needing_verifier():
            from bench.confidential import main as measure
    elif what == "compare":
        from bench.compare import main as measure
    else:
        known = "engine, kernels, structured, serving, memory, cluster, confidential or compare"
        fail(f"there is no bench {what!r}: {known}", 2)
    raise typer.Exit(measure(context.args))


@cli.command("eval", context_settings=_PASSED_ON)
def evaluate(context: typer.Context) -> None:
    """Measure a model's quality: perplexity, divergence, tasks (`redoubt eval --help`)."""
    from bench.eval.command import main as measure

    raise typer.Exit(measure(context.args or ["--help"]))


@cli.command(context_settings=_PASSED_ON)
def verify(context: typer.Context) -> None:
    """Verify that a service runs in a trust domain (`redoubt verify --help`)."""
    _redoubt_verify("verify", context)


@cli.command(context_settings=_PASSED_ON)
def proxy(context: typer.Context) -> None:
    """A local proxy that verifies a service first, for stock clients and browsers (`redoubt proxy --help`)."""
    _redoubt_verify("proxy", context)


@cli.command(context_settings=_PASSED_ON)
def policy(context: typer.Context) -> None:
    """Make, print and compare policies for `verify` and `proxy` (`redoubt policy --help`)."""
    _redoubt_verify("policy", context)


@cli.command(context_settings=_PASSED_ON)
def collateral(context: typer.Context) -> None:
    """Fetch what Intel says of a platform (`redoubt collateral --help`)."""
    _redoubt_verify("collateral", context)


def _redoubt_verify(command: str, context: typer.Context) -> NoReturn:
    with _needing_verifier():
        from redoubt_verify.cli import main as run
    raise typer.Exit(run([command, *context.args]))


@contextmanager
def _needing_verifier() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        fail(f"this needs the package redoubt-verify (in a clone: pip install ./verify): {error}", 2)


def main() -> None:
    """The console script."""
    cli(prog_name="redoubt")


if __name__ == "__main__":
    main()
