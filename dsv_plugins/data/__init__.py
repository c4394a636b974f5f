"""Image files to arrays of pixels, and whether test images look like train images."""
