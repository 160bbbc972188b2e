"""Ways to reach models: one package for each kind of model server."""
