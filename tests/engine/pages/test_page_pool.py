from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.pages.page_pool import PagePool


def test_pages_are_free_again_when_their_last_holder_releases_them() -> None:
    pool = PagePool(4)
    pages = pool.allocate(3)
    assert len(set(pages)) == 3
    pool.cache(pages[0], b"first")
    assert pool.find(b"first") == pages[0]
    assert (pool.holders(pages[0]), pool.repeat_count) == (2, 1)
    pool.release(pages)
    assert (pool.free_count, pool.used_count) == (3, 1)
    assert (pool.holders(pages[0]), pool.repeat_count) == (1, 0)
    pool.release(pages[:1])
    assert (pool.free_count, pool.used_count) == (4, 0)


def test_a_page_is_never_released_or_kept_while_free() -> None:
    pool = PagePool(2)
    with pytest.raises(AssertionError, match="released more often"):
        pool.release([0])
    with pytest.raises(AssertionError, match="free"):
        pool.cache(1, b"digest")
    with pytest.raises(AssertionError, match="3 pages taken of 2"):
        pool.allocate(3)


def test_all_cached_pages_can_be_evicted_at_once_but_for_those_in_use() -> None:
    evicted: list[bytes] = []
    pool = PagePool(4, lambda _, digest: evicted.append(digest))
    pages = pool.allocate(3)
    for page, digest in zip(pages, (b"first", b"second", b"third"), strict=True):
        pool.cache(page, digest)
    pool.release(pages[:2])
    pool.evict_all()
    assert (evicted, pool.cached_count, pool.free_count, pool.used_count) == ([b"first", b"second"], 1, 3, 1)
    assert pool.find(b"third") == pages[2]


def test_a_pool_needs_a_page() -> None:
    with pytest.raises(ValueError, match="at least one page"):
        PagePool(0)


@given(st.lists(st.integers(0, 5)), st.randoms())
def test_counts_are_right_after_any_use(sizes: list[int], random: Random) -> None:
    pool = PagePool(16)
    held: list[list[int]] = []
    for size in sizes:
        if size <= pool.free_count:
            held.append(pool.allocate(size))
        elif held:
            pool.release(held.pop(random.randrange(len(held))))
        flat = [page for pages in held for page in pages]
        assert len(flat) == len(set(flat)) == pool.used_count
        assert pool.free_count == 16 - len(flat)


def test_a_page_that_leaves_the_cache_is_reported_before_it_is_used_again() -> None:
    forgotten: list[tuple[int, bytes]] = []

    def listen(page: int, digest: bytes) -> None:
        assert pool.holders(page) == 0, "no sequence may hold the page yet"
        forgotten.append((page, digest))

    pool = PagePool(3, listen)
    first, second = pool.allocate(2)
    pool.cache(first, b"first")
    pool.cache(second, b"second")
    pool.release([second, first])
    assert pool.find(b"first") == first
    pool.release([first])
    pool.allocate(1)  # the third page, which no digest names
    assert forgotten == []
    assert pool.allocate(1) == [second]  # unused for longest
    assert forgotten == [(second, b"second")]
    assert pool.find(b"second") is None
    pool.allocate(1)
    assert forgotten == [(second, b"second"), (first, b"first")]


def test_a_forgotten_page_is_not_found_and_is_free_once_nobody_holds_it() -> None:
    told: list[tuple[int, bytes]] = []
    pool = PagePool(3, lambda page, digest: told.append((page, digest)))
    held, idle = pool.allocate(2)
    pool.cache(held, b"held")
    pool.cache(idle, b"idle")
    pool.release([idle])
    assert pool.forget(b"idle") == idle
    assert pool.forget(b"held") is None
    assert pool.forget(b"other") is None
    assert pool.find(b"idle") is None
    assert pool.find(b"held") is None
    assert (pool.cached_count, pool.free_count, pool.used_count) == (0, 2, 1)
    pool.release([held])
    assert sorted(pool.allocate(3)) == [0, 1, 2]
    assert not told, "only pages that are needed for something else are told"
