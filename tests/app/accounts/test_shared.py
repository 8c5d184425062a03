"""Several replicas of the accounts over one database, as for several Rays; without Ray."""

import asyncio
import pickle
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.accounts import shared
from app.accounts.accounts import Accounts
from app.accounts.database import Database, InUseError
from app.accounts.owner_line import LineServer
from app.accounts.service import AccountsService
from app.accounts.shared import SharedAccounts
from app.accounts.store import open_store
from app.accounts.tables import metadata
from app.messages.accounts import Admission, Refusal, Revocations, UsageRow, UserLimits
from app.messages.batches import LineResult, NewBatch
from app.messages.stored import NewItem, StoredResponse
from app.settings.accounts import AccountsSettings
from app.settings.knobs import SettingsError
from tests.app.accounts.world import CHEAP, KEK, World

HERS = f"conv_{'a' * 32}"


class Site:
    def __init__(self, database: str, folder: Path) -> None:
        world = World(database)
        world.add("ann", limits=UserLimits(concurrent=2))
        self.ann, self.clock = world.log_in("ann"), world.clock
        world.accounts.close()
        self.settings = world.settings
        self.folder = folder
        self.kek = folder / "kek"
        self.kek.write_bytes(KEK)
        self.kek.chmod(0o400)
        self.settings = world.settings.model_copy(update={"key": f"file:{self.kek}"})
        self.all: list[SharedAccounts] = []

    def open_service(self, settings: AccountsSettings, **options: Any) -> AccountsService:
        if options.get("before") is not None:
            options["before"] = pickle.loads(pickle.dumps(options["before"]))

        def opened(settings: AccountsSettings) -> Accounts:
            return Accounts(open_store(settings, KEK, make=False, now=self.clock, password_cost=CHEAP))

        return AccountsService(settings, opened, **options)

    async def start(self, number: int, **changes: Any) -> SharedAccounts:
        """The replica of the Ray of that number."""
        settings = self.settings.model_copy(update=changes)
        # In a thread: it asks the owner, which answers on this loop.
        one = await asyncio.to_thread(SharedAccounts, settings, self.open_service, ray_folder=self.folder / str(number))
        await one.check_health()
        self.all.append(one)
        return one


@pytest.fixture(params=["sqlite", "postgres"])
async def site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setattr(shared, "_START_TIMEOUT_S", 120.0)
    database = str(tmp_path / "accounts.db")
    if request.param == "postgres":
        database = request.getfixturevalue("postgres")
    site = Site(database, tmp_path)
    yield site
    for one in site.all:
        one.close()
    if request.param == "postgres":  # the next test needs an empty one
        empty(database)


def empty(database: str) -> None:
    opened = Database(database, make=False)
    with opened.transaction() as connection:
        metadata.drop_all(connection)
        connection.exec_driver_sql("DROP TABLE alembic_version")
    opened.close()


def usage(admission: Admission) -> UsageRow:
    identity = admission.identity
    return UsageRow(identity.user_id, identity.credential, "", "tiny", 1, 5, 0, 7)


async def test_the_database_goes_to_the_newest_that_gets_requests(site: Site) -> None:
    first = await site.start(1)
    admission = await first.call("admit", "one", site.ann)
    await first.call("new_conversation", site.ann, HERS, b"", [])
    turn = (await first.call("begin_turn", "one", site.ann, HERS, "resp_1")).seq
    first_news = asyncio.create_task(first.call("revocations", "one", *await position(first, "one")))
    second = await site.start(2, login_failures=1)

    # It is ready, and its ingress follows revocations; the owner stays.
    assert isinstance(await second.call("revocations", "two", "", 0), Revocations)
    assert first._service is not None

    # Its first request waits until it owns the database; the first owner's state is handed over.
    assert (await second.call("admit", "two", site.ann)).refusal is None
    assert first._service is None
    assert second._service is not None
    assert second._service._failures._item.amount == 1  # the newer settings apply
    refused = await second.call("admit", "two", site.ann)
    assert refused.refusal.code == "rate_limit_exceeded"  # one runs at the first ingress
    conflict = await second.call("begin_turn", "two", site.ann, HERS, "resp_2")
    assert conflict.code == "conversation_conflict"

    # The first replica's ingress ends its answers at the new owner.
    response = StoredResponse("resp_1", 0, HERS, None, b"in", b"out")
    assert await first.call("store_response", site.ann, response, [NewItem("a", b"A")], turn) is None
    await first.call("done", "one", usage(admission))
    assert (await second.call("admit", "two", site.ann)).refusal is None
    assert (await second.call("response", site.ann, "resp_1")).conversation_id == HERS
    assert (await first_news).subjects is None  # of another owner: nothing may stay cached
    assert first._service is None  # its calls did not take the database back

    # A third one takes over, and the first one forwards to it.
    third = await site.start(3)
    assert (await third.call("conversation", site.ann, HERS)).items == 1
    assert third._service is not None
    assert (await first.call("conversation", site.ann, HERS)).items == 1
    assert (await second.call("conversation", site.ann, HERS)).items == 1


async def test_batches_go_to_the_ingresses_of_the_newest(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    first = await site.start(1)
    waiting = asyncio.create_task(first.call("claim_batches", 5))
    await first.call("new_file", site.ann, "file-1")
    await first.call("finish_file", site.ann, "file-1", b"name", None)
    await first.call("new_batch", site.ann, NewBatch("batch_1", "file-1", "out", "err", b"asked"))
    (held,) = await waiting
    second = await site.start(2)
    assert await second.call("claim_batches", 5) == []  # the first one has it
    assert first._service is not None
    await second.call("identify", site.ann)
    assert second._service is not None
    refused = await first.call("keep_batch", held.secret, "batch_1", held.claim)
    assert refused.code == "conflict"
    results = [LineResult(1, False, b"made before it learned of that")]
    assert (await first.call("add_results", held.secret, "batch_1", held.claim, results)).completed == 1
    await first.call("leave_batch", held.secret, "batch_1", held.claim)
    assert await first.call("claim_batches", 5) == []
    (taken,) = await second.call("claim_batches", 5)
    assert (taken.secret, taken.claim) == (site.ann, held.claim + 1)
    await second.call("end_batch", taken.secret, "batch_1", taken.claim, "completed", b"", (b"", b""))

    # One that waits does not keep the database from the next owner.
    monkeypatch.setattr("app.accounts.service._POLL_S", 600.0)
    waiting = asyncio.create_task(second.call("claim_batches", 5))
    while not any(call.get_name() == "claim_batches" for call in second._calls):
        await asyncio.sleep(0)
    third = await site.start(3)
    async with asyncio.timeout(120):  # it would wait for ten minutes
        await third.call("identify", site.ann)
        assert await waiting == []


async def test_what_was_handed_over_waits_for_a_database_that_is_closed_late(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Postgres notices the end of a connection after the owner has let go."""
    await (first := await site.start(1)).call("admit", "one", site.ann)
    second = await site.start(2)
    opens, tries = second._open_service, []

    def late(settings: AccountsSettings, **options: Any) -> AccountsService:
        if options["before"] is not None:
            tries.append(options["before"])
            if len(tries) == 1:
                raise InUseError
        return opens(settings, **options)

    monkeypatch.setattr(second, "_open_service", late)
    assert (await second.call("admit", "two", site.ann)).refusal is None
    assert (await second.call("admit", "two", site.ann)).refusal is not None  # one runs at the first ingress
    assert len(tries) == 2
    assert first._service is None


async def position(accounts: SharedAccounts, ingress: str) -> tuple[str, int]:
    news = await accounts.call("revocations", ingress, "", 0)
    return news.instance, news.position


async def test_calls_of_both_at_the_same_time_are_each_done_once(site: Site) -> None:
    first = await site.start(1)
    await first.call("new_conversation", site.ann, HERS, b"", [])
    second = await site.start(2)
    calls = [
        asyncio.create_task(one.call("add_items", site.ann, HERS, [NewItem(f"{name}{number}", b"A")]))
        for number in range(20)
        for name, one in (("a", first), ("b", second))
    ]
    answers = await asyncio.gather(*calls)
    assert [one for one in answers if isinstance(one, Refusal)] == []
    assert (await first.call("conversation", site.ann, HERS)).items == 40


async def test_an_owner_that_closes_and_one_that_is_lost_are_replaced(site: Site) -> None:
    first = await site.start(1)
    second = await site.start(2)
    await second.call("revocations", "two", "", 0)
    first.close()  # the second one has had no request yet
    assert (await second.call("identify", site.ann)).name == "ann"
    third = await site.start(3)
    assert third._service is None
    await third.call("revocations", "three", "", 0)
    news = asyncio.create_task(third.call("revocations", "three", *await position(third, "three")))
    second.close()
    assert isinstance(await news, Revocations)
    assert (await third.call("identify", site.ann)).name == "ann"
    # The older Ray's replica is restarted: it forwards to the newer one.
    again = await site.start(2)
    assert (await again.call("identify", site.ann)).name == "ann"
    assert again._service is None


async def test_another_key_is_refused_before_anything_changes(site: Site, tmp_path: Path) -> None:
    first = await site.start(1)
    other = tmp_path / "other"
    other.write_bytes(bytes(32))
    other.chmod(0o400)
    with pytest.raises(SettingsError, match=r"not the key of accounts\.database"):
        await site.start(2, key=f"file:{other}")
    assert first._service is not None


async def test_a_service_that_is_not_ours_is_not_asked(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "_START_TIMEOUT_S", 0.2)
    await site.start(1)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    site.folder = elsewhere
    with pytest.raises(InUseError, match="a running service has it open"):
        await site.start(1)


class Slow:
    """A service whose calls never end."""

    def __init__(self, owner: SharedAccounts) -> None:
        self._owner = owner
        self.begun = 0

    async def call(self, method: str, *arguments: Any) -> Any:
        if method in (shared._OWNER_START, "sealed_root"):
            return await self._owner._call_here(method)
        self.begun += 1
        return await asyncio.Event().wait()


async def test_of_calls_that_an_owner_took_along_only_those_are_repeated_that_change_nothing(site: Site) -> None:
    first = await site.start(1)
    await first.call("identify", site.ann)
    assert first._path is not None
    slow = Slow(first)
    server = LineServer(first._path, slow.call)  # in its place
    await server.open()
    second = await site.start(1)
    calls = [asyncio.create_task(second.call(*one)) for one in (("identify", site.ann), ("logout", site.ann, False))]
    async with asyncio.timeout(60):
        while slow.begun < len(calls):
            await asyncio.sleep(0.01)
    first.close()
    await server.close()
    identity, refused = await asyncio.gather(*calls)
    assert identity.name == "ann"
    assert refused.code == "service_unavailable"


async def test_on_a_cluster_the_next_one_waits_until_the_postgres_is_free(postgres: str, tmp_path: Path) -> None:
    site = Site(postgres, tmp_path)
    first = await asyncio.to_thread(SharedAccounts, site.settings, site.open_service)
    second = await asyncio.to_thread(SharedAccounts, site.settings, site.open_service)
    await first.check_health()
    await second.check_health()
    call = asyncio.create_task(second.call("identify", site.ann))
    assert (await first.call("identify", site.ann)).name == "ann"
    assert not call.done()
    first.close()
    assert (await call).name == "ann"
    second.close()
    empty(postgres)


_OWNER = """
import asyncio, sys
from pathlib import Path
from app.accounts.shared import SharedAccounts
from app.settings.accounts import AccountsSettings

async def main():
    one = SharedAccounts(AccountsSettings.model_validate_json(sys.argv[1]), ray_folder=Path(sys.argv[2]))
    await one.call("revocations", "one", "", 0)
    print("owns" if one._service else "asks", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_an_owner_that_is_killed_is_replaced_by_who_follows_it(site: Site) -> None:
    arguments = (site.settings.model_dump_json(), str(site.folder / "1"))
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _OWNER, *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert owner.stdout is not None
    assert await owner.stdout.readline() == b"owns\n"
    second = await site.start(2)
    news = asyncio.create_task(second.call("revocations", "two", *await position(second, "two")))
    await asyncio.sleep(0)
    owner.kill()
    await owner.wait()
    assert (await news).subjects is None  # from the new owner: nothing may stay cached
    assert (await second.call("identify", site.ann)).name == "ann"
    assert second._service is not None
