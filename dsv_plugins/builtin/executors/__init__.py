"""Where trainings run on one machine."""
