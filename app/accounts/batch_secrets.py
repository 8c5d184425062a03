"""Credentials of users whose batches have not ended, so that an ingress can go on with them. In memory only."""

from collections.abc import Iterable, Sequence

_MOST_EACH = 8


class BatchSecrets:
    """Which users have open batches, and their credentials that were seen since. For one thread."""

    def __init__(self) -> None:
        self._seen: dict[str, list[str]] = {}
        """Maps each user with an open batch to credentials, the last one seen last."""

    def take_over(self, before: "BatchSecrets") -> None:
        """Takes the credentials that another process has seen."""
        for user_id, secrets in before._seen.items():
            if user_id in self._seen:
                for secret in secrets:
                    self.see(user_id, secret)

    def expect(self, users: Iterable[str]) -> None:
        """These users have open batches, and no others: those others' credentials are forgotten."""
        self._seen = {user_id: self._seen.get(user_id, []) for user_id in users}

    def see(self, user_id: str, secret: str) -> None:
        """Keeps a valid credential of a user with an open batch."""
        secrets = self._seen.get(user_id)
        if secrets is None or (secrets and secrets[-1] == secret):
            return
        if secret in secrets:
            secrets.remove(secret)
        secrets.append(secret)
        del secrets[:-_MOST_EACH]

    def begin(self, user_id: str) -> None:
        """The user has an open batch."""
        self._seen.setdefault(user_id, [])

    def end(self, user_id: str) -> None:
        """The user has no open batch any more."""
        self._seen.pop(user_id, None)

    def forget(self, user_id: str, secret: str) -> None:
        """Forgets a credential that is not valid any more."""
        if secret in self._seen.get(user_id, ()):
            self._seen[user_id].remove(secret)

    def users(self) -> Sequence[str]:
        """Returns the users of whom a credential is known."""
        return [user_id for user_id, secrets in self._seen.items() if secrets]

    def of(self, user_id: str) -> Sequence[str]:
        """Returns the user's credentials, the last one seen first."""
        return self._seen.get(user_id, [])[::-1]
