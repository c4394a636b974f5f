"""Plan a study, train what is missing, select."""
