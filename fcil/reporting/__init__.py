"""What a run leaves behind: records, metrics, the final model, tables and curves."""
