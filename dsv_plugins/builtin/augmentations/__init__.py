"""The augmentations of the paper."""
