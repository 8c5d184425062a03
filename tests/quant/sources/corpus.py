"""Texts on which tokenizers disagree: code, emoji, scripts, blanks, numbers, contractions, control characters."""

import random

TEXTS: tuple[str, ...] = (
    "",
    " ",
    "   ",
    "\n",
    "\n\n\n",
    "\r\n\r\n",
    "\t\tif x:\r\n\t\t\treturn\n",
    "Hello, world!",
    " leading and trailing ",
    "two  spaces   three    four     x",
    "a  12 b   345    6",
    "\n   7\n\n  8",
    "1234567890 3.14159 1,000,000 0x1F 1e-10 2024-02-29T12:34:56Z",
    "٣٤٥ ४५६ ½ ² Ⅷ 一二三 ①",
    "I'm you're he'd we'll they've it's 'tis rock'n'roll don'T I'LL O'Neil 's't're",
    "def f(a, b=1, *args, **kw) -> int:\n    return a ** b  # comment\n\n\nclass A:\n\tpass\n",
    "for (int i = 0; i < n; ++i) { x[i] += y[i] * 2.5f; } // €",
    "SELECT * FROM t WHERE a >= 10 AND b <> 'x''y';",
    '<div class="a">\n  <p>&nbsp;</p>\n</div>',
    '{"key": [1, 2.0, null, true], "é": "\\u00e9"}',
    "https://example.com/a?b=c&d=%20#frag user@example.com",
    "👋🏽 👨‍👩‍👧‍👦 🇩🇪 🏳️‍🌈 ❤️‍🔥 ☺︎ 🧑🏿‍🚀",
    "日本語のテキスト。中文文本，標點！한국어 텍스트 ไทย",
    "नमस्ते दुनिया العربية עברית Ελληνικά Русский",
    "café cafe\u0301 ﬁ ß İ ı ǅ Å A\u030a",
    "zero\u200bwidth\u200djoin\u2060er \ufeffbom nbsp\u00a0em\u2003space\u3000ideographic",
    "\x00\x01\x1b[31mred\x1b[0m\x7f\x85",
    "line\u2028separator\u2029paragraph\x0bvt\x0cff",
    "mixed\r\nnew\nlines\rhere\n\r\n",
    "trailing spaces   \nnext\t \n",
    "…—–‘’“”«»¿¡§¶†‡•‰",
    "!!!??? ... ---- ==== ####  ~~~ \\\\ // || && ^^",
    "ThisIsCamelCase snake_case kebab-case SCREAMING_CASE iPhone15Pro",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "𝕳𝖊𝖑𝖑𝖔 𝟙𝟚𝟛 🅰🅱 ｆｕｌｌｗｉｄｔｈ １２３",
    "▁ underline ▁▁ Ġ Ċ ĉ",
    "<0x0A> <unk> <s> </s> [INST] [/INST]",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "text<|endoftext|>more <|im_end|> <|im_end |> <|im_start|><|im_start|>",
)

_ALPHABET = "ab Z  \n\t\r09١½'’.,!-_(é\u0301ñß中文日あ한👍🏽\u200d❤️\u00a0\u3000\u2028<|>im_end▁Ġ\x00"


def random_texts(count: int) -> list[str]:
    """Texts of random characters from a nasty alphabet."""
    generator = random.Random(20)
    return ["".join(generator.choices(_ALPHABET, k=generator.randint(1, 60))) for _ in range(count)]
