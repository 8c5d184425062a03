"""The sections of the report, in the page's order."""

from typing import Final

from bench.report import concurrency, machine, numa_binding, overhead, response_times, weight_types
from bench.report.section import Section

SECTIONS: Final[tuple[Section, ...]] = (
    machine.SECTION,
    weight_types.SECTION,
    response_times.GRID,
    response_times.TOKENS,
    numa_binding.SECTION,
    concurrency.SECTION,
    overhead.SECTION,
)
