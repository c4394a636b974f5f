"""What a plugin may add, and how it is found."""
