"""What turns samples into features: networks by name, files, or the user's own."""
