"""Converts between text and tokens: chat template, control tokens, tokenizer, detokenizer."""
