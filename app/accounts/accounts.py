"""All accounts of one database, for one process and one thread at a time. Knows neither Ray nor HTTP."""

import os
from pathlib import Path

from app.accounts.api_keys import ApiKeys
from app.accounts.conversations import Conversations
from app.accounts.kept_secrets import KeptSecrets
from app.accounts.key_source import read_kek
from app.accounts.logins import Logins
from app.accounts.store import OPERATOR, Actor, Store, open_store
from app.accounts.stored_batches import StoredBatches
from app.accounts.stored_collections import StoredCollections
from app.accounts.stored_conversations import StoredConversations
from app.accounts.stored_documents import StoredDocuments
from app.accounts.stored_files import StoredFiles
from app.accounts.stored_responses import StoredResponses
from app.accounts.turns import Turns
from app.accounts.usage import Usage
from app.accounts.users import Users, check_admin
from app.messages.accounts import AuditPage
from app.settings.accounts import AccountsSettings
from app.settings.environment import KEPT

OPERATOR_ACTS = Actor(OPERATOR, "admin")
"""The actor for commands that run on the server's own machine with its key."""


class Accounts:
    """Users, credentials, conversation keys, stored texts, files, collections and batches, usage and audit."""

    def __init__(self, store: Store, kept: Path | None = None) -> None:
        """kept: the file in memory for `KeptSecrets`."""
        self.store = store
        self.users = Users(store)
        self.logins = Logins(store)
        self.api_keys = ApiKeys(store, self.logins)
        self.conversations = Conversations(store, self.logins)
        self.turns = Turns()
        self.stored_conversations = StoredConversations(store, self.logins, self.turns)
        self.stored_responses = StoredResponses(store, self.logins, self.stored_conversations)
        self.stored_files = StoredFiles(store, self.logins)
        self.stored_collections = StoredCollections(store, self.logins, self.stored_files)
        self.stored_documents = StoredDocuments(store, self.stored_collections, self.stored_files)
        self.stored_batches = StoredBatches(store, self.logins, self.stored_files, KeptSecrets(store.root, kept))
        self.usage = Usage(store)
        self.stored_conversations.destroy_deleted()

    @classmethod
    def open(cls, settings: AccountsSettings, *, make: bool = False) -> "Accounts":
        """Opens the database. make: create it if it is missing or empty.

        Raises SettingsError if the key can't be read, or the database can't be opened or belongs to another key.
        """
        kept = Path(os.environ[KEPT]) if KEPT in os.environ else None
        return cls(open_store(settings, read_kek(settings.key), make=make), kept)

    def actor(self, secret: str) -> Actor:
        """Returns the user of a credential. Raises AccountsError as `Logins.identify` does."""
        identity = self.logins.identify(secret)
        return Actor(identity.user_id, identity.role)

    def audit(self, actor: Actor, after: int, limit: int) -> AuditPage:
        """Returns rows in order, from the one after `after`. Raises AccountsError `admin_only`."""
        check_admin(actor)
        with self.store.transaction() as connection:
            return self.store.audit.rows_after(connection, after, limit)

    def close(self) -> None:
        """Writes pending usage, destroys deleted conversations, and closes the database."""
        try:
            self.usage.write()
            self.stored_conversations.destroy_deleted(at_once=True)
        finally:
            self.store.database.close()
