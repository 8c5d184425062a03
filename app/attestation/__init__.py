"""Proves to a client which machine it talks to, before the client sends a word: the server's half of `verify/`.

A statement says what runs here and with which TLS key; a quote of the processor signs its digest. A front ends TLS
inside the trust domain.
"""
