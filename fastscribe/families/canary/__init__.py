"""Canary: an attention decoder on a FastConformer encoder. Cohere's model has the same decoder."""
