"""Training code of the small FPA test models: operator, decoder, data, export."""
