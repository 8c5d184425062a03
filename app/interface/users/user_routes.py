"""The routes about users: accounts, saved KV pages, stored texts and administration. Only with accounts.

`http_api` has the other routes, and serves both.
"""

from collections.abc import Sequence

from app.interface.documents.openapi import Route
from app.interface.generate.reception import Reception
from app.interface.users.batches.runner import BatchRunner
from app.interface.users.gate import AccountsGate
from app.interface.users.routes.admin import AdminRoutes
from app.interface.users.routes.batches import BatchRoutes
from app.interface.users.routes.capacity import CapacityRoutes
from app.interface.users.routes.conversations import ConversationRoutes
from app.interface.users.routes.files import FileRoutes
from app.interface.users.routes.memory import MemoryRoutes
from app.interface.users.routes.operator import OperatorRoutes
from app.interface.users.routes.responses import StoredResponseRoutes
from app.interface.users.routes.users import UserRoutes
from app.interface.users.routes.warm import WarmRoute
from app.interface.wire.accounts import (
    AuditList,
    Done,
    EndedSessions,
    KeyList,
    KeyRequest,
    LoginRequest,
    LogoutRequest,
    NewKeyObject,
    NewSession,
    PasswordChanged,
    PasswordRequest,
    RecoveryCode,
    RecoveryRequest,
    ResetRequest,
    SessionList,
    UsageList,
    UsedLimits,
    UserChangeRequest,
    UserList,
    UserObject,
    UserRequest,
    UserSession,
)
from app.interface.wire.batches import (
    BatchList,
    BatchObject,
    BatchRequest,
    DeletedFile,
    FileList,
    FileObject,
    FileUpload,
)
from app.interface.wire.conversations import (
    ConversationChangeRequest,
    ConversationList,
    ConversationObject,
    ConversationRequest,
    DeletedConversation,
    DeletedConversations,
    DeletedResponse,
    ExportedConversation,
    ItemList,
    ItemsRequest,
)
from app.interface.wire.memory import ForgottenMemory, MemoryUse, SavedMemory, WarmedMemory, WarmRequest
from app.interface.wire.operator import CapacityList, Overview, UserUsageList
from app.interface.wire.responses import ResponseObject

NONE = "There is no such thing, or it is another user's."
FULL = "There are too many, or they take too much; the message says what to delete."
_BUSY = "An answer of the conversation is being written."
_ELSEWHERE = "Another ingress writes it; `Retry-After` says when to try again."
_EVENTS = "true: as server-sent events, those to come too."
LIST = {
    "after": "The id of the one before the first.",
    "limit": "How many, at most 100; 20 by default.",
    "order": "desc (the newest first) or asc.",
    "include": "No effect.",
}
BEFORE = {"before": "In place of `after`: the id of the one after the last."}


def user_routes(
    accounts: AccountsGate, reception: Reception, runner: BatchRunner, most_file_bytes: int
) -> Sequence[Route]:
    """Returns all routes of one service's users."""
    routes = [*account_routes(accounts), *conversation_routes(accounts, reception)]
    files = FileRoutes(accounts, most_file_bytes, reception.service.settings.document_bytes)
    routes += [*file_routes(files), *batch_routes(BatchRoutes(accounts, runner))]
    if accounts.kv_pages is not None:
        routes += memory_routes(MemoryRoutes(accounts, accounts.kv_pages))
    return routes


def conversation_routes(accounts: AccountsGate, reception: Reception) -> Sequence[Route]:
    """Returns the routes of stored conversations and responses."""
    texts = ConversationRoutes(accounts, reception.service.settings.max_body_bytes, reception.files)
    responses = StoredResponseRoutes(accounts, reception.service.settings.keep_alive_comment_s)
    warm = WarmRoute(reception, accounts)
    every, one, one_response = "/v1/conversations", "/v1/conversations/{id}", "/v1/responses/{id}"
    searched = {**LIST, "q": "What titles or texts have in them."}
    both = {**LIST, **BEFORE}
    form = {"format": "json (the default) or md."}
    none, full = {404: NONE}, {404: NONE, 409: _BUSY, 429: FULL}
    return (
        Route("GET", every, texts.conversations, "Your conversations.", ConversationList, query=searched, refuses=none),
        Route(
            "POST",
            every,
            texts.create,
            "Begins a conversation.",
            ConversationObject,
            ConversationRequest,
            refuses={429: FULL},
        ),
        Route("DELETE", every, texts.delete_all, "Deletes all that is stored of you.", DeletedConversations),
        Route("GET", one, texts.conversation, "A conversation.", ConversationObject, refuses=none),
        Route(
            "POST",
            one,
            texts.change,
            "Replaces a conversation's metadata.",
            ConversationObject,
            ConversationChangeRequest,
            refuses={404: NONE, 429: FULL},
        ),
        Route(
            "DELETE",
            one,
            texts.delete,
            "Deletes a conversation.",
            DeletedConversation,
            query={"undo": "true: its texts can be brought back for some seconds, unless you log out."},
            refuses=none,
        ),
        Route(
            "POST",
            f"{one}/restore",
            texts.restore,
            "Undoes a deletion.",
            ConversationObject,
            refuses=none,
        ),
        Route(
            "GET",
            f"{one}/export",
            texts.export,
            "A conversation as a file.",
            ExportedConversation,
            query=form,
            refuses=none,
        ),
        Route("GET", f"{one}/items", texts.items, "A conversation's items.", ItemList, query=both, refuses=none),
        Route("POST", f"{one}/items", texts.add_items, "Adds items.", ItemList, ItemsRequest, refuses=full),
        Route("GET", f"{one}/items/{{item_id}}", texts.item, "An item.", "application/json", refuses=none),
        Route(
            "DELETE",
            f"{one}/items/{{item_id}}",
            texts.delete_item,
            "Deletes an item.",
            ConversationObject,
            refuses={404: NONE, 409: _BUSY},
        ),
        Route(
            "POST",
            "/v1/memory/warm",
            warm.warm,
            "Brings a conversation's pages into memory.",
            WarmedMemory,
            WarmRequest,
            computes=True,
            refuses=none,
        ),
        Route(
            "GET",
            one_response,
            responses.response,
            "A stored response.",
            ResponseObject,
            query={
                "stream": _EVENTS,
                "starting_after": "With stream=true: the number of the last event you have.",
                "include": LIST["include"],
            },
            refuses={**none, 409: _ELSEWHERE},
        ),
        Route(
            "POST",
            f"{one_response}/cancel",
            responses.cancel,
            "Ends a response in the background.",
            ResponseObject,
            refuses={**none, 409: _ELSEWHERE},
        ),
        Route("DELETE", one_response, responses.delete, "Deletes it.", DeletedResponse, refuses=none),
        Route(
            "GET",
            f"{one_response}/input_items",
            responses.input_items,
            "What a response answers.",
            ItemList,
            query=both,
            refuses=none,
        ),
    )


def file_routes(files: FileRoutes) -> Sequence[Route]:
    """Returns the routes of users' files."""
    every, one = "/v1/files", "/v1/files/{id}"
    query = {name: LIST[name] for name in ("after", "limit", "order")}
    query |= {
        **BEFORE,
        "limit": "How many, at most 10,000.",
        "purpose": "batch, batch_output, user_data or assistants; without it all.",
    }
    none = {404: NONE}
    return (
        Route(
            "POST",
            every,
            files.create,
            "Uploads a file, as a form.",
            FileObject,
            FileUpload,
            is_form=True,
            refuses={413: "The file is too large.", 415: "The body is no form.", 429: FULL},
        ),
        Route("GET", every, files.files, "Your files.", FileList, query=query, refuses=none),
        Route("GET", one, files.file, "A file without its content.", FileObject, refuses=none),
        Route("GET", f"{one}/content", files.content, "A file's content.", "application/octet-stream", refuses=none),
        Route(
            "DELETE",
            one,
            files.delete,
            "Deletes a file.",
            DeletedFile,
            refuses={**none, 409: "A batch reads it that has not ended."},
        ),
    )


def batch_routes(batches: BatchRoutes) -> Sequence[Route]:
    """Returns the routes of users' batches."""
    every, one = "/v1/batches", "/v1/batches/{id}"
    query = {name: LIST[name] for name in ("after", "limit")}
    none = {404: NONE}
    return (
        Route(
            "POST",
            every,
            batches.create,
            "Begins a batch of an uploaded file's lines.",
            BatchObject,
            BatchRequest,
            refuses={**none, 429: FULL},
        ),
        Route("GET", every, batches.batches, "Your batches.", BatchList, query=query, refuses=none),
        Route("GET", one, batches.batch, "A batch.", BatchObject, refuses=none),
        Route(
            "POST",
            f"{one}/cancel",
            batches.cancel,
            "Has a batch end with the results that it has.",
            BatchObject,
            refuses={**none, 409: "It has ended."},
        ),
    )


def account_routes(accounts: AccountsGate) -> Sequence[Route]:
    """Returns the routes of users, their keys and their administration."""
    users, admin = UserRoutes(accounts), AdminRoutes(accounts)
    one_user = "/v1/admin/users/{name}"
    period = {"first": "The first day in UTC, as 2026-01-31; today by default.", "last": "The last day."}
    too_many = "There were too many wrong passwords, or too many at once; `Retry-After` says when to try again."
    none = "There is no such thing, or it is another user's."
    conflict = "The name is taken; or nobody would be left who can administer."
    rows = {"after": "The `seq` of the row before the first.", "limit": "How many rows, at most 1,000."}
    return (
        Route(
            "POST",
            "/v1/auth/login",
            users.login,
            "Begins a session.",
            NewSession,
            LoginRequest,
            open=True,
            refuses={401: "Name or password is wrong.", 429: too_many},
        ),
        Route("POST", "/v1/auth/logout", users.logout, "Ends sessions.", EndedSessions, LogoutRequest),
        Route("GET", "/v1/auth/session", users.session, "Who you are.", UserSession),
        Route("GET", "/v1/auth/limits", users.limits, "Your limits, and what is used of them.", UsedLimits),
        Route("GET", "/v1/auth/sessions", users.sessions, "Your sessions.", SessionList),
        Route("DELETE", "/v1/auth/sessions/{id}", users.end_session, "Ends a session.", Done, refuses={404: none}),
        Route(
            "POST",
            "/v1/auth/password",
            users.password,
            "Changes your password.",
            PasswordChanged,
            PasswordRequest,
            refuses={429: too_many},
        ),
        Route(
            "POST",
            "/v1/auth/recovery",
            users.recovery,
            "Makes a new recovery code.",
            RecoveryCode,
            RecoveryRequest,
            refuses={429: too_many},
        ),
        Route("GET", "/v1/keys", users.keys, "Your API keys.", KeyList),
        Route(
            "POST",
            "/v1/keys",
            users.add_key,
            "Makes an API key.",
            NewKeyObject,
            KeyRequest,
            refuses={404: none, 409: "There are too many."},
        ),
        Route("DELETE", "/v1/keys/{id}", users.revoke_key, "Revokes an API key.", Done, refuses={404: none}),
        Route("GET", "/v1/admin/users", admin.users, "All users.", UserList, admin=True),
        Route(
            "POST",
            "/v1/admin/users",
            admin.add_user,
            "Adds a user.",
            UserObject,
            UserRequest,
            admin=True,
            refuses={404: none, 409: conflict},
        ),
        Route(
            "POST",
            one_user,
            admin.change_user,
            "Changes a user.",
            UserObject,
            UserChangeRequest,
            admin=True,
            refuses={404: none, 409: conflict},
        ),
        Route(
            "DELETE",
            one_user,
            admin.delete_user,
            "Deletes a user and all that was saved.",
            Done,
            admin=True,
            refuses={404: none, 409: conflict},
        ),
        Route(
            "POST",
            f"{one_user}/reset",
            admin.reset_user,
            "Sets a user's password.",
            UserObject,
            ResetRequest,
            admin=True,
            refuses={404: none},
        ),
        Route("GET", "/v1/admin/usage", admin.usage, "What users took.", UsageList, admin=True, query=period),
        Route("GET", "/v1/admin/audit", admin.audit, "Who did what.", AuditList, admin=True, query=rows),
    )


def operator_routes(operator: OperatorRoutes, capacity: CapacityRoutes) -> Sequence[Route]:
    """Returns the routes about the whole service."""
    users = {"users": "How many to serve; 10 by default."}
    return (
        Route(
            "GET",
            "/v1/admin/capacity",
            capacity.capacity,
            "How many users the workers serve, and which machines would.",
            CapacityList,
            admin=True,
            query=users,
        ),
        Route("GET", "/v1/admin/overview", operator.overview, "How the service does now.", Overview, admin=True),
        Route("GET", "/v1/admin/usage/users", operator.usage, "What each user took.", UserUsageList, admin=True),
    )


def memory_routes(memory: MemoryRoutes) -> Sequence[Route]:
    """Returns the routes of users' saved KV pages."""
    one = {"conversation": "The `prompt_cache_key` of the one to forget; without it everything is forgotten."}
    return (
        Route("GET", "/v1/memory", memory.use, "What your saved pages take.", MemoryUse),
        Route(
            "POST",
            "/v1/memory/save",
            memory.save,
            "Saves your pages now.",
            SavedMemory,
            refuses={507: "Some could not be saved: the disk is full, slow or gone, or the quota is less."},
        ),
        Route(
            "DELETE",
            "/v1/memory",
            memory.forget,
            "Destroys the keys of your saved pages, and removes these.",
            ForgottenMemory,
            refuses={400: "There is no such parameter.", 404: "There is no such conversation of yours."},
            query=one,
        ),
    )
