"""What checks of a user's own environment or algorithm share."""
