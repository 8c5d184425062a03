"""Who has which cores, with real locks of real processes."""

import fcntl
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from app.workers.core_claims import Claim, Holder, NoFreeCoresError, claim_slot
from app.workers.core_turns import CoreTurns
from app.workers.numa import Slot

TWO_SOCKETS = [Slot(0, (0, 1, 2, 3)), Slot(1, (4, 5, 6, 7))]


def claim(slots: Sequence[Slot], folder: Path, version: str = "v1", *, of: str = "a", may_share: bool = False) -> Claim:
    return claim_slot(slots, folder, 0, Holder(of, version, may_share))


def test_claims_get_different_cores_until_none_is_left(tmp_path: Path) -> None:
    first = claim(TWO_SOCKETS, tmp_path / "claims")
    second = claim(TWO_SOCKETS, tmp_path / "claims")
    assert [first.slot, second.slot] == TWO_SOCKETS
    with pytest.raises(NoFreeCoresError, match="all 2 core slots"):
        claim(TWO_SOCKETS, tmp_path / "claims")
    first.release()
    first.release()
    third = claim(TWO_SOCKETS, tmp_path / "claims")
    assert third.slot == TWO_SOCKETS[0]
    second.release()
    third.release()


def test_workers_that_divide_the_machine_differently_share_no_core(tmp_path: Path) -> None:
    small = claim([Slot(0, (0,)), Slot(0, (1,))], tmp_path)
    with pytest.raises(NoFreeCoresError, match=r"of 4 cores.*cpus_per_worker"):
        claim([Slot(0, (0, 1, 2, 3))], tmp_path)
    pair = claim([Slot(0, (0, 1)), Slot(0, (2, 3))], tmp_path)
    assert pair.slot.cpus == (2, 3)
    small.release()
    pair.release()
    claim([Slot(0, (0, 1, 2, 3))], tmp_path).release()


def test_a_killed_process_releases_its_slot(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, app.workers.core_claims as c\n"
        "from app.workers.numa import Slot\n"
        "claim = c.claim_slot([Slot(0, (0,))], pathlib.Path(sys.argv[1]), 0, c.Holder('a', 'v1', False))\n"
        "print('claimed', flush=True); input()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"claimed\n"
        with pytest.raises(NoFreeCoresError):
            claim([Slot(0, (0,))], tmp_path)
        holder.kill()
        holder.wait()
        claim([Slot(0, (0,))], tmp_path).release()


def test_a_successor_shares_the_cores_of_who_goes(tmp_path: Path) -> None:
    old = [claim(TWO_SOCKETS, tmp_path) for _ in range(2)]
    for version, of, may_share in (("v1", "a", True), ("v2", "b", True), ("v2", "a", False)):
        with pytest.raises(NoFreeCoresError):
            claim(TWO_SOCKETS, tmp_path, version, of=of, may_share=may_share)
    new = [claim(TWO_SOCKETS, tmp_path, "v2", may_share=True) for _ in range(2)]
    assert [one.slot for one in (*old, *new)] == TWO_SOCKETS * 2
    assert [one.is_shared for one in (*old, *new)] == [False, False, True, True]
    with pytest.raises(NoFreeCoresError):
        claim(TWO_SOCKETS, tmp_path, "v3", may_share=True)  # no three at once
    old[1].release()
    with pytest.raises(NoFreeCoresError):
        claim(TWO_SOCKETS, tmp_path, "v2", may_share=True)  # a core belongs to one worker of a version
    third = claim(TWO_SOCKETS, tmp_path, "v3", may_share=True)
    assert (third.slot, third.is_shared) == (TWO_SOCKETS[1], True)
    for one in (*old, *new, third):
        one.release()
    alone = claim(TWO_SOCKETS, tmp_path, "v4", may_share=True)
    assert not alone.is_shared
    alone.release()


def test_free_cores_come_before_shared_ones(tmp_path: Path) -> None:
    old = claim(TWO_SOCKETS, tmp_path)
    new = claim(TWO_SOCKETS, tmp_path, "v2", may_share=True)
    assert (old.slot, new.slot, new.is_shared) == (TWO_SOCKETS[0], TWO_SOCKETS[1], False)
    old.release()
    new.release()


def test_a_successor_may_divide_the_machine_differently(tmp_path: Path) -> None:
    halves = [Slot(0, (0, 1)), Slot(0, (2, 3))]
    old = claim(halves, tmp_path)
    whole = claim([Slot(0, (0, 1, 2, 3))], tmp_path, "v2", may_share=True)
    assert whole.is_shared
    with pytest.raises(NoFreeCoresError):
        claim(halves, tmp_path)  # of the version that goes: two cores are free of it, but not of the new one
    old.release()
    whole.release()


def test_claims_at_random_never_break_the_rules(tmp_path: Path) -> None:
    """At most one worker of a version has a core, at most two at all, and never two applications."""
    random = Random(3)
    held: list[tuple[Claim, Holder]] = []
    made = shared = 0
    for _ in range(1500):
        if held and random.random() < 0.45:
            held.pop(random.randrange(len(held)))[0].release()
            continue
        size = random.choice([1, 2, 4])
        slots = [Slot(0, tuple(range(first, first + size))) for first in range(0, 4, size)]
        holder = Holder(random.choice("ab"), random.choice(["v1", "v2", "v3"]), random.random() < 0.8)
        try:
            made_claim = claim_slot(slots, tmp_path, 0, holder)
        except NoFreeCoresError:
            continue
        held.append((made_claim, holder))
        made += 1
        shared += made_claim.is_shared
        for cpu in range(4):
            here = [one for claimed, one in held if cpu in claimed.slot.cpus]
            assert len(here) <= 2
            assert len({one.application for one in here}) <= 1
            assert len({one.version for one in here}) == len(here)
    for made_claim, _ in held:
        made_claim.release()
    assert made > 300
    assert shared > 50


def test_those_that_sleep_share_cores_with_each_other_only(tmp_path: Path) -> None:
    def sleeper() -> Claim:
        return claim_slot(TWO_SOCKETS, tmp_path, 0, Holder("a", "v1", may_share=False, sleeps=True))

    sleepers = [sleeper() for _ in range(4)]
    assert [one.slot.numa_node for one in sleepers] == [0, 1, 0, 1]
    with pytest.raises(NoFreeCoresError):
        claim(TWO_SOCKETS, tmp_path, may_share=True)
    sleepers.pop(0).release()
    sleepers.pop(1).release()  # both of the first socket
    alone = claim(TWO_SOCKETS, tmp_path)
    assert alone.slot.numa_node == 0
    sleepers.append(sleeper())
    assert sleepers[-1].slot.numa_node == 1
    for one in (alone, *sleepers):
        one.release()


def test_a_worker_that_waits_for_its_turn_gets_the_next_one(tmp_path: Path) -> None:
    mine, others = CoreTurns(tmp_path, TWO_SOCKETS[0]), CoreTurns(tmp_path, TWO_SOCKETS[0])
    elsewhere = CoreTurns(tmp_path, TWO_SOCKETS[1])
    order: list[str] = []

    def wait() -> None:
        with others:
            order.append("waited")

    waiting = threading.Thread(target=wait)
    with mine, elsewhere:
        waiting.start()
        while _can_lock(mine._next.name):
            time.sleep(0.001)
        order.append("first")
    with mine:
        order.append("again")
    waiting.join()
    assert order == ["first", "waited", "again"]
    for turns in (mine, others, elsewhere):
        turns.close()


def _can_lock(path: str) -> bool:
    with Path(path).open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
