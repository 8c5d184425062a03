"""Endless outputs: pages of the oldest tokens leave a full context window.

The window's first pages stay (attention sinks), with keys rotated to their new positions
(`ModelRunner.copy_page_turned`). Such a sequence can't be computed again, so it is never preempted. Knows neither other
sequences nor how a page becomes free.
"""

from app.engine.pages.page_pool import PagePool
from app.engine.scheduling.limits import PageWindow
from app.engine.scheduling.sequence import SequenceState, Step
from app.engine.scheduling.sequence_pages import entries


def lacking_pages(sequence: SequenceState, window: PageWindow, pool: PagePool) -> int:
    """How many pages must be free before `shift`, for the copies of those that stay."""
    if sequence.sinks:
        return 0
    return window.keep - sum(pool.holders(page) == 1 for page in _oldest(sequence, window))


def shift(sequence: SequenceState, window: PageWindow, pool: PagePool, page_tokens: int, step: Step) -> None:
    """Removes the oldest pages after those that stay, once `lacking_pages` are free. Adds to `step` what it must do."""
    pool.release(reversed(_oldest(sequence, window)))
    if not sequence.sinks and window.keep:
        sequence.sinks = sequence.pages[: window.keep]
        sequence.pages[: window.keep] = pool.allocate(window.keep)
    del sequence.pages[window.keep : window.keep + window.discard]
    begin, tokens = window.keep * page_tokens, window.discard * page_tokens
    sequence.chain = None  # later keys and values depend on the dropped tokens
    sequence.computed -= tokens
    sequence.length -= tokens
    sequence.end_length -= tokens
    sequence.dropped += tokens
    step.dropped.append((sequence, begin, begin + tokens))
    step.new_pages += entries(sequence, 0)
    step.turned_pages += [
        (source, target, sequence.dropped)
        for source, target in zip(sequence.sinks, sequence.pages[: window.keep], strict=True)
    ]


def _oldest(sequence: SequenceState, window: PageWindow) -> list[int]:
    return sequence.pages[window.keep : window.keep + window.discard]
