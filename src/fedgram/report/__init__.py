"""What results look like: tables, charts, and one page."""
