"""How long a step takes at best and as expected: bytes over a rate, multiply-adds over another.

At best the longer of the two counts: no program is faster with these bytes and this instruction. As expected each rate
is reached in part (`shares.py`), and reading and multiplying overlap in part:
t = (read^p + compute^p)^(1/p) + layers x overhead, with p = `Shares.overlap`. Of experts a step reads those that its
rows choose, as if each chose independently; a token is multiplied with its own. Of layers of Gated DeltaNet it reads
every answer's state, and a prompt's stays in the cache.
"""

from dataclasses import dataclass
from typing import Final

from app.capacity.demand import NARROW_HIDDEN, Demand, Windows
from app.capacity.machine import Machine
from app.capacity.shares import Shares

ALL_KEYS: Final = Windows(1)
"""Of a model whose layers see all keys."""
STEP_TOKENS: Final = 512
"""The most tokens of a step: `engine.max_step_tokens`."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a step computes."""

    answers: int = 0
    """Tokens that are decoded, one for each answer."""
    answer_keys: float = 0
    """Keys that those attend to, all together; here and below, the mean of the layers where some have windows."""
    prompt_tokens: int = 0
    prompt_keys: float = 0
    """Pairs of a prompt's token and a key that it attends to."""
    prompt_context: float = 0
    """Tokens whose keys and values the prompts read."""
    heads: int = 0
    """Rows that the head computes: the answers', and those of prompts that end."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a step, as expected."""

    seconds: float
    read_s: float
    """What reading alone would take."""
    compute_s: float
    """What multiplying alone would take."""

    @property
    def limit(self) -> str:
        """Which of the two is longer."""
        return "read" if self.read_s >= self.compute_s else "compute"


class StepTimes:
    """The times of one model's steps on one node of a machine."""

    def __init__(self, demand: Demand, machine: Machine, shares: Shares, kv_type: str) -> None:
        """kv_type: of the pages. Raises CapacityError for an unknown one."""
        self._demand = demand
        self._machine = machine
        self.keys: Windows = demand.keys
        """How many keys the model's tokens see."""
        kv_bytes = demand.kv_bytes_per_token(kv_type)
        self._kv_bytes = kv_bytes
        narrow = shares.narrow if demand.hidden < NARROW_HIDDEN else 1.0
        read, macs = machine.read_bytes_per_s, machine.macs_per_s
        layer_macs = demand.matrices.layer_weights * narrow
        self._byte_s = 1 / (read * shares.read)
        self._key_s = kv_bytes / (read * shares.kv_read)
        self._state_s = demand.states.read_bytes / (read * shares.kv_read)
        self._answer_s = layer_macs / (macs * shares.decode)
        self._prompt_s = layer_macs / (macs * shares.prompt)
        self._head_s = demand.matrices.head_weights / (macs * shares.decode)
        self._key_macs_s = demand.attention_macs_per_key / (macs * shares.attention)
        self._state_macs_s = demand.states.macs_per_token / (macs * shares.attention)
        self._overhead_s = demand.layers * shares.overhead_s
        self._overlap = shares.overlap

    def experts_read_s(self, rows: float) -> float:
        """What reading the experts of so many rows takes."""
        matrices = self._demand.matrices
        return matrices.touched_share(rows) * matrices.expert_bytes * self._byte_s

    def expert_tokens(self, rows: int) -> int:
        """Tokens of a step in which each expert gets so many rows, on average; 0 without experts."""
        matrices = self._demand.matrices
        return -(-rows * matrices.experts // matrices.experts_per_token) if matrices.experts else 0

    def expected(self, step: Step) -> StepTime:
        """The step's time with our shares."""
        read_s = (
            self._demand.read_bytes(step.answers + step.prompt_tokens) * self._byte_s
            + (step.answer_keys + step.prompt_context) * self._key_s
            + step.answers * self._state_s
        )
        compute_s = step.answers * self._answer_s + step.prompt_tokens * self._prompt_s
        compute_s += step.heads * self._head_s + (step.answer_keys + step.prompt_keys) * self._key_macs_s
        compute_s += (step.answers + step.prompt_tokens) * self._state_macs_s
        p = self._overlap
        # Scaled by the longer one, so that no power overflows.
        longer, shorter = max(read_s, compute_s), min(read_s, compute_s)
        return StepTime(longer * (1 + (shorter / longer) ** p) ** (1 / p) + self._overhead_s, read_s, compute_s)

    def best_s(self, step: Step) -> tuple[float, str]:
        """The least time with these weights and the machine's instruction, and what sets it: "read" or "compute"."""
        demand, machine = self._demand, self._machine
        read_bytes = (
            demand.read_bytes(step.answers + step.prompt_tokens)
            + (step.answer_keys + step.prompt_context) * self._kv_bytes
            + step.answers * demand.states.read_bytes
        )
        macs: float = step.answers + step.prompt_tokens
        macs *= demand.matrices.layer_weights + demand.states.macs_per_token
        macs += step.heads * demand.matrices.head_weights
        macs += (step.answer_keys + step.prompt_keys) * demand.attention_macs_per_key
        read_s, compute_s = read_bytes / machine.best_read_bytes_per_s, macs / machine.best_macs_per_s
        return max(read_s, compute_s), "read" if read_s >= compute_s else "compute"


def decode_step(answers: int, context_tokens: float, keys: Windows = ALL_KEYS) -> Step:
    """A step in which so many answers get a token each, after so many tokens each. keys: the model's."""
    return Step(answers=answers, answer_keys=answers * keys.seen(context_tokens + 1), heads=answers)


def prompt_steps(prompt_tokens: int, history_tokens: int = 0, keys: Windows = ALL_KEYS) -> list[Step]:
    """The steps of a prompt alone, after a history that is in the cache. keys: the model's."""
    steps = []
    for begin in range(0, prompt_tokens, STEP_TOKENS):
        tokens = min(STEP_TOKENS, prompt_tokens - begin)
        before = history_tokens + begin
        steps.append(
            Step(
                prompt_tokens=tokens,
                prompt_keys=keys.pairs(before, tokens),
                prompt_context=keys.read(before, tokens),
                heads=int(begin + tokens == prompt_tokens),
            )
        )
    return steps
