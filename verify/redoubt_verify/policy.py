"""What a client demands of a service: the policy file (TOML), checked as it is read.

Each demand has a field. A field that is missing must be named in `unpinned`, so that nothing is left out by accident.
Knows no quotes; `verify` applies it.
"""

import datetime
import re
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from redoubt_verify.errors import AttestationError, PolicyError

MEASUREMENTS = {
    "mrtd": 48,
    "rtmr0": 48,
    "rtmr1": 48,
    "rtmr2": 48,
    "rtmr3": 48,
    "mr_config_id": 48,
    "mr_seam": 48,
    "td_attributes": 8,
    "xfam": 8,
}
"""Fields of the TD report that a policy pins, with their sizes in bytes: one value, or a list of allowed ones."""
TCB_STATUSES = (
    "UpToDate",
    "SWHardeningNeeded",
    "ConfigurationNeeded",
    "ConfigurationAndSWHardeningNeeded",
    "OutOfDate",
    "OutOfDateConfigurationNeeded",
    "TDRelaunchAdvised",
    "TDRelaunchAdvisedConfigurationNeeded",
)
_OTHERS = (
    "advisories_allowed",
    "min_tcb_eval_data_number",
    "collateral_max_age",
    "platforms",
    "image",
    "models",
    "config_sha256",
)
UNPINNABLE = (*MEASUREMENTS, *_OTHERS, "event_log")
"""Names that `unpinned` may contain."""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True)
class Policy:
    """A checked policy. None: the field is unpinned."""

    expires: datetime.datetime
    measurements: dict[str, frozenset[bytes]]
    """Allowed values of each pinned field of MEASUREMENTS."""
    tcb_statuses: frozenset[str]
    advisories_allowed: frozenset[str] | None
    min_tcb_eval_data_number: int | None
    collateral_max_age_s: int | None
    platforms: frozenset[bytes] | None
    """Allowed PPIDs, 16 bytes each."""
    image: frozenset[str] | None
    models: frozenset[tuple[str, str]] | None
    """Allowed (name, SHA-256 in hex)."""
    config_sha256: frozenset[str] | None
    unpinned: tuple[str, ...]
    reverify_after_s: int
    insecure_root: bytes | None
    """A root (DER) other than Intel's, for a soft TEE; every verdict under it is insecure."""

    def check_date(self, now: float) -> None:
        """Raises AttestationError (policy_expired) after its date. now: Unix time."""
        if now >= self.expires.timestamp():
            raise AttestationError("policy_expired", f"the policy expired at {self.expires.isoformat()}")


def load(path: str | Path, *, allow_insecure: bool = False) -> Policy:
    """Reads a policy file. allow_insecure: accept one with a test root. Raises PolicyError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(f"{path}: {error}") from error
    try:
        return parse(text, allow_insecure=allow_insecure)
    except PolicyError as error:
        raise PolicyError(f"{path}: {error}") from error


def parse(text: str, *, allow_insecure: bool = False) -> Policy:
    """A policy from its text; see `load`."""
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise PolicyError(str(error)) from error
    reader = _Reader(table)
    policy = reader.policy()
    if policy.insecure_root is not None and not allow_insecure:
        raise PolicyError("insecure_root trusts a test root instead of Intel's: it needs --allow-insecure")
    return policy


class _Reader:
    """Takes a table apart, field by field, and knows at the end what nobody asked for."""

    def __init__(self, table: dict[str, Any]) -> None:
        self._table = table

    def policy(self) -> Policy:
        table = self._table
        known = {*MEASUREMENTS, *_OTHERS, "expires", "tcb_statuses", "unpinned", "reverify_after", "insecure_root"}
        if unknown := sorted(set(table) - known):
            raise PolicyError(f"unknown fields: {', '.join(unknown)}")
        unpinned = tuple(self._strings("unpinned", table.get("unpinned", [])))
        if wrong := sorted(set(unpinned) - set(UNPINNABLE)):
            raise PolicyError(f"unpinned names what can't be left out: {', '.join(wrong)}")
        for name in (*MEASUREMENTS, *_OTHERS):
            if (name in table) == (name in unpinned):
                fault = "is given, and named in unpinned" if name in table else "is missing, and not named in unpinned"
                raise PolicyError(f"{name} {fault}")
        statuses = frozenset(self._strings("tcb_statuses", table.get("tcb_statuses", [])))
        if not statuses or not statuses <= set(TCB_STATUSES):
            raise PolicyError(f"tcb_statuses needs some of: {', '.join(TCB_STATUSES)}")
        return Policy(
            expires=self._expires(),
            measurements={name: self._digests(name, size) for name, size in MEASUREMENTS.items() if name in table},
            tcb_statuses=statuses,
            advisories_allowed=self._optional("advisories_allowed", self._names),
            min_tcb_eval_data_number=self._optional("min_tcb_eval_data_number", self._count),
            collateral_max_age_s=self._optional("collateral_max_age", self._duration),
            platforms=self._optional("platforms", lambda name: self._digests(name, 16)),
            image=self._optional("image", self._nonempty),
            models=self._optional("models", self._models),
            config_sha256=self._optional("config_sha256", lambda name: _hex_of(self._digests(name, 32))),
            unpinned=unpinned,
            reverify_after_s=self._duration("reverify_after") if "reverify_after" in table else 3600,
            insecure_root=self._optional("insecure_root", self._root),
        )

    def _optional(self, name: str, read: Any) -> Any:
        return read(name) if name in self._table else None

    def _expires(self) -> datetime.datetime:
        value = self._table.get("expires")
        if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
            value = datetime.datetime.combine(value, datetime.time())
        if not isinstance(value, datetime.datetime):
            raise PolicyError("expires needs a date, such as 2027-01-31T00:00:00Z")
        return value if value.tzinfo else value.replace(tzinfo=datetime.UTC)

    def _strings(self, name: str, value: object) -> list[str]:
        values = value if isinstance(value, list) else [value]
        texts = [item for item in values if isinstance(item, str)]
        if len(texts) != len(values):
            raise PolicyError(f"{name} takes texts")
        return texts

    def _names(self, name: str) -> frozenset[str]:
        return frozenset(self._strings(name, self._table[name]))

    def _nonempty(self, name: str) -> frozenset[str]:
        names = self._names(name)
        if not names or "" in names:
            raise PolicyError(f"{name} is empty")
        return names

    def _digests(self, name: str, size: int) -> frozenset[bytes]:
        texts = self._nonempty(name)
        if not all(re.fullmatch(f"[0-9a-fA-F]{{{2 * size}}}", text) for text in texts):
            raise PolicyError(f"{name} takes {2 * size} hexadecimal digits")
        return frozenset(map(bytes.fromhex, texts))

    def _count(self, name: str) -> int:
        value = self._table[name]
        if type(value) is not int or value < 0:
            raise PolicyError(f"{name} takes a whole number")
        return value

    def _duration(self, name: str) -> int:
        value = self._table[name]
        text = f"{value}s" if type(value) is int else str(value)
        match = re.fullmatch(r"([1-9][0-9]{0,8})([smhd])", text)
        if not match:
            raise PolicyError(f'{name} takes a time such as "14d" or "1h", or seconds')
        return int(match[1]) * _UNITS[match[2]]

    def _root(self, name: str) -> bytes:
        try:
            certificate = x509.load_pem_x509_certificate(str(self._table[name]).encode())
        except ValueError as error:
            raise PolicyError(f"{name} takes a certificate in PEM") from error
        return certificate.public_bytes(Encoding.DER)

    def _models(self, name: str) -> frozenset[tuple[str, str]]:
        value = self._table[name]
        if not isinstance(value, list) or not value:
            raise PolicyError("models takes a list of tables: [[models]] name = ..., sha256 = ...")
        pairs = set()
        for item in value:
            if not isinstance(item, dict) or set(item) != {"name", "sha256"}:
                raise PolicyError("a model has name and sha256, and nothing else")
            if not isinstance(item["name"], str) or not re.fullmatch("[0-9a-f]{64}", str(item["sha256"])):
                raise PolicyError("a model's sha256 takes 64 lower-case hexadecimal digits")
            pairs.add((item["name"], str(item["sha256"])))
        return frozenset(pairs)


def _hex_of(values: frozenset[bytes]) -> frozenset[str]:
    return frozenset(value.hex() for value in values)


def describe(policy: Policy) -> dict[str, Any]:
    """The policy as plain values that JSON takes, in a fixed order; two policies can be compared by it."""
    plain: dict[str, Any] = {name: sorted(value.hex() for value in policy.measurements.get(name, ())) or None
                             for name in MEASUREMENTS}  # fmt: skip
    for entry in fields(policy):
        value = getattr(policy, entry.name)
        if entry.name == "measurements":
            continue
        if isinstance(value, datetime.datetime):
            value = value.isoformat()
        elif isinstance(value, bytes):
            value = value.hex()
        elif isinstance(value, frozenset):
            value = sorted(item.hex() if isinstance(item, bytes) else item for item in value)
        plain[entry.name] = value
    return plain
