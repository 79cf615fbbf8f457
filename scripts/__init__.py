"""Tools for those who work on fastscribe. None of them is installed."""
