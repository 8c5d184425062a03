"""Minimum and expected time of a step: bytes over a read rate, multiply-adds over a compute rate.

The minimum is the longer of the two: no program is faster with these bytes and this instruction. The expected time uses
the shares of `shares.py`, and reading and multiplying overlap in part: t = (read^p + compute^p)^(1/p) + layers x
overhead, with p = `Shares.overlap`. A step reads those experts that its rows choose, as if each chose independently; a
token is multiplied with its own. With Gated DeltaNet it reads every answer's state, while a prompt's stays in the
cache.
"""

from dataclasses import dataclass, replace
from typing import Final

from app.capacity.demand import NARROW_HIDDEN, Demand, Windows
from app.capacity.machine import Machine
from app.capacity.shares import Shares

ALL_KEYS: Final = Windows(1)
"""For a model whose layers see all keys."""
STEP_TOKENS: Final = 512
"""The most tokens of a step: `engine.max_step_tokens`."""


@dataclass(frozen=True, slots=True)
class Step:
    """The work of a step."""

    answers: int = 0
    """Decoded tokens, one for each answer."""
    answer_keys: float = 0
    """Keys that those attend to, in all; here and below, means over the layers if some have windows."""
    prompt_tokens: int = 0
    prompt_keys: float = 0
    """Number of (prompt token, visible key) pairs."""
    prompt_context: float = 0
    """Tokens whose keys and values the prompts read."""
    heads: int = 0
    """Rows that the head computes: the answers', and those of prompts that end."""
    drafts: int = 0
    """Further rows of the answers, drafted ones: they see the keys and the states that the answers read."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Expected seconds of a step."""

    seconds: float
    read_s: float
    """Time of reading alone."""
    compute_s: float
    """Time of multiplying alone."""

    @property
    def limit(self) -> str:
        """The longer one's name."""
        return "read" if self.read_s >= self.compute_s else "compute"


class StepTimes:
    """Step times of one model on one node of a machine."""

    def __init__(self, demand: Demand, machine: Machine, shares: Shares, kv_type: str) -> None:
        """kv_type: the pages' type. Raises CapacityError for an unknown one."""
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
        """Time of reading the experts of `rows` rows."""
        matrices = self._demand.matrices
        return matrices.touched_share(rows) * matrices.expert_bytes * self._byte_s

    def expert_tokens(self, rows: int) -> int:
        """Tokens of a step in which each expert gets `rows` rows on average; 0 without experts."""
        matrices = self._demand.matrices
        return -(-rows * matrices.experts // matrices.experts_per_token) if matrices.experts else 0

    def expected(self, step: Step) -> StepTime:
        """The step's time with our shares."""
        rows = step.answers + step.drafts
        read_s = (
            self._demand.read_bytes(rows + step.prompt_tokens) * self._byte_s
            + (step.answer_keys + step.prompt_context) * self._key_s
            + step.answers * self._state_s
        )
        compute_s = rows * self._answer_s + step.prompt_tokens * self._prompt_s
        row_keys = step.answer_keys * rows / max(step.answers, 1)
        compute_s += step.heads * self._head_s + (row_keys + step.prompt_keys) * self._key_macs_s
        compute_s += (rows + step.prompt_tokens) * self._state_macs_s
        p = self._overlap
        # Scaled by the longer one, to avoid overflow.
        longer, shorter = max(read_s, compute_s), min(read_s, compute_s)
        return StepTime(longer * (1 + (shorter / longer) ** p) ** (1 / p) + self._overhead_s, read_s, compute_s)

    def best_s(self, step: Step) -> tuple[float, str]:
        """The minimum time with these weights and the machine's instruction, and its bound: "read" or "compute"."""
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
    """A step in which each of `answers` answers gets a token after `context_tokens` tokens. keys: the model's."""
    return Step(answers=answers, answer_keys=answers * keys.seen(context_tokens + 1), heads=answers)


def drafted_step(answers: int, drafts: int, context_tokens: float, keys: Windows = ALL_KEYS) -> Step:
    """A step of answers, each with so many draft tokens after its own."""
    step = decode_step(answers, context_tokens, keys)
    return replace(step, drafts=answers * drafts, heads=answers * (1 + drafts))


def prompt_steps(prompt_tokens: int, history_tokens: int = 0, keys: Windows = ALL_KEYS) -> list[Step]:
    """The steps of a single prompt after a cached history. keys: the model's."""
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
