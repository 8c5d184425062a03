"""Page groups: which KV pages of a sequence are needed, if some layers see only a window of the text.

Layers that see the same keys form a group, which has its own pages. Page i of a group has the keys and values of
page_tokens tokens from i * page_tokens on. A sequence keeps all its page numbers in one list: group g's page i is entry
i * count + g, and NONE where the group's layers do not see it any more. A model without windows has one group, and the
list is its pages.

Numbers only: knows neither which pages are free (page_pool.py) nor what is in them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

NONE: Final = -1
"""Replaces a page that its group's layers do not see any more."""


@dataclass(frozen=True, slots=True)
class PageGroups:
    """The groups of one model."""

    windows: tuple[int, ...]
    """[count]: how many tokens each group's layers see, the newest included; 0: all."""
    page_tokens: int

    def __post_init__(self) -> None:
        if not self.windows or min(self.windows) < 0:
            raise ValueError(f"group_windows: one window a page group, and 0 for all tokens, not {self.windows}")

    @property
    def count(self) -> int:
        """Number of groups, and of KV pages that page_tokens tokens take in all layers."""
        return len(self.windows)

    @property
    def windowed(self) -> bool:
        """Whether some layers do not see the whole text."""
        return any(self.windows)

    def first_page(self, group: int, full_pages: int) -> int:
        """The first page of the group that the next token sees after `full_pages` full pages of text."""
        window = self.windows[group]
        return 0 if window == 0 else max(full_pages * self.page_tokens + 1 - window, 0) // self.page_tokens

    def most_of(self, window: int) -> int:
        """The most pages of a group that a sequence needs, if it computes at most one page at a time."""
        return -(-(window - 1) // self.page_tokens) + 1

    def pages(self, pages: int) -> int:
        """The most KV pages of all groups that a sequence with `pages` pages of tokens needs."""
        return sum(pages if window == 0 else min(pages, self.most_of(window)) for window in self.windows)

    def unseen(self, pages: Sequence[int], full_pages: int) -> Iterator[int]:
        """Yields the list entries that have a page which the next token does not see any more."""
        for group, window in enumerate(self.windows):
            if window == 0:
                continue
            # Entries before one without a page have none either.
            end = min(self.first_page(group, full_pages), len(pages) // self.count)
            for index in range(end - 1, -1, -1):
                entry = index * self.count + group
                if pages[entry] == NONE:
                    break
                yield entry


def held(pages: Iterable[int]) -> list[int]:
    """The pages in a sequence's list, without NONE entries."""
    return [page for page in pages if page != NONE]


def name_in_group(digest: bytes, group: int) -> bytes:
    """Name of a group's page that holds the text named by `digest` (page_names.py)."""
    return digest + group.to_bytes(2, "little") if group else digest
