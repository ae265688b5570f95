"""A user's own data: tables, arrays, images."""
