"""What is made of moments: Gaussian and logistic heads, and a client's own model from them."""
