"""What detectors are made of: a training loop, densities, files, and a base class for Lightning."""
