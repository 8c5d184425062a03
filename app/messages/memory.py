"""What a request may do with saved pages: the joint between the accounts, which grant it, and the workers."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class MemoryGrant:
    """What a request may do with its user's saved pages. Comes from the accounts, never from a request's fields."""

    owner: str  # folder of the user's pages: 32 hex digits, HMAC-SHA256(KEK, user id) cut to 16 bytes
    names_key: bytes = field(repr=False)  # 32 bytes: HKDF(UMK, "names"): page names begin from it
    conversation_key: bytes = field(repr=False)  # 32 bytes: CK of the conversation
    shared_key: bytes = field(repr=False)  # 32 bytes: SK of the user, for pages wholly inside the first shared_tokens
    conversation_key_id: bytes  # 16 bytes, in a page's header
    shared_key_id: bytes  # 16 bytes
    shared_tokens: int  # tokens of system prompt and tools at the beginning of the prompt
    save: bool  # whether new pages may be saved
