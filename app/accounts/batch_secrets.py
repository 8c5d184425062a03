"""Credentials of users whose batches have not ended, so that an ingress can go on with them. On no disk."""

from collections.abc import Callable, Iterable, Mapping, Sequence

_MOST_EACH = 8

Seen = Mapping[str, Sequence[str]]
"""Credentials by user, the last one seen last."""


def _not_kept(seen: Seen) -> None:
    """The default for a process of which nothing outlives."""


class BatchSecrets:
    """Which users have open batches, and their credentials that were seen since. For one thread, but for `users`."""

    def __init__(self, keep: Callable[[Seen], None] = _not_kept) -> None:
        """keep: called after each change."""
        self._seen: dict[str, list[str]] = {}
        """Has each user with an open batch."""
        self._keep = keep
        self.sightings = 0
        """How often a credential was kept that was not the user's last."""

    @property
    def seen(self) -> Seen:
        """For the next process."""
        return {user_id: list(secrets) for user_id, secrets in self._seen.items()}

    def take_over(self, before: Seen) -> None:
        """Takes the credentials that another process has seen."""
        for user_id, secrets in before.items():
            for secret in secrets:
                self.see(user_id, secret)

    def expect(self, users: Iterable[str]) -> None:
        """These users have open batches, and no others: those others' credentials are forgotten."""
        self._seen = {user_id: self._seen.get(user_id, []) for user_id in users}
        self._keep(self._seen)

    def see(self, user_id: str, secret: str) -> None:
        """Keeps a valid credential of a user with an open batch."""
        secrets = self._seen.get(user_id)
        if secrets is None or (secrets and secrets[-1] == secret):
            return
        if secret in secrets:
            secrets.remove(secret)
        secrets.append(secret)
        self.sightings += 1
        del secrets[:-_MOST_EACH]
        self._keep(self._seen)

    def begin(self, user_id: str) -> None:
        """The user has an open batch."""
        self._seen.setdefault(user_id, [])

    def end(self, user_id: str) -> None:
        """The user has no open batch any more."""
        if self._seen.pop(user_id, None):
            self._keep(self._seen)

    def forget(self, user_id: str, secret: str) -> None:
        """Forgets a credential that is not valid any more."""
        if secret in self._seen.get(user_id, ()):
            self._seen[user_id].remove(secret)
            self._keep(self._seen)

    def users(self) -> Sequence[str]:
        """Returns the users of whom a credential is known. From any thread."""
        return [user_id for user_id, secrets in list(self._seen.items()) if secrets]

    def of(self, user_id: str) -> Sequence[str]:
        """Returns the user's credentials, the last one seen first."""
        return self._seen.get(user_id, [])[::-1]
