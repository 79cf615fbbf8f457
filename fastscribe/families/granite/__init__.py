"""Granite Speech: a conformer whose frames attend inside blocks, with a CTC head."""
