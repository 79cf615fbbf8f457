"""Who speaks when, whose voice it is, and how well that is found: all that options about speakers name."""
