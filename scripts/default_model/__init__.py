"""Scripts that make the packaged model, fastscribe/default_model: python -m scripts.default_model.NAME."""
