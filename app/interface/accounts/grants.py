"""What a request may do with its user's saved pages, from who the user is and which conversation it goes on with."""

from app.messages.accounts import ConversationKey, Identity
from app.messages.memory import MemoryGrant


def memory_grant(identity: Identity, conversation: ConversationKey, *, shared_tokens: int, save: bool) -> MemoryGrant:
    """identity and conversation: of the same credential, from the accounts.

    shared_tokens: tokens of system prompt and tools at the beginning of the prompt. save: whether new pages may be
    saved; a user whose limit is 0 bytes saves none.
    """
    pages = identity.pages
    return MemoryGrant(
        owner=pages.owner,
        names_key=pages.names_key,
        conversation_key=conversation.key,
        shared_key=pages.shared_key,
        conversation_key_id=conversation.key_id,
        shared_key_id=pages.shared_key_id,
        shared_tokens=shared_tokens,
        save=save and identity.limits.memory_bytes != 0,
    )
