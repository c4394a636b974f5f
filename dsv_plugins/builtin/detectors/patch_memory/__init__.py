"""The detector `patch-memory`: how far each patch of an image is from the patches of good images."""
