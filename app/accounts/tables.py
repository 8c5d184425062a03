"""The tables, for SQLite and Postgres; `migrations/` creates them.

Without the server's key only ids, counts, sizes, times, order, roles and limits are readable. User data is sealed under
the user's key; items and responses by the ingress.
"""

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
)

metadata = MetaData()

_Id = String(32)
_ItemId = String(64)
_Seconds = BigInteger

meta = Table("meta", metadata, Column("name", String(32), primary_key=True), Column("value", LargeBinary))

users = Table(
    "users",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("name_lookup", LargeBinary, nullable=False, unique=True),
    Column("name_sealed", LargeBinary, nullable=False),
    Column("role", String(8), nullable=False),
    Column("state", String(8), nullable=False),
    Column("limits", String, nullable=False),
    Column("wrapped_sk", LargeBinary, nullable=False),
    Column("created", _Seconds, nullable=False),
    Column("sharing_key", LargeBinary),  # public; null until the user's key was open once
)

credentials = Table(
    "credentials",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("user_id", _Id, ForeignKey("users.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("kind", String(8), nullable=False),  # password, first, api_key or recovery
    Column("label_sealed", LargeBinary),
    Column("salt", LargeBinary),
    Column("params", String),
    Column("wrapped_umk", LargeBinary, nullable=False),
    Column("created", _Seconds, nullable=False),
    Column("expires", _Seconds),
)

sessions = Table(
    "sessions",
    metadata,
    Column("token_hash", LargeBinary, primary_key=True),
    Column("user_id", _Id, ForeignKey("users.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("wrapped_umk", LargeBinary, nullable=False),
    Column("created", _Seconds, nullable=False),
    Column("seen", _Seconds, nullable=False),
    Column("expires", _Seconds, nullable=False),
    Column("device_sealed", LargeBinary),  # null if unknown
)

conversations = Table(
    "conversations",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("user_id", _Id, ForeignKey("users.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("name_mac", LargeBinary, nullable=False),
    Column("wrapped_ck", LargeBinary, nullable=False),
    Column("created", _Seconds, nullable=False),
    Column("used", _Seconds, nullable=False),
    # The following columns are null in conversations that are not stored.
    Column("items", Integer),
    Column("seq", BigInteger),  # the number of the last change of items or the last turn
    Column("bytes", BigInteger),  # the size of everything sealed, items included, responses not
    Column("updated_us", BigInteger),
    Column("sealed", LargeBinary),
    Column("deleted", _Seconds),  # the time of deletion; hidden until destroyed or restored
    Index("conversations_by_deletion", "deleted"),
    Index("conversations_by_name", "user_id", "name_mac", unique=True),
    Index("conversations_by_update", "user_id", "updated_us"),
    Index("conversations_bytes", "user_id", "bytes"),
)

items = Table(
    "items",
    metadata,
    Column("conversation_id", _Id, ForeignKey("conversations.id", ondelete="CASCADE"), primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("id", _ItemId, nullable=False),
    Column("sealed", LargeBinary, nullable=False),
    Index("items_by_id", "conversation_id", "id", unique=True),
)

responses = Table(
    "responses",
    metadata,
    Column("id", _ItemId, primary_key=True),
    Column("user_id", _Id, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    Column("conversation_id", _Id, ForeignKey("conversations.id", ondelete="CASCADE"), index=True),
    Column("previous_id", _ItemId),  # no foreign key: the previous response may be deleted
    Column("created", _Seconds, nullable=False, index=True),
    Column("bytes", BigInteger, nullable=False),
    Column("sealed_input", LargeBinary, nullable=False),
    Column("sealed_response", LargeBinary, nullable=False),
    Column("ingress", String(64)),  # the ingress that is writing it; null: it has ended
    Index("responses_bytes", "user_id", "bytes"),
)

files = Table(
    "files",
    metadata,
    Column("id", _ItemId, primary_key=True),
    Column("user_id", _Id, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    Column("purpose", String(16), nullable=False),  # batch, batch_output, user_data or assistants
    Column("state", String(8), nullable=False),  # open, ready or deleted: its parts are being deleted
    Column("created_us", BigInteger, nullable=False),
    Column("expires", _Seconds, nullable=False),
    Column("parts", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),  # of all sealed parts
    Column("sealed", LargeBinary),  # null until it is complete
    Index("files_by_creation", "user_id", "created_us"),
    Index("files_by_state", "state"),
    Index("files_by_expiry", "expires"),
)

file_parts = Table(
    "file_parts",
    metadata,
    Column("file_id", _ItemId, ForeignKey("files.id", ondelete="CASCADE"), primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),  # of a batch's results: the line
    Column("sealed", LargeBinary, nullable=False),
)

batches = Table(
    "batches",
    metadata,
    Column("id", _ItemId, primary_key=True),
    Column("user_id", _Id, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    Column("state", String(16), nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("expires", _Seconds, nullable=False),
    Column("input_id", _ItemId, nullable=False),  # no foreign keys: files may be deleted
    Column("output_id", _ItemId, nullable=False),
    Column("error_id", _ItemId, nullable=False),
    Column("output_seconds", BigInteger),  # how long output and errors are kept; null: as the settings say
    Column("total", BigInteger, nullable=False),
    Column("completed", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
    Column("times", String, nullable=False),  # JSON: when it came into each state
    Column("claim", BigInteger, nullable=False),  # how often an ingress has claimed it
    Column("leased_until", _Seconds, nullable=False),
    Column("sealed", LargeBinary, nullable=False),
    Index("batches_by_creation", "user_id", "created_us"),
    Index("batches_by_state", "state"),
)

collections = Table(
    "collections",
    metadata,
    Column("id", _ItemId, primary_key=True),
    Column("user_id", _Id, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    Column("state", String(8), nullable=False),  # ready or deleted: its passages are being deleted
    Column("created_us", BigInteger, nullable=False),
    Column("changes", BigInteger, nullable=False),  # of its documents
    Column("bytes", BigInteger, nullable=False),  # of everything sealed
    Column("sealed", LargeBinary),  # null once it is deleted
    Index("collections_by_user", "user_id"),
    Index("collections_by_state", "state"),
)

collection_members = Table(
    "collection_members",
    metadata,
    Column("collection_id", _ItemId, ForeignKey("collections.id", ondelete="CASCADE"), primary_key=True),
    Column("user_id", _Id, ForeignKey("users.id", ondelete="CASCADE"), primary_key=True),
    Column("wrapped_key", LargeBinary, nullable=False),
    Index("collection_members_by_user", "user_id"),
)

documents = Table(
    "documents",
    metadata,
    Column("collection_id", _ItemId, ForeignKey("collections.id", ondelete="CASCADE"), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("file_id", _ItemId, nullable=False),  # no foreign key: the file may be deleted
    # in_progress, completed, former (it is searched until a newer one was read), failed, cancelled or deleted
    Column("state", String(16), nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("leased_until", _Seconds, nullable=False),
    Column("parts", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("sealed", LargeBinary),  # null once it is deleted
    Column("batch_id", _ItemId),  # of the documents that were added with it; null: it was added alone
    Index("documents_by_creation", "collection_id", "created_us", "file_id"),
    Index("documents_by_file", "collection_id", "file_id"),
    Index("documents_by_state", "state"),
)

passages = Table(
    "passages",
    metadata,
    Column("collection_id", _ItemId, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("sealed", LargeBinary, nullable=False),
    ForeignKeyConstraint(
        ["collection_id", "number"], ["documents.collection_id", "documents.number"], ondelete="CASCADE"
    ),
)

usage = Table(
    "usage",
    metadata,
    Column("user_id", _Id, primary_key=True),
    Column("credential_id", _Id, primary_key=True),
    Column("day", String(10), primary_key=True),
    Column("model", String(256), primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("prompt", BigInteger, nullable=False),
    Column("cached", BigInteger, nullable=False),
    Column("output", BigInteger, nullable=False),
    Index("usage_by_day", "day"),
)

audit = Table(
    "audit",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("at", _Seconds, nullable=False),
    Column("actor", _Id, nullable=False),
    Column("action", String(32), nullable=False),
    Column("object", String(64), nullable=False),
    Column("outcome", String(32), nullable=False),
    Column("address_sealed", LargeBinary),  # of a login's client; null if unknown or deleted
    Column("address_digest", LargeBinary),  # SHA-256 of what was sealed; null if there never was an address
    Column("previous_mac", LargeBinary, nullable=False),
)
