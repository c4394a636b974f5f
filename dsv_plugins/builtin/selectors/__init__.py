"""The losses that rank candidates without labels."""
