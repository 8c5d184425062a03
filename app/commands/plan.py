"""`redoubt plan`: predicts what a machine will do with a model, before one buys or downloads anything."""

import json
from pathlib import Path
from typing import Annotated

import typer

from app.commands.models import QType
from app.commands.one_line import one_line_errors

_GIB = 1 << 30


def plan(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A Hugging Face folder, a GGUF, a converted folder, or a known shape as qwen3-4b; without it, the"
            " known chat models and machines are listed.",
            show_default=False,
        ),
    ] = None,
    machine: Annotated[
        str,
        typer.Option(help="this: measure this machine. Or one of the table, as epyc-9354 or 2x-epyc-9354; or a file."),
    ] = "this",
    users: Annotated[
        int | None,
        typer.Option(min=1, help="Say whether it serves so many, and which machines do.", show_default=False),
    ] = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="New tokens of a request, median.")] = 36,
    answer_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer, median.")] = 264,
    context_tokens: Annotated[int, typer.Option(min=0, help="Tokens of the chat before the request.")] = 1024,
    seconds_between: Annotated[float, typer.Option(help="From one request of a user to the next.")] = 60.0,
    type_: Annotated[
        QType | None,
        typer.Option("--type", help="How weights are stored, as of `redoubt convert`.", show_default=False),
    ] = None,
    group_size: Annotated[
        int | None, typer.Option(help="Weights that share a scale: 32, 64 or 128.", show_default=False)
    ] = None,
    kv_type: Annotated[
        str | None,
        typer.Option(help="Of keys and values: int16, bf16, int8 or fp32. [default: the tier's]", show_default=False),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="A smaller model that drafts, as qwen3-0.6b, or eagle: a head.", show_default=False
        ),
    ] = None,
    memory_gb: Annotated[
        float | None, typer.Option(help="The machine's memory in GiB, instead of its own.", show_default=False)
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the machine to a file.", show_default=False)
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compute speeds, memory and users of a model on a machine, what limits them, and which machine would do.

    `--machine this --save FILE` measures here, and `--machine FILE` plans with that elsewhere.
    """
    from rich.console import Console

    from app.capacity.demand import CapacityError
    from app.capacity.plan import make_plan
    from app.capacity.traffic import Traffic
    from app.commands.plan_inputs import (
        check_drafting,
        head_demand,
        known_machines,
        known_models,
        own_layer_demand,
        read_demand,
        read_machine,
        save_machine,
    )
    from app.commands.plan_text import print_known, print_plan
    from quant.errors import QuantError

    console = Console(highlight=False, soft_wrap=False)
    with one_line_errors(CapacityError, QuantError, OSError):
        if model is None and save is None:
            if json_:
                names = {
                    "models": [name for name, _ in known_models()],
                    "machines": [name for name, _ in known_machines()],
                }
                print(json.dumps(names))
            else:
                print_known(known_models(), known_machines(), console)
            return
        if memory_gb is not None and not 0 < memory_gb < 1e6:
            raise CapacityError(f"--memory-gb must be above 0 and below a million, not {memory_gb:g}")
        traffic = Traffic(prompt_tokens, answer_tokens, context_tokens, seconds_between)
        demand = None if model is None else read_demand(model, type_ and type_.value, group_size)
        drafting = None
        if draft is not None and model is not None:
            drafting = head_demand(model) if draft == "eagle" else read_demand(draft, None, None)
            check_drafting(model, draft)
        tokens = context_tokens + prompt_tokens + answer_tokens
        if demand is not None and tokens > demand.context_tokens:
            raise CapacityError(
                f"a request of {context_tokens} + {prompt_tokens} + {answer_tokens} tokens is too long:"
                f" {demand.name} was trained for {demand.context_tokens}; see"
                " --context-tokens, --prompt-tokens and --answer-tokens"
            )
        found = read_machine(machine, None if memory_gb is None else round(memory_gb * _GIB))
        if save is not None:
            save_machine(found, save)
        if demand is None:
            return
        own_layer = None if model is None else own_layer_demand(model)
        made = make_plan(
            demand, found, traffic, kv_type=kv_type, wanted_users=users, draft=drafting, own_layer=own_layer
        )
        if json_:
            print(json.dumps(made.to_dict()))
        else:
            print_plan(made, console)
