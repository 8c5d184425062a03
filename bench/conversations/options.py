"""The command line of `redoubt bench conversations`, checked. Starts nothing."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from app.model_folder import encoder_settings, is_draft_head
from bench.common import ROOT, OneLineParser, at_least
from bench.conversations.find_rate import MOST_PROBES
from bench.conversations.launches import OURS, PEERS, VARIANTS
from bench.conversations.rounds import LEAST_ROUNDS
from bench.cores import default_threads
from bench.models import NAMES
from kernels import _native
from quant.errors import QuantError
from quant.files.json_file import read_json_object
from quant.packed.packed_file import is_packed_model


def names_of(known: Sequence[str]) -> Any:
    """Different ones of these names with commas, for argparse."""

    def parse(text: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(name for name in text.split(",") if name))
        if not names or not set(names) <= set(known):
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of {', '.join(known)}")
        return names

    return parse


def positive(text: str) -> float:
    """A number above 0, for argparse."""
    if not 0 < float(text) < float("inf"):
        raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
    return float(text)


def parser() -> argparse.ArgumentParser:
    made = OneLineParser(
        prog="redoubt bench conversations", description="Requests a second on real conversations, beside the peers."
    )
    add = made.add_argument
    add("model_folder", type=Path, nargs="?", metavar="MODEL", help="folder of a converted model: ours alone")
    add("--model", choices=NAMES, help="a model that peers have too; all but embedded have random weights")
    add(
        "--also",
        type=Path,
        action="append",
        default=[],
        metavar="MODEL",
        help="ours alone: a further converted model, served beside the first; conversations go to each in turn",
    )
    add("--url", help="a service that runs; the API key is REDOUBT_API_KEY. MODEL is then where its tokenizer is")
    add("--data", type=Path, required=True, help="conversations: ShareGPT's JSON, or OpenAI messages as JSON lines")
    servers = (OURS, *PEERS)
    add("--servers", type=names_of(servers), help=f"with commas (default with --model: {','.join(servers)})")
    arrivals = made.add_mutually_exclusive_group()
    arrivals.add_argument("--at-once", type=at_least(1), help="clients in a closed loop (default 16)")
    arrivals.add_argument("--rate", type=positive, help="conversations that arrive in a second, at random")
    arrivals.add_argument("--find-rate", action="store_true", help="the highest rate that keeps the promise")
    add("--conversations", type=at_least(1), default=48, help="of a round (default %(default)s)")
    add("--turns", type=at_least(1), default=1, help="of each conversation at most (default %(default)s)")
    add("--rounds", type=at_least(1), default=LEAST_ROUNDS, help="or searches; medians count (default %(default)s)")
    add("--max-prompt-tokens", type=at_least(1), default=1024, help="longer prompts are left out (default %(default)s)")
    add("--max-answer-tokens", type=at_least(2), default=256, help="longer answers are cut (default %(default)s)")
    add("--first-token-s", type=positive, default=3.0, help="the promise (default %(default)s)")
    add("--token-s", type=positive, default=0.2, help="the promise, for each token (default %(default)s)")
    add(
        "--probe-s",
        type=positive,
        default=60.0,
        help=f"of arrivals at each of {MOST_PROBES} rates (default %(default)s)",
    )
    add("--search-s", type=positive, default=600.0, help="the most that a server's search takes (default %(default)s)")
    add("--run-s", type=positive, default=1800.0, help="the most that a round takes (default %(default)s)")
    add("--request-s", type=positive, help="the most that a request takes (default: what is left of the round)")
    add("--seed", type=int, default=7, help="of the choice and the arrivals (default %(default)s)")
    add("--slots", type=at_least(1), help="requests that a server computes at once (default: as --at-once, or 16)")
    add("--workers", type=at_least(1), default=1, help="ours (default %(default)s)")
    add("--threads", type=at_least(1), help="compute threads of every server (default: the first NUMA node's cores)")
    add("--no-guesses", action="store_true", help="ours without speculation")
    add("--no-prefix-cache", action="store_true", help="ours without it")
    add("--kv-type", choices=("auto", *_native.KV_TYPES), default="auto", help="ours")
    add("--draft", type=Path, metavar="MODEL", help="ours: a smaller converted model, or an EAGLE-3 head, that drafts")
    add("--variants", type=names_of(tuple(VARIANTS)), default=(), help=f"ours also with: {','.join(VARIANTS)}")
    beside = made.add_mutually_exclusive_group()
    beside.add_argument("--in-turn", action="store_true", help="start each for its turn (default beside peers)")
    beside.add_argument("--side-by-side", action="store_true", help="all stay loaded: quicker; ours idle takes cores")
    add("--out", type=Path, help="a file for the result as JSON")
    add("--models", type=Path, default=ROOT / "models", help="(default: the repository's)")
    add("--environments", type=Path, default=ROOT / "build" / "peers", help="(default: build/peers)")
    return made


_OWN: Final = ("no_guesses", "no_prefix_cache", "kv_type", "workers", "draft")
"""Options of our service alone."""
_STARTED: Final = ("slots", "in_turn", "side_by_side", "environments")
"""Further options of servers that this bench starts."""


def _given(made: argparse.ArgumentParser, options: argparse.Namespace, names: Sequence[str]) -> str:
    """The first of these options that differs from its default, as it is written; empty if none does."""
    given = (name for name in names if getattr(options, name) != made.get_default(name))
    return next((f"--{name.replace('_', '-')}" for name in given), "")


def _check_folders(made: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the process unless the folders are what they must be; at a URL MODEL is a tokenizer alone."""
    for folder in (*filter(None, [options.model_folder]), *options.also):
        if not (folder / "tokenizer.json").exists() or (options.url is None and not is_packed_model(folder)):
            made.error(f"{folder} is no folder of a converted model")
        if options.url is None and not _generates(made, folder):
            made.error(f"{folder} is an encoder or an EAGLE-3 head, and answers nothing")
    if options.draft is not None and not is_packed_model(options.draft):
        made.error(f"--draft: {options.draft} is no folder of a converted model or of an EAGLE-3 head")


def _generates(made: argparse.ArgumentParser, folder: Path) -> bool:
    try:
        config = read_json_object(folder / "config.json")
    except QuantError as error:
        made.error(str(error))
    return encoder_settings(config) is None and not is_draft_head(config)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options; ends the process with one line about what is wrong."""
    made = parser()
    options = made.parse_args(arguments)
    options.arguments = list(sys.argv[1:] if arguments is None else arguments)
    if options.url is None and options.model is None and options.model_folder is None:
        made.error("needs --model, MODEL or --url (with --url, MODEL is where the tokenizer is)")
    if options.url is not None and options.model is not None:
        made.error("either --url or --model: with --url, MODEL is where the tokenizer is")
    if options.model is not None and options.model_folder is not None:
        made.error("either MODEL or --model")
    if options.draft is not None and (options.url is not None or options.also):
        made.error("--draft is of one model that this bench serves, without --url and --also")
    _check_folders(made, options)
    if options.model is None and options.servers not in (None, (OURS,)):
        made.error("--servers needs --model: peers read other forms of a model than a converted folder")
    if options.url is not None and (options.servers or options.variants):
        made.error("--url measures that service alone, without --servers and --variants")
    if options.variants and OURS not in (options.servers or (OURS,)):
        made.error(f"--variants are of {OURS}, which is not among --servers")
    if options.variants and options.side_by_side:
        made.error("--side-by-side is not for --variants: each has a Ray of its own, and is started for its turn")
    if options.url is not None and (ignored := _given(made, options, (*_OWN, *_STARTED))):
        made.error(f"{ignored} is of servers that this bench starts, not of one at --url")
    if OURS not in (options.servers or (OURS,)) and (ignored := _given(made, options, _OWN)):
        made.error(f"{ignored} is of {OURS}, which is not among --servers")
    if not options.find_rate and (ignored := _given(made, options, ("probe_s", "search_s"))):
        made.error(f"{ignored} needs --find-rate")
    options.servers = options.servers or ((OURS, *PEERS) if options.model else (OURS,))
    if options.also and (options.url is not None or options.servers != (OURS,)):
        made.error("--also measures our service alone: name MODEL, or --model with --servers redoubt")
    options.slots = options.slots or options.at_once or 16
    options.at_once = options.at_once or 16
    if options.url is not None and options.threads is not None:
        made.error("--threads is of servers that this bench starts, not of one at --url")
    workers = options.workers * (1 + len(options.also))
    if workers > 1 and options.threads is not None and options.threads < workers:
        made.error(f"--threads {options.threads} are too few for {workers} workers")
    options.threads = None if options.url is not None else options.threads or default_threads()
    options.environments = options.environments.absolute()
    if options.model_folder is not None:
        options.model_folder = options.model_folder.absolute()
    options.draft = None if options.draft is None else options.draft.absolute()
    options.also = [folder.absolute() for folder in options.also]
    options.environments.mkdir(parents=True, exist_ok=True)
    return options
