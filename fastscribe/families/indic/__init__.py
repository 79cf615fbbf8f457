"""IndicConformer: outputs of its own for each language."""
