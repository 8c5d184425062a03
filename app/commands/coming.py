"""What a model that is about to be fetched will need and do here: said before its weights come.

From its skeleton (`app.models.skeleton`), by the calculator of `redoubt plan` and by the conversion itself. It refuses
what can't end well: an unsupported model, too little disk, and to serve what is larger than the machine's memory.
"""

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from app.capacity.demand import CapacityError, Demand
from app.capacity.machine import Machine
from app.capacity.memory import SERVICE_BYTES
from app.capacity.step_time import decode_step, prompt_steps
from app.capacity.users import step_times
from app.commands.plan_inputs import read_demand, read_machine
from app.commands.plan_text import rate, size
from app.models.hub import HubFile, Repository, fetched_bytes
from app.models.skeleton import Pace, make_skeleton
from app.models.store import VARIABLE, Entry
from app.settings.worker import EngineSettings
from app.workers.machine_memory import available_memory_bytes, machine_memory_bytes
from quant.conversion.estimate import duration
from quant.errors import ResourceError, SourceError, TensorError
from quant.families.eagle import is_eagle_head
from quant.files.free_space import SPARE_BYTES, free_bytes
from quant.files.json_file import read_json_object

Convert = Callable[[Path, Path, Callable[[str], None]], object]
"""(source, folder to write, what is told of time, memory and disk before the work)"""
_PROMPT_TOKENS = 1000
_CONTEXT_TOKENS = 1000


class _SaidError(Exception):
    """A conversion has said what it takes, and that was all that was wanted."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Tokens a second, of one answer and of its prompt."""

    answer: float
    prompt: float


def speeds_of(demand: Demand, machine: Machine) -> Speeds:
    """What the calculator expects. Raises CapacityError."""
    times = step_times(demand, machine)
    context = max(1, min(_CONTEXT_TOKENS, demand.context_tokens - 1))
    tokens = min(_PROMPT_TOKENS, demand.context_tokens)
    prompt_s = sum(times.expected(step).seconds for step in prompt_steps(tokens, 0, demand.keys))
    return Speeds(1 / times.expected(decode_step(1, context, demand.keys)).seconds, tokens / prompt_s)


def needed_memory_bytes(demand: Demand) -> int:
    """Of a service with this model and the default settings."""
    return demand.weight_bytes + EngineSettings().kv_memory_bytes + SERVICE_BYTES


def say_what_comes(
    repository: Repository,
    files: list[HubFile],
    entry: Entry,
    convert: Convert,
    tell: Callable[[str], None],
    *,
    is_served: bool,
) -> None:
    """Tells name, revision, licence, sizes, speed and time. Raises QuantError, CapacityError, OSError.

    convert: of the options that are to be used; it is stopped when it has said what it takes.
    """
    name = repository.name
    gate = "; gated" if repository.gated else ""
    tell(f"{name}, revision {repository.commit[:12]}, licence: {repository.licence}{gate}")
    for killed in entry.folder.glob(".skeleton-*"):
        shutil.rmtree(killed, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".skeleton-", dir=entry.folder) as temporary:
        whole, out = Path(temporary, "source"), Path(temporary, entry.name)
        whole.mkdir()
        skeleton = make_skeleton(repository, files, entry.source, whole, pace := Pace())
        there = fetched_bytes(entry.source, files)
        demand, conversion = _demand(skeleton), _said_by(convert, skeleton, out)
    left = sum(file.size_bytes for file in files) - there
    result = 0 if demand is None else demand.weight_bytes
    needed, free = left + result + SPARE_BYTES, free_bytes(entry.folder)
    if needed > free:
        raise ResourceError(
            f"{name}: needs {size(needed)} of disk at {entry.folder.parent}, and {size(free)} are free: {VARIABLE}"
            " names another place"
        )
    took = f", {duration(left / pace.bytes_per_s)} at the pace so far" if left and pace.bytes_per_s else ""
    result_text = f" Converted: {size(result)}." if demand is not None else ""
    tell(f"To fetch: {size(left)}{took}.{result_text} Free disk: {size(free)}.")
    if demand is not None:
        _tell_how_it_runs(str(name), demand, tell, is_served=is_served)
    tell(conversion)
    if is_served:
        tell("The first answer is there half a minute after that.")


def _demand(skeleton: Path) -> Demand | None:
    if skeleton.is_dir() and is_eagle_head(read_json_object(skeleton / "config.json")):
        return None  # it answers nothing by itself
    try:
        return read_demand(str(skeleton), None, None)
    except SourceError:  # the header says less than the calculator needs
        return None


def _said_by(convert: Convert, skeleton: Path, out: Path) -> str:
    said = list[str]()

    def stop(text: str) -> None:
        said.append(text)
        raise _SaidError

    try:
        convert(skeleton, out, stop)
    except _SaidError:
        pass
    except (SourceError, TensorError):  # of values, which a skeleton lacks
        pass
    return said[0] if said else "The conversion says how long it takes when all is there."


def _tell_how_it_runs(name: str, demand: Demand, tell: Callable[[str], None], *, is_served: bool) -> None:
    needed, there = needed_memory_bytes(demand), machine_memory_bytes()
    tell(f"Memory to serve it: {size(needed)}; this machine has {size(there)}, {size(available_memory_bytes())} free.")
    if is_served and demand.weight_bytes > there:
        raise ResourceError(
            f"{name}: its weights alone, {size(demand.weight_bytes)}, are more than this machine's {size(there)} of"
            " memory: `redoubt models --for-this-machine` lists what fits"
        )
    try:
        speeds = speeds_of(demand, read_machine("this", None))
    except CapacityError as error:
        tell(f"No speed is expected: {error}")
        return
    tell(
        f"Expected here: {rate(speeds.answer)} tokens/s for one answer; a prompt of {_PROMPT_TOKENS:,} tokens is read"
        f" in {_PROMPT_TOKENS / speeds.prompt:.0f} s."
    )
