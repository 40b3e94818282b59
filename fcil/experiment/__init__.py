"""One run: configuration, building, checkpoints, result files and the final model."""
