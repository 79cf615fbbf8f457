"""scripts/gpu_check: what it measures on a GPU, in which order, and what its results say."""
