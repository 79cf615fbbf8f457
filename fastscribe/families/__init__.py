"""The model families, one folder each: config, modules, names of tensors, readers. registry.py is the table of them."""
