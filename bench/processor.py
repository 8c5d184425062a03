"""What the processor is called in tables of benchmarks, and what a result says of the machine that it was measured on.

Hypervisors hide names ("AMD EPYC") and now and then models, so family and model decide together with the flags, and
where they disagree the flags do. Reads /proc/cpuinfo; measures nothing and knows no engine.
"""

import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench.common import memory_bytes

CPUINFO: Final = Path("/proc/cpuinfo")
FLAGS: Final = (
    *("avx2", "avx_vnni", "avx_vnni_int8", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_int8", "amx_bf16", "amx_fp16"),
)
"""The CPU flags by which engines choose kernels."""
XEONS: Final = {
    106: "Ice Lake", 108: "Ice Lake", 143: "Sapphire Rapids", 207: "Emerald Rapids", 173: "Granite Rapids",
    174: "Granite Rapids",
}  # fmt: skip
"""Intel's server processors of family 6 by model, from Ice Lake on."""
WITH_AMX: Final = frozenset({143, 207, 173, 174})
"""Models of XEONS with AMX, unless the hypervisor withholds it."""


@dataclass(frozen=True, slots=True)
class Processor:
    """The first processor of /proc/cpuinfo."""

    vendor: str
    """Vendor such as "AuthenticAMD"; empty if the file has none."""
    family: int
    model: int
    model_name: str
    flags: tuple[str, ...]
    """The processor's flags among FLAGS."""

    @property
    def name(self) -> str:
        """Generation such as "Zen 4" or "Xeon (Sapphire Rapids) with AMX", or the model name if that is unknown."""
        found = {"AuthenticAMD": self._amd, "GenuineIntel": self._intel}.get(self.vendor, lambda: None)()
        return found or plain_model_name(self.model_name)

    def _amd(self) -> str | None:
        wide = "avx512f" in self.flags
        if self.family == 26:
            is_zen6 = 0x50 <= self.model <= 0x5F or 0x80 <= self.model <= 0xAF or 0xC0 <= self.model <= 0xCF
            generation = "Zen 6" if is_zen6 else "Zen 5"
        elif self.family == 25:
            is_zen4 = 0x10 <= self.model <= 0x1F or 0x60 <= self.model <= 0xAF
            generation = "Zen 4" if is_zen4 or wide else "Zen 3"  # Zen 3 has no AVX-512
        else:
            return None
        return generation if wide or generation == "Zen 3" else f"{generation} without AVX-512"

    def _intel(self) -> str | None:
        amx, wide = "amx_tile" in self.flags, "avx512_vnni" in self.flags
        generation = XEONS.get(self.model) if self.family == 6 else None
        if generation is None or (amx and self.model not in WITH_AMX):
            return "Xeon with AMX" if amx else None  # the model is hidden, or newer than the list
        if not wide:
            return f"Xeon ({generation}) without AVX-512"
        with_amx = f" {'with' if amx else 'without'} AMX" if self.model in WITH_AMX else ""
        return f"Xeon ({generation}){with_amx}"


def processor_of(cpuinfo: str) -> Processor:
    """The first processor in the text of /proc/cpuinfo. What is not there is empty or 0."""
    fields: dict[str, str] = {}
    for line in cpuinfo.split("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    there = set(fields.get("flags", "").split())
    return Processor(
        vendor=fields.get("vendor_id", ""),
        family=_number(fields.get("cpu family", "")),
        model=_number(fields.get("model", "")),
        model_name=fields.get("model name", ""),
        flags=tuple(flag for flag in FLAGS if flag in there),
    )


def plain_model_name(name: str) -> str:
    """A model name without trademarks, clock and number of cores, as "Intel Core i7-8700"."""
    without = re.sub(r"\((?:R|TM|tm|r)\)|\bCPU\b|\bProcessor\b|@.*$|\b\d+-Core\b|\|", " ", name)
    return " ".join(without.split()) or "unknown processor"


def cores() -> int:
    """Physical cores that this process may run on; logical ones where the system does not say."""
    allowed = os.sched_getaffinity(0)
    siblings = set()
    for cpu in allowed:
        try:
            listed = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
        except OSError:
            return len(allowed)
        siblings.add(listed.strip())
    return len(siblings)


def machine_facts(processor: Processor, name: str | None = None) -> dict[str, Any]:
    """Facts for "machine" in a comparison's JSON.

    name: in place of the one that was found. Raises OSError where /proc/meminfo can't be read.
    """
    return {
        "name": name or processor.name,
        **{key: list(value) if isinstance(value, tuple) else value for key, value in asdict(processor).items()},
        "cores": cores(),
        "memory_bytes": memory_bytes("/proc/meminfo", "MemTotal"),
    }


def this_processor() -> Processor:
    """Reads this machine's processor. Raises OSError if /proc/cpuinfo can't be read."""
    return processor_of(CPUINFO.read_text(encoding="utf-8", errors="replace"))


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0
