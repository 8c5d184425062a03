import hmac
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import psycopg
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, delete, insert, inspect
from sqlalchemy.exc import IntegrityError

from app.accounts import tables
from app.accounts.accounts import OPERATOR_ACTS, Accounts
from app.accounts.database import Database, write_meta
from app.accounts.store import open_store, rotate_kek
from app.accounts.tables import metadata
from app.messages.accounts import AccountsError, UsageRow
from app.messages.batches import LAST_SEQ, FilePart, LineResult, NewBatch
from app.messages.stored import NewItem, StoredResponse
from app.settings.knobs import SettingsError
from tests.app.accounts.world import KEK, World


@pytest.fixture(params=["sqlite", "postgres"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """Accounts in either kind of database."""
    place = str(tmp_path / "db") if request.param == "sqlite" else request.getfixturevalue("postgres")
    world = World(place)
    yield world
    with world.accounts.store.transaction() as connection:
        metadata.drop_all(connection)
        connection.exec_driver_sql("DROP TABLE alembic_version")
    world.accounts.store.database.close()


def test_a_life_of_accounts(anywhere: World) -> None:
    anywhere.add("ann", role="admin")
    anywhere.add("bob")
    bob = anywhere.log_in("bob")
    key = anywhere.accounts.api_keys.add(bob, "laptop", 3).secret
    conversation = anywhere.accounts.conversations.key(key, None)
    stored, responses = anywhere.accounts.stored_conversations, anywhere.accounts.stored_responses
    id_ = stored.new(key, f"conv_{'1' * 32}", b"title", [NewItem("a", b"1"), NewItem("b", b"2")]).id
    turn = stored.begin_turn(key, "ingress", id_, "resp_1").seq
    responses.add(key, StoredResponse("r1", 0, id_, None, b"in", b"out"), [NewItem("c", b"3")], turn)
    responses.open(key, "ingress", StoredResponse("r2", 0, None, "r1", b"in", b"nothing yet"))
    responses.other_ingresses_lost(["ingress", "another"])
    assert responses.get(key, "r2").is_open
    responses.add(key, StoredResponse("r2", 0, None, "r1", b"in", b"out", is_open=True), [], None)
    responses.open(key, "ingress", StoredResponse("r3", 0, None, None, b"in", b"nothing yet"))
    responses.other_ingresses_lost([])
    assert not responses.get(key, "r3").is_open
    for _ in range(2):
        anywhere.accounts.usage.add(UsageRow("u", "c", "", "m", 1, 2, 1, 3))
        anywhere.accounts.usage.write()
    anywhere.reopen()
    assert anywhere.accounts.conversations.key(bob, None) == conversation
    stored, responses = anywhere.accounts.stored_conversations, anywhere.accounts.stored_responses
    assert [item.id for item in stored.items(bob, id_, "a", 9, newest_first=False)] == ["b", "c"]
    assert [each.id for each in responses.history(bob, "r2")] == ["r1", "r2"]
    other = stored.new(bob, f"conv_{'2' * 32}", b"title", [])
    assert [each.id for each in stored.newest(bob, None, 1)] == [other.id]
    assert [each.id for each in stored.newest(bob, other.id, 9)] == [id_]
    assert stored.delete_item(bob, id_, "b").items == 2
    begun = stored.begin_turn(bob, "ingress", other.id, "resp_2")
    asked = stored.add_question(bob, other.id, [NewItem("q", b"4")], begun.seq)
    assert (asked.items, asked.response_id) == (1, "resp_2")
    responses.add(bob, StoredResponse("r4", 0, other.id, None, b"in", b"out"), [NewItem("w", b"5")], asked.seq)
    assert stored.get(bob, other.id).items == 2
    stored.delete(bob, other.id, undo=True)
    with pytest.raises(AccountsError, match="no such response"):
        responses.history(bob, "r4")
    assert [each.id for each in stored.newest(bob, None, 9)] == [id_]
    assert stored.restore(bob, other.id).items == 2
    stored.delete(bob, other.id, undo=True)
    stored.destroy_deleted(at_once=True)
    for nowhere in ("\0", "conv_\0", "x" * 999):
        with pytest.raises(AccountsError, match="no such response"):
            responses.get(bob, nowhere)
        with pytest.raises(AccountsError, match="no such item"):
            stored.item(bob, id_, nowhere)
    a_life_of_a_batch(anywhere.accounts, key)
    (used,) = anywhere.accounts.usage.rows(OPERATOR_ACTS, "2000-01-01", "2100-01-01")
    assert (used.requests, used.prompt, used.cached, used.output) == (2, 4, 2, 6)
    (of_user,) = anywhere.accounts.usage.by_user(OPERATOR_ACTS)
    assert (of_user.user_id, of_user.today.requests, of_user.days_30.output) == ("u", 2, 6)
    anywhere.accounts.users.delete(OPERATOR_ACTS, "bob")
    assert anywhere.refusal(key) == "invalid_api_key"
    with anywhere.accounts.store.transaction() as connection:
        left = {table.name: connection.execute(table.select()).fetchall() for table in metadata.sorted_tables}
    assert {name for name, rows in left.items() if rows} == {"meta", "users", "credentials", "usage", "audit"}
    assert len(left["users"]) == 1
    assert anywhere.accounts.audit(OPERATOR_ACTS, 0, 100).intact


def a_life_of_a_batch(accounts: Accounts, key: str) -> None:
    """Its end is left to the user's deletion."""
    files, batches = accounts.stored_files, accounts.stored_batches
    for file_id in ("file-1", "file-2", "file-3"):
        files.new(key, file_id)
        for seq in range(3):
            files.add_part(key, file_id, FilePart(seq, bytes(seq)))
        files.finish(key, file_id, b"name", None)
    listed = [one.id for one in files.listed(key, "batch", None, 9, newest_first=False)]
    assert [one.id for one in files.listed(key, None, listed[0], 9, newest_first=False)] == listed[1:]
    assert [part.sealed for part in files.parts(key, "file-2", 0)] == [b"\0", b"\0\0"]
    files.delete(key, "file-3")
    while files.destroy_some():
        pass
    for number in "12":
        made = batches.new(key, NewBatch(f"batch_{number}", f"file-{number}", f"out-{number}", f"err-{number}", b"x"))
    assert [one.id for one in batches.listed(key, made.id, 9)] == [one for one in ("batch_1",) if one != made.id]
    one, two = batches.claim(9)
    assert batches.claim(9) == []
    batches.start(key, one.batch.id, one.claim, 2, b"x")
    results = [LineResult(1, False, b"r"), LineResult(2, True, b"rr")]
    for _ in range(2):
        assert batches.add_results(key, one.batch.id, one.claim, results).completed == 1
    assert list(batches.done_lines(key, one.batch.id, 0)) == [1, 2]
    batches.add_results(key, one.batch.id, one.claim, [LineResult(LAST_SEQ, True, b"rest")])
    assert batches.finalize(key, one.batch.id, one.claim).state == "finalizing"
    ended = batches.end(key, one.batch.id, one.claim, "completed", b"x", (b"o", b"e"))
    assert files.get(key, ended.error_id).sealed_bytes == 2
    assert batches.cancel(key, two.batch.id).state == "cancelling"
    batches.leave(key, two.batch.id, two.claim)
    batches.delete_old()
    files.delete_old()


def test_the_migrations_make_the_tables(anywhere: World) -> None:
    with anywhere.accounts.store.transaction() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_what_was_in_a_database_of_version_2_is_there_in_version_3(anywhere: World) -> None:
    anywhere.add("ann")
    ann = anywhere.log_in("ann")
    key = anywhere.accounts.conversations.key(ann, "chat")
    kept = ("meta", "users", "credentials", "sessions", "conversations", "audit")
    with anywhere.accounts.store.transaction() as connection:
        rows = {name: connection.execute(metadata.tables[name].select()).mappings().all() for name in kept}
        metadata.drop_all(connection)
        connection.exec_driver_sql("DROP TABLE alembic_version")
        config = Config()
        config.set_main_option("script_location", "app.accounts:migrations")
        config.attributes["connection"] = connection
        command.upgrade(config, "0002")
        assert not inspect(connection).has_table("items")
        for name in kept:
            old = {column["name"] for column in inspect(connection).get_columns(name)}
            values = [{key: value for key, value in row.items() if key in old} for row in rows[name]]
            connection.execute(insert(metadata.tables[name]), values)
    anywhere.accounts.store.database.close()
    anywhere.opened()
    assert anywhere.accounts.conversations.key(ann, "chat") == key
    assert anywhere.accounts.stored_conversations.newest(ann, None, 10) == []
    assert anywhere.accounts.stored_conversations.new(ann, f"conv_{'1' * 32}", b"x", []).items == 0
    assert anywhere.accounts.audit(OPERATOR_ACTS, 0, 10).intact


def test_an_audit_of_before_there_were_addresses_goes_on_with_them(anywhere: World) -> None:
    """The rows keep their MACs."""
    anywhere.add("ann")
    key = anywhere.accounts.store.root.audit_key
    with anywhere.accounts.store.transaction() as connection:
        for column in ("address_sealed", "address_digest"):
            connection.exec_driver_sql(f"ALTER TABLE audit DROP COLUMN {column}")
        connection.exec_driver_sql("ALTER TABLE sessions DROP COLUMN device_sealed")
        connection.exec_driver_sql("ALTER TABLE users DROP COLUMN sharing_key")
        later = ("passages", "documents", "collection_members", "collections", "batches", "file_parts", "files")
        for table in later:
            connection.exec_driver_sql(f"DROP TABLE {table}")
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0005'")
        connection.execute(delete(tables.audit))
        previous = bytes(32)
        for seq, outcome in enumerate(("ok", "refused"), 1):
            row = {"seq": seq, "at": 7, "actor": "unknown", "action": "login", "object": "", "outcome": outcome}
            connection.execute(insert(tables.audit).values(**row, previous_mac=previous))
            previous = hmac.digest(key, previous + orjson.dumps(list(row.values())), "sha256")
        head = (2).to_bytes(8, "big") + previous
        write_meta(connection, "audit_head", head + hmac.digest(key, b"head" + head, "sha256"))
    anywhere.accounts.store.database.close()
    anywhere.opened()
    anywhere.log_in("ann", address="192.0.2.7")
    page = anywhere.accounts.audit(OPERATOR_ACTS, 0, 10)
    assert [row.address for row in page.rows] == [None, None, "192.0.2.7"]
    assert page.intact


def test_it_is_free_as_soon_as_it_is_closed(postgres: str) -> None:
    for _ in range(20):
        Database(postgres, make=True).close()


def test_one_process_has_it(anywhere: World) -> None:
    with pytest.raises(SettingsError, match="a running service has it open"):
        Database(anywhere.settings.database, make=False)
    anywhere.accounts.close()
    Database(anywhere.settings.database, make=False).close()
    anywhere.opened()


def test_a_database_of_a_newer_version_is_left_alone(anywhere: World) -> None:
    anywhere.add("ann")
    with anywhere.accounts.store.transaction() as connection:
        newest = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one()
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    anywhere.accounts.close()
    database = anywhere.settings.database
    with pytest.raises(SettingsError) as refused:
        anywhere.opened()
    message = str(refused.value)
    assert message.startswith(f"accounts.database {database}: a newer version of Redoubt has made its tables")
    assert "revision 9999" in message
    assert f"no later revision than {newest}." in message
    assert "Install the newer version again, or restore the backup" in message
    assert "\n" not in message
    engine = create_engine(database if "://" in database else f"sqlite:///{database}")
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{newest}'")
    engine.dispose()
    anywhere.opened()
    assert anywhere.log_in("ann")


def test_errors_have_no_values_in_them(anywhere: World) -> None:
    ann = anywhere.add("ann").info
    with pytest.raises(IntegrityError) as error, anywhere.accounts.store.transaction() as connection:
        connection.execute(insert(tables.meta).values(name="root_key", value=b"a canary"))
    assert "canary" not in str(error.value).replace("parameters hidden", "")
    assert anywhere.accounts.users.all(OPERATOR_ACTS)[0].id == ann.id


def test_a_lost_connection_is_made_anew(anywhere: World) -> None:
    anywhere.add("ann")
    if "://" in anywhere.settings.database:
        with psycopg.connect(anywhere.settings.database.replace("+psycopg", "")) as other:
            other.execute("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    assert anywhere.log_in("ann")
    with pytest.raises(SettingsError, match="a running service has it open"):
        Database(anywhere.settings.database, make=False)


def test_a_service_makes_no_database(anywhere: World, tmp_path: Path) -> None:
    """A service that does not find its database must not start without users."""
    with pytest.raises(SettingsError, match=r"there is none yet\. Add the first user: redoubt user add"):
        Database(str(tmp_path / "nothing.db"), make=False)
    assert not (tmp_path / "nothing.db").exists()
    with anywhere.accounts.store.transaction() as connection:
        connection.execute(delete(tables.meta))
    anywhere.accounts.close()
    with pytest.raises(SettingsError, match=r"it has no users yet\. Add the first user"):
        open_store(anywhere.settings, KEK, make=False)
    anywhere.opened()


def test_another_servers_key_is_refused_and_rotation_changes_it(world: World) -> None:
    world.add("ann")
    token = world.log_in("ann")
    identity = world.accounts.logins.identify(token)
    with pytest.raises(SettingsError, match=r"accounts\.key file:/nowhere: not the key of accounts\.database"):
        world.reopen(b"x" * 32)
    rotate_kek(world.opened().store, b"x" * 32)
    assert world.reopen(b"x" * 32).logins.identify(token) == identity  # the pages' folder and names are the same
    with pytest.raises(SettingsError, match="not the key"):
        world.reopen(KEK)
    assert world.opened(b"x" * 32).audit(OPERATOR_ACTS, 0, 100).intact


def test_the_files_are_the_services_alone(tmp_path: Path) -> None:
    world = World(str(tmp_path / "accounts.db"))
    world.add("ann")
    assert {path.name for path in tmp_path.iterdir()} >= {"accounts.db", "accounts.db.lock"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    world.accounts.close()


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("{folder}/missing/accounts.db", "No such file"),
        ("{folder}", "Is a directory"),
        ("{folder}/text", "not a database"),
        ("postgresql+psycopg://ann:secret@127.0.0.1/db", "keep the password out of the URL"),
        ("postgresql+psycopg://127.0.0.1/db?password=secret", "keep the password out of the URL"),
        ("postgresql+psycopg://127.0.0.1:1/db", "refused"),
        ("oracle+nothing://here", "not a URL of a database"),
    ],
)
def test_what_is_no_database_is_one_line(tmp_path: Path, place: str, reason: str) -> None:
    (tmp_path / "text").write_text("words " * 1000)
    with pytest.raises(SettingsError, match=reason) as error:
        Database(place.format(folder=tmp_path), make=True)
    assert "\n" not in str(error.value)
    assert "secret" not in str(error.value)


KILLED = """
import os, sys
sys.path.insert(0, {root!r})
from tests.app.accounts.world import World
world = World({database!r})
world.add("ann", role="admin")
if {where!r} == "between":
    os._exit(9)
with world.accounts.store.transaction() as connection:
    connection.exec_driver_sql("DELETE FROM users")
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("where", ["between", "in a transaction"])
def test_what_was_done_before_a_kill_is_there(tmp_path: Path, where: str) -> None:
    database = str(tmp_path / "accounts.db")
    script = KILLED.format(root=str(Path(__file__).parents[3]), database=database, where=where)
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode in (9, -9)
    world = World(database)
    assert world.log_in("ann")
    assert world.accounts.audit(OPERATOR_ACTS, 0, 10).intact
    world.accounts.close()
