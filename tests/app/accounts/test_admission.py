import time

import pytest

from app.accounts.admission import Admissions, LoginFailures
from app.messages.accounts import Admission, Identity, PageKeys, UserLimits

NOON_S = 1_800_014_400.0 - 1_800_014_400 % 86_400 + 43_200


def admit(admissions: Admissions, ingress: str, user: str, limits: UserLimits, used: int, now_s: float) -> Admission:
    pages = PageKeys("", b"", b"", b"")
    identity = Identity(user, user, "user", "c", "api_key", None, limits, pages, b"")
    return admissions.admit(ingress, identity, used, now_s)


def test_requests_a_minute_over_all_ingresses(monkeypatch: pytest.MonkeyPatch) -> None:
    admissions, limits = Admissions(), UserLimits(requests_per_minute=2)
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s)
    first = admit(admissions, "i1", "ann", limits, 0, now_s)
    assert (first.refusal, first.rates.limit_requests, first.rates.remaining_requests) == (None, 2, 1)
    assert admit(admissions, "i2", "ann", limits, 0, now_s).rates.remaining_requests == 0
    third = admit(admissions, "i1", "ann", limits, 0, now_s)
    assert third.refusal is not None
    assert third.refusal.code == "rate_limit_exceeded"
    assert 55 <= (third.refusal.retry_after_s or 0) <= 61
    assert admit(admissions, "i1", "bob", limits, 0, now_s).refusal is None


def test_requests_at_the_same_time_over_all_ingresses() -> None:
    admissions, limits = Admissions(), UserLimits(concurrent=2)
    assert admit(admissions, "i1", "ann", limits, 0, NOON_S).refusal is None
    assert admit(admissions, "i2", "ann", limits, 0, NOON_S).refusal is None
    refused = admit(admissions, "i2", "ann", limits, 0, NOON_S).refusal
    assert refused is not None
    assert refused.code == "rate_limit_exceeded"
    admissions.release("i1", "ann")
    assert admit(admissions, "i2", "ann", limits, 0, NOON_S).refusal is None
    admissions.ingress_lost("i2")
    for _ in range(2):
        assert admit(admissions, "i1", "ann", limits, 0, NOON_S).refusal is None
    for _ in range(3):
        admissions.release("i1", "ann")  # one too many does not free a place
    admissions.release("never seen", "ann")
    assert [admit(admissions, "i1", "ann", limits, 0, NOON_S).refusal is None for _ in range(3)] == [True, True, False]


def test_a_request_that_is_refused_for_its_place_does_not_count_for_the_minute() -> None:
    admissions, limits = Admissions(), UserLimits(requests_per_minute=3, concurrent=1)
    now_s = time.time()
    admit(admissions, "i", "ann", limits, 0, now_s)
    for _ in range(5):
        assert admit(admissions, "i", "ann", limits, 0, now_s).rates.remaining_requests == 2


@pytest.mark.parametrize(("used", "refused"), [(0, False), (99, False), (100, True), (1000, True)])
def test_tokens_a_day(used: int, refused: bool) -> None:
    admission = admit(Admissions(), "i", "ann", UserLimits(tokens_per_day=100), used, NOON_S)
    assert (admission.refusal is not None) == refused
    assert admission.rates.remaining_tokens == max(0, 100 - used)
    assert admission.rates.reset_tokens_s == 43_200
    if admission.refusal is not None:
        assert (admission.refusal.code, admission.refusal.retry_after_s) == ("insufficient_quota", 43_201)


def test_logins_with_a_name_are_refused_after_so_many_failures() -> None:
    failures = LoginFailures(2)
    assert failures.wait_s("ann") is None
    failures.add("ann")
    assert failures.wait_s("ann") is None
    failures.add("ann")
    wait_s = failures.wait_s("ann")
    assert wait_s is not None
    assert 800 < wait_s <= 901
    assert failures.wait_s("bob") is None
    failures.clear("ann")
    assert failures.wait_s("ann") is None
