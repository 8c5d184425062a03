"""What a work demands of the machine at least: bytes that must be read and multiply-adds that must be made.

The demand is that of our own packed model, so that all engines are held against one limit. A step reads all matrices
once, and every key and value that is seen. It makes one multiply-add for each weight and token, and for attention two
for each key and element of a query, counted at the same peak. The head is needed at a prompt's last position alone.
Knows no engine; the rates that a machine reaches are those of `bench.rates`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from app.capacity.demand import Windows
from app.capacity.states import NO_STATES, States
from app.capacity.step_time import ALL_KEYS
from app.commands.plan_inputs import read_demand
from bench.rates import Rates
from bench.work import Work
from kernels import _native


@dataclass(frozen=True, slots=True)
class Demand:
    """The bytes and multiply-adds that one model needs."""

    layer_weights: int
    """Elements of the layers' matrices that a token takes, which are its multiply-adds."""
    head_weights: int
    read_bytes: Callable[[float], float]
    """Bytes of the matrices that a step with that many tokens reads: layers, head and the experts used."""
    kv_bytes_per_token: float
    attention_macs_per_key: int
    """Multiply-adds of one query token with one key and its value, over all layers."""
    keys: Windows = ALL_KEYS
    """How many keys tokens see."""
    states: States = NO_STATES
    """Recurrent states of the layers without attention."""

    @classmethod
    def of(cls, folder: Path, kv_type: str) -> "Demand":
        """Reads a packed model's header and config. Raises QuantError, OSError."""
        demand = read_demand(str(folder), None, None)
        return cls(
            layer_weights=demand.matrices.layer_weights,
            head_weights=demand.matrices.head_weights,
            read_bytes=demand.read_bytes,
            kv_bytes_per_token=_native.Model.kv_page_bytes(str(folder), kv_type) / _native.PAGE_TOKENS,
            attention_macs_per_key=demand.attention_macs_per_key,
            keys=demand.keys,
            states=demand.states,
        )

    def bytes_and_macs(self, work: Work) -> tuple[float, float]:
        """(bytes, multiply-adds) of the whole work: a prefill, whose matrices count once, or all decode steps."""
        tokens, per_token = work.context_tokens, self.layer_weights + self.states.macs_per_token
        if work.kind == "prefill":
            keys = self.keys.pairs(0, tokens)
            macs = tokens * per_token + self.head_weights + keys * self.attention_macs_per_key
            return self.read_bytes(tokens) + tokens * self.kv_bytes_per_token, macs
        keys = work.streams * sum(self.keys.seen(tokens + step + 1) for step in range(work.new_tokens))
        macs = work.tokens * (per_token + self.head_weights) + keys * self.attention_macs_per_key
        read = work.new_tokens * self.read_bytes(work.streams) + work.tokens * self.states.read_bytes
        return read + keys * self.kv_bytes_per_token, macs

    def limit_tokens_per_s(self, work: Work, rates: Rates) -> tuple[float, str]:
        """The upper limit of any engine with these weights, and the rate that sets it: "read" or "compute"."""
        read_bytes, macs = self.bytes_and_macs(work)
        read_s = read_bytes / rates.read_bytes_per_s
        compute_s = macs / rates.macs_per_s if rates.macs_per_s else 0.0
        return work.tokens / max(read_s, compute_s), "read" if read_s >= compute_s else "compute"
