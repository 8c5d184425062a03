"""Limits: what a step, a sequence and the caches can hold, and which requests can never fit.

Numbers only: knows neither sequences nor what is in a page.
"""

from dataclasses import dataclass
from typing import Final

from app.engine.pages.page_groups import PageGroups
from app.messages.failures import InvalidRequestError, RequestTooLongError
from app.messages.requests import ContextWindow

STATE_PAGES_EACH: Final = 2
"""The most state pages that a sequence holds between two steps (sequence_states.py)."""
LEFT_SHARE: Final = 4
"""Endless outputs together leave at least one in this many pages to others."""
_CHUNK_STATE_PAGES: Final = 2
"""How many more state pages a chunk of a prompt needs at most; with fewer, chunks would end at page boundaries."""


def least_state_pages(max_sequences: int) -> int:
    """The fewest state pages with which `max_sequences` sequences can run; nothing is cached then."""
    return STATE_PAGES_EACH * max_sequences + _CHUNK_STATE_PAGES


@dataclass(frozen=True, slots=True)
class PageWindow:
    """The context window of an endless output, in whole pages."""

    pages: int
    keep: int
    """How many of the first pages stay."""
    discard: int
    """How many pages are dropped when the window is full: the oldest after those that stay."""


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """The limits of a step, a sequence and the caches."""

    step_tokens: int
    """The most tokens of one step."""
    max_sequences: int
    """The most sequences that run at one time; also the rows of the page table."""
    max_context_tokens: int
    page_tokens: int
    page_count: int
    group_windows: tuple[int, ...] = (0,)
    """How many tokens the layers of each page group see; 0: all."""
    state_pages: int = 0
    """Number of pages of recurrent states; 0: the model has none."""

    def __post_init__(self) -> None:
        for name in ("step_tokens", "max_sequences", "max_context_tokens", "page_tokens", "page_count"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.step_tokens < self.max_sequences:
            raise ValueError(
                f"step_tokens ({self.step_tokens}) must be at least max_sequences ({self.max_sequences}), "
                "so that every sequence can advance in every step"
            )
        if self.state_pages and self.state_pages < (least := least_state_pages(self.max_sequences)):
            raise ValueError(
                f"state_pages ({self.state_pages}) must be at least {least} for {self.max_sequences} sequences"
            )

    @property
    def groups(self) -> PageGroups:
        return PageGroups(self.group_windows, self.page_tokens)

    @property
    def longest_tokens(self) -> int:
        """The most tokens of one sequence, prompt and output together, by the context and by the KV cache."""
        least, most = 0, self.pages_for(self.max_context_tokens)
        while least < most:
            middle = -(-(least + most) // 2)
            if self.groups.pages(middle) <= self.page_count:
                least = middle
            else:
                most = middle - 1
        return min(self.max_context_tokens, least * self.page_tokens)

    def pages_for(self, tokens: int) -> int:
        """Pages of one group that hold `tokens` tokens."""
        return -(-tokens // self.page_tokens)

    def most_pages(self, prompt_tokens: int, max_new_tokens: int, width: int | None = None) -> int:
        """The pages of all groups that a request holds at its end.

        width: number of a search's branches, which share the prompt's full pages.
        """
        if width is None:
            # The last token of an output is never computed, so it has no keys and values.
            return self.groups.pages(self.pages_for(max(prompt_tokens + max_new_tokens - 1, prompt_tokens)))
        each = self.pages_for(prompt_tokens + max_new_tokens)
        shared = prompt_tokens // self.page_tokens
        together = shared + width * (each - shared)
        return sum(
            min(together, width * self.groups.most_of(window)) if window else together for window in self.group_windows
        )

    def window(self, prompt_tokens: int, max_new_tokens: int, window: ContextWindow | None) -> PageWindow | None:
        """A request's window in whole pages; None if it wants none, or prompt and output fit.

        One that is not required shrinks so that others can run beside it, if its prompt has room then, and is None too
        where the KV cache has no room for it.
        """
        if window is None:
            return None
        pages = window.tokens // self.page_tokens
        keep, discard = self.pages_for(window.keep_tokens), max(1, self.pages_for(window.discard_tokens))
        if not window.is_required:
            most = self.page_count - keep  # those that stay are held twice
            beside = most - self.page_count // LEFT_SHARE
            pages = min(pages, beside if self.pages_for(prompt_tokens) <= beside else most)
            discard = max(1, min(discard, pages - keep - 1))
            if pages < keep + discard + 1 or prompt_tokens > pages * self.page_tokens:
                return None
        if prompt_tokens + max_new_tokens <= pages * self.page_tokens:
            return None
        return PageWindow(pages, keep, discard)

    def check(
        self, prompt_tokens: int, max_new_tokens: int, window: PageWindow | None = None, width: int | None = None
    ) -> None:
        """Raises RequestTooLongError for a request that can never fit, InvalidRequestError for too small a window."""
        if window is not None:
            self._check_window(prompt_tokens, window)
            return
        total = prompt_tokens + max_new_tokens
        if total > self.max_context_tokens:
            raise RequestTooLongError(
                f"the prompt has {prompt_tokens} tokens and at most {max_new_tokens} are to be generated: {total} "
                f"together, but the context holds {self.max_context_tokens}"
            )
        if self.most_pages(prompt_tokens, max_new_tokens, width) > self.page_count:
            times = f" for each of {width} branches" if width is not None else ""
            if len(self.group_windows) > 1:
                raise RequestTooLongError(
                    f"the prompt has {prompt_tokens} tokens and at most {max_new_tokens} are to be generated{times}: "
                    f"{self.most_pages(prompt_tokens, max_new_tokens, width)} pages, but the KV cache has "
                    f"{self.page_count}"
                )
            raise RequestTooLongError(
                f"the prompt has {prompt_tokens} tokens and at most {max_new_tokens} are to be generated{times}: "
                f"{total} together, but the KV cache holds {self.page_count * self.page_tokens}"
            )

    def _check_window(self, prompt_tokens: int, window: PageWindow) -> None:
        tokens = window.pages * self.page_tokens
        if window.pages < window.keep + window.discard + 1:
            raise InvalidRequestError(
                f"the context window has {window.pages} whole pages of {self.page_tokens} tokens: too few to keep "
                f"{window.keep}, discard {window.discard} and go on with the rest"
            )
        if tokens > self.max_context_tokens:
            raise InvalidRequestError(
                f"the context window has {tokens} tokens, but the context holds {self.max_context_tokens}"
            )
        if prompt_tokens > tokens:
            raise RequestTooLongError(f"the prompt has {prompt_tokens} tokens, but the context window holds {tokens}")
        if window.pages + window.keep > self.page_count:
            raise RequestTooLongError(
                f"the context window needs {window.pages + window.keep} pages of {self.page_tokens} tokens (those it "
                f"keeps twice), but the KV cache has {self.page_count}"
            )
