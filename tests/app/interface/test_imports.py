"""What an ingress imports: a module that it does not need costs every ingress memory and start time."""

import subprocess
import sys

PROGRAM = """
import sys
sys.modules["pandas"] = None  # Ray Serve imports it where it is installed, and works without it
import app.interface.ingress
print(*sys.modules, sep="\\n")
"""
UNWANTED = [
    *("gradio", "gradio_client", "huggingface_hub", "PIL", "matplotlib", "openai", "typer", "prompt_toolkit"),
    *("torch", "transformers", "kernels", "quant", "bench", "app.engine", "app.workers", "app.accounts", "app.client"),
    *("sqlalchemy", "alembic", "limits", "threadpoolctl"),
    *("pypdfium2", "lxml", "markdownify", "bs4"),
]


def test_an_ingress_imports_what_it_needs() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=240)
    loaded = done.stdout.split()
    assert "app.interface.http_api" in loaded
    assert [name for name in loaded if any(f"{name}.".startswith(f"{each}.") for each in UNWANTED)] == []
