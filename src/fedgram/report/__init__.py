"""Reports of results: tables, charts, and one page."""
