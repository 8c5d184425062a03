"""Which tests one process of xdist runs: those of a module, and all that load transformers. Long groups come first.

xdist's own groups (`--dist=loadgroup`) are no groups with pytest 9.2: pytest-dev/pytest-xdist, issue 1386.
"""

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

TRANSFORMERS = (
    "tests/parity/",
    "tests/families/",
    "tests/quant/families/",
    "tests/quant/transformers_bridge/",
    "tests/kernels/test_model_parity.py",
    "tests/kernels/test_packed_matrix.py",
    "tests/app/interface/text/test_chat_parity.py",
    "tests/app/interface/text/test_message_sizes.py",
    "tests/app/interface/text/test_templates.py",
    "tests/quant/sources/test_gguf_source.py",
    "tests/quant/sources/test_gguf_tokenizer.py",
    "tests/quant/sources/test_hf_folder.py",
)
"""Where tests with the mark `parity` are: importing torch and transformers and reading models takes as long as many."""
LONG = (
    "transformers",
    "tests/quant/conversion/test_calibrated.py",
    "tests/kernels/test_bf16.py",
    "tests/engine/searches/test_branches_native.py",
)
"""In this order. All others follow in pytest's."""


def group_of(node_id: str) -> str:
    """What the tests that must not be torn apart have in common."""
    module = node_id.partition("::")[0]
    return "transformers" if module.startswith(TRANSFORMERS) else module


def rank_of(node_id: str) -> int:
    """The place of its group: the long ones before all others."""
    group = group_of(node_id)
    return LONG.index(group) if group in LONG else len(LONG)


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each process one group after the other."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
