"""Times of the words of known texts: forced alignment, for `fastscribe align` and --align-with."""
