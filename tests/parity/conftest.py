"""transformers' model of the embedded GGUF, read once for all."""

from pathlib import Path
from typing import Any

import pytest

from tests.parity.reference import Reference


@pytest.fixture(scope="session")
def reference(embedded_gguf: Path, embedded_tokenizer: Any) -> Reference:
    return Reference(embedded_gguf, embedded_tokenizer)
