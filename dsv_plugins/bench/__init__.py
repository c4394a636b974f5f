"""Labelled evaluation: what selections are worth. The only package that knows labels; selection never sees them."""
