"""Which pages windows need, and what the prefix cache finds where some of them are gone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.pages.page_groups import NONE, PageGroups, held, name_in_group
from app.engine.pages.page_names import PageChain
from app.engine.pages.page_pool import PagePool
from app.engine.pages.prefix_cache import PrefixCache


def seen_pages(window: int, position: int, page_tokens: int) -> range:
    """By definition: the pages of the tokens that the token at `position` sees."""
    first = 0 if window == 0 else max(position - window + 1, 0)
    return range(first // page_tokens, position // page_tokens + 1)


@given(st.integers(0, 70), st.integers(1, 9), st.integers(0, 30))
def test_a_page_is_needed_while_the_next_token_sees_it(window: int, page_tokens: int, full_pages: int) -> None:
    groups = PageGroups((window,), page_tokens)
    seen = seen_pages(window, full_pages * page_tokens, page_tokens)
    assert groups.first_page(0, full_pages) == seen[0]
    assert groups.pages(full_pages + 1) >= len(seen)
    if window:
        most = max(len(seen_pages(window, n * page_tokens, page_tokens)) for n in range(80))
        assert groups.most_of(window) == most
        # Later tokens of that page don't see more of them.
        assert max(len(seen_pages(window, n, page_tokens)) for n in range(80 * page_tokens)) <= most


def test_pages_that_no_later_token_sees_are_named_once() -> None:
    groups = PageGroups((0, 5), 4)
    pages = list(range(12))  # 6 pages of tokens
    assert sorted(groups.unseen(pages, 6)) == [1, 3, 5, 7, 9]  # tokens 20 .. 24 are seen
    assert sorted(groups.unseen(pages, 2)) == [1]
    for entry in list(groups.unseen(pages, 2)):
        pages[entry] = NONE
    assert sorted(groups.unseen(pages, 4)) == [3, 5]
    assert held(pages) == [0, *range(2, 12)]


def test_groups_are_refused_without_a_window_each() -> None:
    for windows in ((), (0, -1)):
        with pytest.raises(ValueError, match="one window a page group"):
            PageGroups(windows, 4)


def test_a_group_has_names_of_its_own() -> None:
    assert name_in_group(b"digest", 0) == b"digest"
    assert len({name_in_group(b"digest", group) for group in range(400)}) == 400


PAGE_TOKENS = 4
TEXT_PAGES = 12


@given(
    st.sampled_from([(0,), (0, 9), (9,), (0, 1, 30), (5, 9)]),
    st.lists(st.integers(0, TEXT_PAGES - 1), max_size=6),
    st.integers(0, 3),
    st.integers(0, TEXT_PAGES),
    st.integers(0, TEXT_PAGES),
)
def test_a_text_goes_on_behind_the_most_pages_of_which_all_that_is_seen_is_there(
    windows: tuple[int, ...], lost: list[int], lost_group: int, begin: int, end: int
) -> None:
    groups = PageGroups(windows, PAGE_TOKENS)
    pool = PagePool(TEXT_PAGES * groups.count)
    cache = PrefixCache(pool, groups)
    chain = PageChain(list(range(TEXT_PAGES * PAGE_TOKENS)), PAGE_TOKENS, b"salt")
    pages = pool.allocate(TEXT_PAGES * groups.count)
    cache.cache(chain, pages, 0, TEXT_PAGES)
    pool.release(pages)
    gone = {(index, (lost_group + index) % groups.count) for index in lost}
    for index, group in gone:
        assert pool.forget(name_in_group(chain.digest(index), group)) is not None

    def is_there(group: int, index: int) -> bool:
        return index < begin or (index, group) not in gone  # what is before `begin` is the sequence's own

    def can_go_on_behind(count: int) -> bool:
        return all(
            is_there(group, index)
            for group, window in enumerate(windows)
            for index in seen_pages(window, count * PAGE_TOKENS, PAGE_TOKENS)
            if index < count
        )

    expected = max((count for count in range(begin, end + 1) if can_go_on_behind(count)), default=begin)
    found = cache.longest(chain, begin, end)
    assert found == expected
    if found > begin:
        got = cache.find(chain, begin, found)
        for entry, page in enumerate(got):
            index, group = begin + entry // groups.count, entry % groups.count
            needed = index in seen_pages(windows[group], found * PAGE_TOKENS, PAGE_TOKENS)
            assert page == (pages[index * groups.count + group] if needed else NONE)
        assert pool.used_count == len(held(got))
