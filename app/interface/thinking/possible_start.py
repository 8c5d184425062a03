"""Finds how much of a text must be held back because it may begin a string that is searched for."""


def possible_start(text: str, stop: str) -> int:
    """Returns where the longest suffix of `text` that begins `stop` starts; the text's length if there is none."""
    start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while start >= 0:
        if stop.startswith(text[start:]):
            return start
        start = text.find(stop[0], start + 1)
    return len(text)
