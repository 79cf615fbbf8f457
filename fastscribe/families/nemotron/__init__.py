"""Nemotron's multilingual models: FastConformer encoders that are told the language to write."""
