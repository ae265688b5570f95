"""The papers' own recursions, written from the papers: what our results are compared with."""
