"""`redoubt pull` and `redoubt models`: fetch models by name, and look after the store."""

from typing import Annotated

import typer

from app.commands.one_line import one_line_errors

models = typer.Typer(name="models", help="The models in the store; with --for-this-machine those that run well here.")
Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="ORG/REPOSITORY of the hub, with @REVISION and :TYPE (of a GGUF) if wanted; an entry of the catalogue; a"
        " GGUF file or a Hugging Face folder.",
    ),
]
KeepSource = Annotated[bool, typer.Option("--keep-source", help="Keep in the store what was fetched.")]


def pull(name: Name, keep_source: KeepSource = False) -> None:
    """Fetch a model and convert it into the store, from where `redoubt serve NAME` has it without a network.

    HF_ENDPOINT names a mirror; a token comes from HF_TOKEN or `hf auth login`. REDOUBT_MODELS is the store's folder.
    """
    from app.commands.pulling import Conversion, converted_into_store
    from app.model_folder import ChatModelError
    from app.models.names import read_name
    from app.models.store import Store
    from quant.errors import QuantError

    with one_line_errors(QuantError, ChatModelError, OSError):
        found = Store.default().find(read_name(name))
        print(found[0].models()[0] if found else converted_into_store(name, Conversion(), keep_source=keep_source))


def improve(name: Name) -> None:
    """Calibrate a model of the store anew, while the machine is idle, and keep the result if it is better: hours, once.

    Services take it at their next start; `redoubt serve NAME --improve` does this behind the service. Ctrl-C and a
    second call: it goes on where it stopped.
    """
    import time

    from app.commands.improving import improvable
    from app.launch.idle_process import LOOK_S, IdleProcess
    from app.launch.improvements import improving_command, result_of
    from quant.errors import QuantError

    with one_line_errors(QuantError, OSError):
        improvable(name)
        process = IdleProcess(improving_command(name))
    try:
        while (status := process.look()) is None:
            time.sleep(LOOK_S)
        if status:
            raise typer.Exit(status)
        print(result_of(process.result())["told"])
    finally:
        process.end()


@models.callback(invoke_without_command=True)
def _models(
    context: typer.Context,
    for_this_machine: Annotated[
        bool,
        typer.Option("--for-this-machine", help="The catalogue, sorted by what fits here and how fast it answers."),
    ] = False,
) -> None:
    """The models in the store; with --for-this-machine those that run well here."""
    if context.invoked_subcommand is None:
        print_catalogue() if for_this_machine else list_models()


@models.command("list")
def list_models() -> None:
    """List the store's models."""
    from rich.console import Console
    from rich.table import Table

    from app.commands.plan_text import size
    from app.models.store import Store
    from quant.errors import QuantError

    with one_line_errors(QuantError, OSError):
        store = Store.default()
        table = Table(*("name", "revision", "options", "size", "licence"), box=None, header_style="bold")
        for entry in store.entries():
            record = entry.record
            name = record.repository + (f":{record.gguf}" if record.gguf else "")
            options = ", ".join(sorted(path.parent.name for path in entry.models())) or "unfinished"
            table.add_row(name, record.commit[:12], options, size(entry.size_bytes()), record.licence)
        console = Console(highlight=False)
        console.print(table if table.row_count else f"The store {store.root} is empty: redoubt pull NAME")


@models.command("rm")
def remove_model(name: Name) -> None:
    """Remove a model from the store, in all its conversions, and what was fetched for it."""
    from app.models.store import Store, StoreError, remove
    from quant.errors import QuantError

    with one_line_errors(QuantError, OSError):
        store = Store.default()
        found = store.named(name)
        if not found:
            raise StoreError(f"{name}: is not in the store {store.root}; `redoubt models` lists what is")
        for entry in found:
            freed = entry.size_bytes()
            remove(entry)
            print(f"{entry.record.repository}@{entry.record.commit[:12]}: removed, {freed / 1e6:.0f} MB")


@models.command("update")
def update(name: Name, keep_source: KeepSource = False) -> None:
    """Fetch a newer revision, if there is one. The one before stays: a service may still read it."""
    from app.commands.pulling import Conversion, converted_into_store
    from app.model_folder import ChatModelError
    from app.models.names import HubName, ModelNameError, read_name
    from app.models.store import Store
    from quant.errors import QuantError

    with one_line_errors(QuantError, ChatModelError, OSError):
        meant = read_name(name)
        if not isinstance(meant, HubName):
            raise ModelNameError(f"{name}: is a path, and has no newer revision: redoubt pull {name} converts it anew")
        before = {path for entry in Store.default().find(meant) for path in entry.models()}
        place = converted_into_store(name, Conversion(), keep_source=keep_source)
        print(f"{place}: is the newest revision already" if place in before else place)


def print_catalogue() -> None:
    """The catalogue: what fits this machine, the fastest first; then the rest."""
    from rich.console import Console
    from rich.table import Table

    from app.capacity.demand import CapacityError
    from app.capacity.memory import WORKER_BYTES
    from app.commands.coming import needed_memory_bytes, speeds_of
    from app.commands.plan_inputs import read_demand, read_machine
    from app.commands.plan_text import rate, size
    from app.models.names import catalogue
    from quant.conversion.shapes import ENCODER_SHAPES

    with one_line_errors(CapacityError, OSError):
        machine = read_machine("this", None)
        rows = []
        encoders = Table(box=None, header_style="bold")
        for column in ("name", "memory", "tokens/s", "licence"):
            encoders.add_column(column, no_wrap=True)
        encoders.add_column("good for")
        for entry in catalogue().values():
            demand = read_demand(entry.shape, None, None)
            if entry.shape in ENCODER_SHAPES:
                encoders.add_row(
                    entry.name, size(demand.weight_bytes + WORKER_BYTES), rate(speeds_of(demand, machine).prompt),
                    entry.licence, entry.good_for,
                )  # fmt: skip
                continue
            needed, speeds = needed_memory_bytes(demand), speeds_of(demand, machine)
            rows.append((needed > machine.memory_bytes, -speeds.answer, entry, needed, speeds))
        table = Table(box=None, header_style="bold")
        for column in ("name", "memory", "answer/s", "prompt/s", "licence"):
            table.add_column(column, no_wrap=True)
        table.add_column("good for")
        for is_too_large, _, entry, needed, speeds in sorted(rows, key=lambda row: row[:2]):
            fast = ("does not fit", "") if is_too_large else (rate(speeds.answer), rate(speeds.prompt))
            table.add_row(entry.name, size(needed), *fast, entry.licence, entry.good_for)
        console = Console(highlight=False)
        console.print(f"{machine.name}, {size(machine.memory_bytes)} of memory; tokens/s expected for one request:")
        console.print(table)
        console.print("redoubt serve NAME fetches, converts and serves one.")
        console.print("\nEncoders and rerankers, which take turns with a chat model: redoubt serve NAME ENCODER.")
        console.print(encoders)
        drafted = ", ".join(entry.name for entry in catalogue().values() if entry.draft is not None)
        console.print(f"With --draft auto a small model drafts its answers, which come faster: {drafted}.")
        with_head = ", ".join(entry.name for entry in catalogue().values() if entry.head is not None)
        console.print(f"With --draft eagle an EAGLE-3 head does: {with_head}.")
