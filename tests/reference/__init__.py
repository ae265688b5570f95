"""The papers' own recursions, written from the papers: references for our results."""
