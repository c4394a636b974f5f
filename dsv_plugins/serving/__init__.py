"""Judges images as they come: over HTTP, or from a folder."""
