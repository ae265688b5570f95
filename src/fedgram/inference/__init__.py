"""Statistical inference on plain arrays: regression tables from sums, without the federated machinery."""
