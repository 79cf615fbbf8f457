"""FastConformer encoders (Parakeet, Nemotron, Canary and others), with or without a window of attention."""
