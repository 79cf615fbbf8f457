"""Cohere's speech model: Canary's decoder, from folders of transformers."""
