"""The fingerprint of a model's KV cache: saved pages are shared only where every bit of them would be the same.

It covers what is declared (the model's file, shapes, types, instruction set, version of the numerics) and what is
observed: the bytes of a page that the loaded model computes from fixed tokens. The observed part catches what the
    declared one misses: a changed kernel, another mathematics library, a file that was changed in place.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

NUMERICS_VERSION: Final = 1
"""Raise it by one whenever the engine computes other bits of keys and values from the same model; a golden test
(tests/app/memory/test_fingerprint.py) fails until then."""
FINGERPRINT_BYTES: Final = 32


def fingerprint(model_digest: str, *, facts: Mapping[str, str | int], probe: bytes) -> bytes:
    """Returns the 32-byte fingerprint of a loaded model.

    model_digest: `packed_digest` of its folder.
    facts: the types and the instruction set that it runs with.
    probe: a page that it computed from fixed tokens, as `gather_page` gives it.
    """
    declared = {
        "numerics": NUMERICS_VERSION,
        "model": model_digest,
        "facts": dict(facts),
        "probe": hashlib.sha256(probe).hexdigest(),
    }
    return hashlib.sha256(json.dumps(declared, sort_keys=True, separators=(",", ":")).encode()).digest()


def packed_digest(folder: Path) -> str:
    """SHA-256 in hex over a converted model's shape and weights. Raises OSError."""
    digest = hashlib.sha256()
    for name in ("config.json", "model.safetensors"):
        with (folder / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
