"""Models made of moments: least squares, Gaussian and logistic heads, and personal models."""
