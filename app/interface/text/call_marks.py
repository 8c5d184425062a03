"""The marks by which models write function calls."""

MARKERS = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>")
SHOWN_SPECIALS = (*MARKERS, "</tool_call>", "[ARGS]", "[CALL_ID]")
"""Special tokens that must not vanish from a text in which calls are looked for."""


def bare_head(name: str) -> str:
    """How a call without a mark begins, up to its name, where functions are strict; pattern of a pattern."""
    space = r"[ \t\n\r]"
    gap = space + "{0,4}"
    kind = rf'("type"{gap}:{gap}"function"{gap},{gap})?'
    return rf'{space}*\{{{gap}{kind}"name"{gap}:{gap}"{name}"'
