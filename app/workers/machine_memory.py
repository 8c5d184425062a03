"""How much memory a worker may still take, and whether another one fits beside those that run."""

from pathlib import Path
from typing import Final

from app.model_folder import WEIGHTS
from app.sealing.sealed_model import SealedModel

_CGROUP: Final = Path("/sys/fs/cgroup")
_MEMORY: Final = Path("/proc/meminfo")
_PROCESS_BYTES: Final = 512 << 20
"""Of a worker beside weights and cache: its libraries, and the activations of a step."""


class NoRoomError(RuntimeError):
    """There is not enough memory for a second worker."""


def available_memory_bytes(meminfo: Path = _MEMORY, cgroup: Path = _CGROUP) -> int:
    """Memory that the kernel says is available without swapping, or what is left of the container's limit.

    Pages of files count as available, as the kernel gives them back.
    """
    lines = meminfo.read_text().splitlines()
    available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    try:
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
        statistics = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        cached = int(statistics["active_file"]) + int(statistics["inactive_file"])
    except (OSError, ValueError, KeyError):  # there is no limit
        return available
    return min(available, limit - used + cached)


def check_room_beside(model: Path | SealedModel, kv_bytes: int, available_bytes: int) -> None:
    """Raises NoRoomError unless another worker with these files and this KV cache fits into the available memory."""
    weights = model.size(WEIGHTS) if isinstance(model, SealedModel) else _size(model / WEIGHTS)
    needed = weights + kv_bytes + _PROCESS_BYTES
    if needed > available_bytes:
        sizes = f"{needed / 1e9:.1f} GB, and {available_bytes / 1e9:.1f} GB are left here"
        raise NoRoomError(
            f"a new worker beside the one that it replaces takes up to {sizes}. The old one goes on as it was. Give the"
            " machine more memory, or set worker.surge to false: then the old one ends before the new one starts, and"
            " requests wait meanwhile"
        )


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
