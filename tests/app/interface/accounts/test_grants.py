from dataclasses import replace

import pytest

from app.interface.accounts.grants import memory_grant
from app.messages.accounts import ConversationKey, Identity, PageKeys, UserLimits

PAGES = PageKeys("0" * 32, b"n" * 32, b"s" * 32, b"i" * 16)
ANN = Identity("ann", "ann", "user", "c", "api_key", None, UserLimits(), PAGES)
CONVERSATION = ConversationKey("conversation", b"c" * 32, b"j" * 16)


def test_a_grant_has_the_users_keys_and_the_conversations() -> None:
    grant = memory_grant(ANN, CONVERSATION, shared_tokens=40, save=True)
    assert (grant.owner, grant.names_key) == ("0" * 32, b"n" * 32)
    assert (grant.conversation_key, grant.conversation_key_id) == (b"c" * 32, b"j" * 16)
    assert (grant.shared_key, grant.shared_key_id, grant.shared_tokens, grant.save) == (b"s" * 32, b"i" * 16, 40, True)
    assert not any(key in repr(grant) for key in ("nnn", "ccc", "sss"))


@pytest.mark.parametrize(
    ("bytes_", "save", "saves"), [(None, True, True), (1, True, True), (0, True, False), (None, False, False)]
)
def test_who_may_save(bytes_: int | None, save: bool, saves: bool) -> None:
    user = replace(ANN, limits=UserLimits(memory_bytes=bytes_))
    assert memory_grant(user, CONVERSATION, shared_tokens=0, save=save).save is saves
