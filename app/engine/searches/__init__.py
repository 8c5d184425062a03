"""Beam search and contrastive search: one request, several sequences."""
