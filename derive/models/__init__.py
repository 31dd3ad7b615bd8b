"""The catalogue: one file a model, physics only."""
