"""Measurements of parts of fastscribe, for those who work on it; what a user measures is `fastscribe bench`."""
