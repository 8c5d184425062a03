"""Between text and tokens: chat template, control tokens, tokenizer, detokenizer."""
