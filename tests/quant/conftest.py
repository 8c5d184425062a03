"""What tests of the conversion share."""

from pathlib import Path

import gguf
import pytest


@pytest.fixture(scope="session")
def embedded_tensors(embedded_gguf: Path) -> dict[str, gguf.ReaderTensor]:
    """The embedded model's tensors as ggml's own package reads them; it takes its time."""
    return {tensor.name: tensor for tensor in gguf.GGUFReader(embedded_gguf).tensors}
