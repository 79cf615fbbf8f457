"""What the reference implementations make of small models, for tests/data: see __main__.py."""
