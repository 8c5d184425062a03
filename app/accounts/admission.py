"""Decides whether a user's request is admitted: requests a minute, tokens a day, concurrency. In memory only."""

import time
from collections import Counter

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter

from app.messages.accounts import Admission, Identity, RateState, Refusal, UserLimits

_DAY_S = 86_400
_BUSY_RETRY_S = 1
_FAILURE_MINUTES = 15


class Admissions:
    """Counts users' requests over all ingresses."""

    def __init__(self) -> None:
        self._window = MovingWindowRateLimiter(MemoryStorage())
        self._open: dict[str, Counter[str]] = {}
        """Maps ingress to its number of running requests per user."""

    def admit(
        self, ingress: str, identity: Identity, tokens_today: int, now_s: float, *, in_batch: bool = False
    ) -> Admission:
        """Counts the request if it is admitted. now_s: Unix seconds.

        in_batch: nobody waits for it, and it must not be why the user's other requests are refused: only the tokens of
        the day are a limit, and it counts neither as running nor for the minute.
        """
        user_id, limits = identity.user_id, identity.limits
        until_tomorrow_s = _DAY_S - now_s % _DAY_S
        running = self.running(user_id)
        refusal = None
        if limits.tokens_per_day is not None and tokens_today >= limits.tokens_per_day:
            message = f"The {limits.tokens_per_day} tokens of the day (UTC) are used up."
            refusal = Refusal("insufficient_quota", message, retry_after_s=int(until_tomorrow_s) + 1)
        elif in_batch:
            pass
        elif limits.concurrent is not None and running >= limits.concurrent:
            message = f"At most {limits.concurrent} requests of a user may run at the same time."
            refusal = Refusal("rate_limit_exceeded", message, retry_after_s=_BUSY_RETRY_S)
        elif limits.requests_per_minute is not None:
            item = RateLimitItemPerMinute(limits.requests_per_minute)
            if not self._window.hit(item, user_id):
                wait_s = self._window.get_window_stats(item, user_id).reset_time - now_s
                message = f"At most {limits.requests_per_minute} requests a minute are allowed."
                refusal = Refusal("rate_limit_exceeded", message, retry_after_s=max(1, int(wait_s) + 1))
        if refusal is None and not in_batch:
            self._open.setdefault(ingress, Counter())[user_id] += 1
        return Admission(identity, self._rates(user_id, limits, tokens_today, now_s), refusal)

    def running(self, user_id: str) -> int:
        """Returns how many requests of the user run."""
        return sum(users[user_id] for users in self._open.values())

    def of_minute(self, identity: Identity) -> int | None:
        """Returns how many requests were admitted in the last minute; None where that has no limit."""
        most = identity.limits.requests_per_minute
        if most is None:
            return None
        return most - self._window.get_window_stats(RateLimitItemPerMinute(most), identity.user_id).remaining

    def release(self, ingress: str, user_id: str) -> None:
        """Ends one running request."""
        users = self._open.get(ingress, Counter())
        if users[user_id] > 1:
            users[user_id] -= 1
        else:
            del users[user_id]

    def ingress_lost(self, ingress: str) -> None:
        """Drops all running requests of an ingress that has ended."""
        self._open.pop(ingress, None)

    def _rates(self, user_id: str, limits: UserLimits, tokens_today: int, now_s: float) -> RateState:
        remaining, reset_s = 0, 0.0
        if limits.requests_per_minute is not None:
            stats = self._window.get_window_stats(RateLimitItemPerMinute(limits.requests_per_minute), user_id)
            remaining, reset_s = stats.remaining, max(0.0, stats.reset_time - now_s)
        return RateState(
            limit_requests=limits.requests_per_minute,
            remaining_requests=remaining,
            reset_requests_s=reset_s,
            limit_tokens=limits.tokens_per_day,
            remaining_tokens=max(0, (limits.tokens_per_day or 0) - tokens_today),
            reset_tokens_s=_DAY_S - now_s % _DAY_S,
        )


class LoginFailures:
    """Rate-limits logins per name after too many wrong passwords, whether or not a user has that name."""

    def __init__(self, most: int, before: "LoginFailures | None" = None) -> None:
        """most: wrong passwords allowed in 15 minutes. before: an earlier instance whose counts are kept."""
        self._storage: MemoryStorage = MemoryStorage() if before is None else before._storage
        self._window = MovingWindowRateLimiter(self._storage)
        self._item = RateLimitItemPerMinute(most, _FAILURE_MINUTES)

    def wait_s(self, name: str) -> int | None:
        """Returns how long logins with this name are refused; None if one is allowed now. Any text is a name."""
        if self._window.test(self._item, name):
            return None
        return max(1, int(self._window.get_window_stats(self._item, name).reset_time - time.time()) + 1)

    def add(self, name: str) -> None:
        """Counts an attempt as a failure; `clear` takes it back once the password proves right."""
        self._window.hit(self._item, name)

    def clear(self, name: str) -> None:
        self._window.clear(self._item, name)
