"""A worker's process loads its engine and nothing of the chat stack, which would cost each worker time and memory."""

import json
import subprocess
import sys
from pathlib import Path

from tests.app.tiny_model import EOS_ID, tokenizer_json

PROGRAM = """
import sys
from pathlib import Path

import app.workers.worker
from app.workers.constraints import Constraints

constraints = Constraints(Path(sys.argv[1]), int(sys.argv[2]))
constraints.compile('{"type": "integer"}')
constraints.close()
print(*sys.modules, sep="\\n")
"""
# Not FastAPI: Ray Serve imports it itself.
UNWANTED = ["app.interface", "app.controller", "app.launch", "app.client", "jinja2", "gradio", "openai", "tokenizers"]


def test_neither_a_worker_nor_its_constraints_load_the_chat_stack(tmp_path: Path) -> None:
    tokenizer = tokenizer_json()
    vocab_size = len(tokenizer["model"]["vocab"])
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": vocab_size, "eos_token_id": EOS_ID}))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), str(vocab_size)],
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    loaded = done.stdout.split()
    assert "app.workers.worker" in loaded
    assert [name for name in loaded if any(f"{name}.".startswith(f"{each}.") for each in UNWANTED)] == []
