"""The detectors that learn from augmented images."""
