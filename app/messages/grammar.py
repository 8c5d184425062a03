"""How a grammar of several schemas is written as one string."""

import re
from collections.abc import Mapping
from typing import Any

HEADER = "%llguidance {}\n"
"""How such a grammar begins, which no JSON schema does."""
SPACING: Mapping[str, Any] = {
    # Exactly one space, where people put it: a model that may write endless white space sometimes does.
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
}


def schemas_of(grammar: str) -> list[str]:
    """The grammar's schemas: its functions' in order, then the answer's, if there is one."""
    return re.findall(r"^(?:arguments_\d+|answer): %json (.*)$", grammar, re.MULTILINE)
