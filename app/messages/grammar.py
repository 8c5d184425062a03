"""How a grammar of several schemas is written as one string."""

import re
from collections.abc import Mapping
from typing import Any

HEADER = "%llguidance {}\n"
"""By which such a grammar is told from a JSON schema."""
SPACING: Mapping[str, Any] = {
    # One space, where people put it: a model that may write white space without end sometimes does.
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
}


def schemas_of(grammar: str) -> list[str]:
    """Its functions' schemas in their order, then the answer's, if it has one."""
    return re.findall(r"^(?:arguments_\d+|answer): %json (.*)$", grammar, re.MULTILINE)
