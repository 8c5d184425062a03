from random import Random

import numpy as np

from tests.fake_states import NONE, FakeStatePages, recurrent_hash


def test_what_a_text_gives_does_not_depend_on_its_chunks_and_every_page_counts() -> None:
    random = Random(1)
    for _ in range(200):
        size, length = random.randint(1, 6), random.randint(1, 40)
        text = random.choices(range(9), k=length)
        states, begin, outputs = FakeStatePages(length, size), 0, []
        while begin < length:
            end = random.randint(begin + 1, length)
            table = np.arange(length, dtype=np.int32)
            inner = range(begin // size + (begin % size > 0), end // size - 1)
            table[[index for index in inner if random.random() < 0.7]] = NONE
            outputs += states.compute(table, begin, text[begin:end])
            begin = end
        assert outputs == [recurrent_hash(text[: index + 1], size) for index in range(length)]
        states.spoil([(length - 1) // size])
        if length % size:
            again = states.compute(np.arange(length + 1, dtype=np.int32), length, [5])
            assert again != [recurrent_hash([*text, 5], size)]
