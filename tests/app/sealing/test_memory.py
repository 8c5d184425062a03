"""Loading a sealed model takes memory for its weights once, and writes nothing."""

import json
import subprocess
import sys
from pathlib import Path

from app.sealing.seal import seal
from tests.app.sealing.conftest import KEY

MIB = 1 << 20
PROGRAM = f"""
import json, sys
from pathlib import Path
from app.engine.native_runner import NativeRunner
from app.sealing.sealed_model import SealedModel
from bench.common import memory_bytes

def seen():
    written = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["wchar"]
    return memory_bytes("/proc/self/status", "VmHWM"), int(written)

model = SealedModel(Path(sys.argv[1]), bytes.fromhex("{KEY.hex()}"))
before = seen()
runner = NativeRunner(model, threads=2, kv_pages=1, max_sequences=1, max_step_tokens=1, max_context_tokens=32)
print(json.dumps([after - first for first, after in zip(before, seen())]))
"""


def test_there_is_no_second_copy_of_the_weights(embedded_model: Path, tmp_path: Path) -> None:
    image = tmp_path / "image"
    seal(embedded_model, image, KEY, progress=False)
    said = subprocess.run([sys.executable, "-c", PROGRAM, str(image)], capture_output=True, text=True, check=True)
    resident_bytes, written_bytes = json.loads(said.stdout)
    weights_bytes = (embedded_model / "model.safetensors").stat().st_size
    assert weights_bytes > 90 * MIB
    assert weights_bytes - 2 * MIB < resident_bytes < weights_bytes + 40 * MIB
    assert written_bytes == 0
