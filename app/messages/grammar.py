"""The string format of a grammar of several schemas."""

import re
from collections.abc import Mapping
from typing import Any

HEADER = "%llguidance {}\n"
"""The beginning of such a grammar; no JSON schema begins like this."""
SPACING: Mapping[str, Any] = {
    # Exactly one space, as people write it: a model that may write endless white space sometimes does.
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
}


def schemas_of(grammar: str) -> list[str]:
    """Returns the grammar's schemas: its functions' in order, then the answer's, if there is one."""
    return re.findall(r"^(?:arguments_\d+|answer): %json (.*)$", grammar, re.MULTILINE)
