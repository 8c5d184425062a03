"""How many requests a second the accounts can admit: identify the caller, count the request, book what it took.

The deployment's own class over a database file in a temporary folder, in this process. The calls' way through Ray comes
on top, in another thread of the same process. Knows nothing of HTTP.
"""

import asyncio
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from app.accounts.accounts import OPERATOR_ACTS, Accounts
from app.accounts.keys import PasswordCost
from app.accounts.passwords import new_password
from app.accounts.service import AccountsService
from app.accounts.store import open_store
from app.messages.accounts import Refusal, UsageRow, UserLimits
from app.settings.accounts import AccountsSettings

_CHEAP: Final = PasswordCost(memory_kib=64, passes=1, lanes=1)
_USERS: Final = 100
_AT_ONCE: Final = 16


def accounts_costs(requests: int = 2_000) -> dict[str, Any]:
    """Requests a second, and the processor's milliseconds for each. Raises OSError if the folder can't be written."""
    with TemporaryDirectory(prefix="redoubt-bench-") as folder:
        return asyncio.run(_costs(Path(folder) / "accounts.db", requests))


async def _costs(database: Path, requests: int) -> dict[str, Any]:
    settings = AccountsSettings(database=str(database), key="file:/nowhere")
    accounts = Accounts(open_store(settings, bytes(32), make=True, password_cost=_CHEAP))
    password, limits = new_password("a long enough password", _CHEAP), UserLimits()
    first = new_password("the administrator's password", _CHEAP)
    users = [accounts.users.add(OPERATOR_ACTS, f"user{i}", first, "user", limits) for i in range(_USERS)]
    secrets = []
    for number in range(_USERS):
        challenge = accounts.logins.challenge(f"user{number}")
        stretched = challenge.stretched("the administrator's password")
        secrets.append(accounts.logins.log_in(challenge, stretched).token)
        accounts.logins.change_password(secrets[-1], challenge, stretched, password)
    service = AccountsService(settings, lambda _: accounts)
    left = iter(range(requests))

    async def client() -> None:
        for number in left:
            admission = await service.admit("ingress", secrets[number % _USERS])
            if isinstance(admission, Refusal):
                raise RuntimeError(f"a request of the bench was refused: {admission}")
            user_id = users[number % _USERS].id
            await service.done("ingress", UsageRow(user_id, "session", "2026-01-31", "m", 1, 100, 0, 300))

    start_s, cpu_s = time.perf_counter(), time.process_time()
    await asyncio.gather(*(client() for _ in range(_AT_ONCE)))
    took_s, cpu_s = time.perf_counter() - start_s, time.process_time() - cpu_s
    service.close()
    return {"requests_per_s": round(requests / took_s, 1), "request_ms": round(cpu_s / requests * 1e3, 3)}
