"""The `redoubt` command: reads the command line, calls the function that does the work, and prints its errors.

A user's mistake is one clear line on stderr and exit status 2 (1 if the work itself failed), never a traceback. Each
command imports what it needs itself: `redoubt --help` loads neither Ray nor the engine.
"""

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from app.commands import accounts, benches, knowledge, memory, models, plan, playground, stored
from app.commands.one_line import OneLineGroup, fail, one_line_errors
from app.launch.node.roles import Cores, Role

cli = typer.Typer(
    name="redoubt",
    cls=OneLineGroup,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
cli.add_typer(accounts.user, name="user")
cli.add_typer(accounts.key, name="key")
cli.add_typer(memory.memory, name="memory")
cli.add_typer(knowledge.knowledge, name="knowledge")
cli.add_typer(stored.models, name="models")
cli.command()(accounts.keygen)
cli.command()(accounts.rotate_key)
cli.command()(accounts.audit)
cli.command()(stored.pull)
cli.command()(stored.improve)
for command in (models.convert, models.export, models.seal, models.synth, plan.plan, playground.playground):
    cli.command()(command)
# For commands whose options are read by who does the work.
_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


class Evidence(StrEnum):
    """Where quotes come from: a confidential container, keys of our own to try it out, or nowhere."""

    COCO = "coco"
    SOFT = "soft"
    NONE = "none"


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"redoubt {version('redoubt')}")
        raise typer.Exit


@cli.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A private chat service for the CPUs a team already owns."""


@cli.command()
def serve(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="Models to serve, instead of the file's, as `redoubt pull` takes them: of a hub, the catalogue or a"
            " path. What is not in the store is fetched and converted first.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path, typer.Option(help="The configuration file; env:NAME: the text in that environment variable.")
    ] = Path("ray_configs/local.yaml"),
    host: Annotated[str | None, typer.Option(help="The address to listen on, instead of the file's.")] = None,
    port: Annotated[int | None, typer.Option(help="The port, instead of the file's.", min=0, max=65535)] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="The same as NAME; repeat it for several models.", show_default=False),
    ] = None,
    chat_template: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A chat template (Jinja), instead of the model's own.", show_default=False),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A smaller model that drafts the answers, which come faster and stay the same; auto: the catalogue's"
            " for this model; eagle: its EAGLE-3 head.",
            show_default=False,
        ),
    ] = None,
    attest: Annotated[
        Evidence | None,
        typer.Option(help="How clients verify this machine, instead of the file's attestation.evidence."),
    ] = None,
    log_dir: Annotated[
        Path | None,
        typer.Option(help="The folder of the access log, instead of the file's ingress.access_log_folder."),
    ] = None,
    sleep_after: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Put a model to sleep that nobody has used for so long, instead of the file's sleep.after_s. Then more"
            " models than fit into memory share the machine's cores.",
            show_default=False,
        ),
    ] = None,
    improve: Annotated[
        bool,
        typer.Option(
            "--improve",
            help="Calibrate the models anew behind the service, while the machine is idle, and change over to what is"
            " closer to the unquantized model: hours, once.",
        ),
    ] = False,
    dashboard: Annotated[bool, typer.Option("--dashboard", help="Start Ray's dashboard too.")] = False,
) -> None:
    """Serve models: OpenAI's and Anthropic's APIs under /v1, the chat page at /. Ctrl-C stops it.

    While the service runs, models that are added to the configuration file are started, and removed ones are stopped.
    """
    from app.commands.serving import draft_folder, model_folders, names_to_improve
    from app.launch.local import serve_local
    from app.launch.overrides import Overrides
    from app.model_folder import ChatModelError
    from app.settings.knobs import SettingsError
    from quant.errors import QuantError

    with one_line_errors(SettingsError, QuantError, ChatModelError, OSError):
        named = [*(names or ()), *(model or ())]
        drafting = None if draft is None else draft_folder(draft, named, config)
        folders = model_folders(named, config)
        improved_names = names_to_improve(named, config) if improve else []
    with one_line_errors(SettingsError):
        status = serve_local(
            config,
            Overrides(
                host=host,
                port=port,
                model_folders=folders,
                chat_template=chat_template,
                draft=drafting,
                evidence=attest.value if attest is not None else None,
                log_folder=log_dir,
                sleep_after_s=sleep_after,
            ),
            improve=improved_names,
            dashboard=dashboard,
        )
    raise typer.Exit(status)


@cli.command("ray-env")
def ray_env() -> None:
    """Print the environment for `ray` and `serve` commands on this machine: eval "$(redoubt ray-env)"."""
    from app.launch.ray_environment import loopback_environment

    for name, value in loopback_environment(os.environ).items():
        print(f"export {name}={shlex.quote(value)}")


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
            envvar="REDOUBT_NODE_MODELS",
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
    from app.settings.knobs import SettingsError

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
    from app.settings.knobs import SettingsError

    with one_line_errors(SettingsError, OSError):
        issue_certificate(Authority.read(authority), out, address)


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
    conversation: Annotated[
        str | None, typer.Option(metavar="<id>", help="Your conversation to go on with; the newest one by default.")
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="Begin a new conversation.")] = False,
) -> None:
    """Chat in the terminal. Ctrl-C stops an answer, /continue goes on with it, /help lists all commands.

    Four words are for the chat itself where a line has nothing else: login asks for your name and password, logout ends
    that session and forgets this chat here, exit and quit (or Ctrl-D) leave it. After exit the next chat is still
    logged in. The service keeps a user's conversations, and the next chat goes on with the newest one.

    Without a terminal each line of the input is a message, and the output is the answers, as plain text;
    status 1 if a question got none.
    """
    from app.client.account import ChatError
    from app.client.terminal import TerminalChat

    with one_line_errors(ChatError):
        is_well = TerminalChat(
            url,
            model=model,
            system=system,
            temperature=temperature,
            max_tokens=max_tokens,
            api_key=api_key,
            conversation=conversation,
            is_new=new,
        ).run()
    raise typer.Exit(0 if is_well else 1)


@cli.command(context_settings=_PASSED_ON)
def bench(
    context: typer.Context,
    what: Annotated[str, typer.Argument(metavar="WHAT")] = "--help",
) -> None:
    """Measure the engine, the service, its faults, this machine and other engines (`redoubt bench --help`)."""
    if what in ("-h", "--help"):
        typer.echo(benches.usage())
        raise typer.Exit
    if what not in benches.BENCHES:
        fail(f"there is no bench {what!r}: {', '.join(benches.BENCHES)}", 2)
    with _needing_verifier() if what in benches.NEED_VERIFIER else nullcontext():
        measure = benches.load(what)
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
    raise typer.Exit(run([command, *context.args], program="redoubt"))


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
