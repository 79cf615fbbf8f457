"""What several families are made of: the features, heads, attention, and the forms of layers for CPUs and GPUs."""
