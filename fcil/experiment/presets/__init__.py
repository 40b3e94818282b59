"""Configurations that come with the package, one TOML each, and how such documents are read."""

from fcil.experiment.presets.documents import preset_names, read_document
from fcil.experiment.presets.listing import LISTED, Listing, listings

__all__ = ["LISTED", "Listing", "listings", "preset_names", "read_document"]
