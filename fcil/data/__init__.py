"""Data sets, scenarios (which client holds which samples, and when), exemplar memory and augmentation."""
