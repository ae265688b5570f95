"""What tests share: made-up data, processes, a browser."""
