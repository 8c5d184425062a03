"""The calls of ingresses that are work in the database and nothing else.

Texts in them are sealed and opened by the ingress.
"""

from collections.abc import Callable, Mapping
from typing import Any

from app.accounts.accounts import Accounts

Work = Callable[..., Any]
"""Takes the call's arguments, of which the first is a credential; raises AccountsError."""


def database_calls(accounts: Accounts) -> Mapping[str, Work]:
    """Returns what answers each of them, in the thread of the database."""
    conversations, responses = accounts.stored_conversations, accounts.stored_responses
    files, batches = accounts.stored_files, accounts.stored_batches
    collections, documents = accounts.stored_collections, accounts.stored_documents

    def acting(work: Work) -> Work:
        return lambda secret, *arguments, **named: work(accounts.actor(secret), *arguments, **named)

    return {
        # messages.accounts.AccountsClient
        "logout": accounts.logins.log_out,
        "sessions": accounts.logins.sessions,
        "end_session": accounts.logins.end_session,
        "keys": accounts.api_keys.all,
        "add_key": accounts.api_keys.add,
        "revoke_key": accounts.api_keys.revoke,
        "conversation_key": accounts.conversations.key,
        "forget": accounts.conversations.forget,
        "users": acting(accounts.users.all),
        "change_user": acting(accounts.users.change),
        "delete_user": acting(accounts.users.delete),
        "usage": acting(accounts.usage.rows),
        "usage_by_user": acting(accounts.usage.by_user),
        "audit": acting(accounts.audit),
        # messages.stored.ConversationStore
        "new_conversation": conversations.new,
        "conversations": conversations.newest,
        "conversation": conversations.get,
        "change_conversation": conversations.change,
        "delete_conversation": conversations.delete,
        "restore_conversation": conversations.restore,
        "items": conversations.items,
        "item": conversations.item,
        "add_items": conversations.add_items,
        "delete_item": conversations.delete_item,
        "add_question": conversations.add_question,
        "end_turn": conversations.end_turn,
        "begin_response": lambda ingress, secret, response: responses.open(secret, ingress, response),
        "store_response": responses.add,
        "response": responses.get,
        "history": responses.history,
        "delete_response": responses.delete,
        # messages.batches.BatchStore
        "new_file": files.new,
        "add_part": files.add_part,
        "finish_file": files.finish,
        "files": files.listed,
        "file": files.get,
        "parts": files.parts,
        "delete_file": files.delete,
        "new_batch": batches.new,
        "batches": batches.listed,
        "batch": batches.get,
        "cancel_batch": batches.cancel,
        "keep_batch": batches.keep,
        "leave_batch": batches.leave,
        "start_batch": batches.start,
        "done_lines": batches.done_lines,
        "add_results": batches.add_results,
        "finalize_batch": batches.finalize,
        "end_batch": batches.end,
        # messages.knowledge.CollectionStore
        "new_collection": collections.new,
        "collections": collections.listed,
        "collection": collections.get,
        "change_collection": collections.change,
        "delete_collection": collections.delete,
        "collection_members": collections.members,
        "share_collection": collections.share,
        "add_documents": documents.add,
        "keep_documents": documents.keep,
        "add_passages": documents.add_passages,
        "end_document": documents.end,
        "change_document": documents.change,
        "documents": documents.listed,
        "document": documents.get,
        "passages": documents.passages,
        "delete_document": documents.delete,
        "file_batch": documents.batch,
        "cancel_file_batch": documents.cancel,
    }
