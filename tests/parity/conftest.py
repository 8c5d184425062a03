"""transformers' model of the embedded GGUF, read once for all."""

from pathlib import Path

import pytest

from tests.parity.reference import Reference


@pytest.fixture(scope="session")
def reference(embedded_gguf: Path) -> Reference:
    return Reference(embedded_gguf)
