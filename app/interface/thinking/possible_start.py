"""How much of a text must be held back, because it may be the beginning of what is looked for."""


def possible_start(text: str, stop: str) -> int:
    """Where the longest end of `text` that begins `stop` starts; the text's length if there is none."""
    start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while start >= 0:
        if stop.startswith(text[start:]):
            return start
        start = text.find(stop[0], start + 1)
    return len(text)
