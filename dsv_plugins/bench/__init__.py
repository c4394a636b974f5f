"""Evaluation with labels: the AUC of what selectors choose. Only this package reads labels; no selector sees them."""
