"""Pure tensor functions: one value per example, the caller reduces; no federation in sight."""
