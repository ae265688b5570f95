"""Methods in closed form, from moments."""
