"""Persons: the speakers of many recordings by their voice prints."""
