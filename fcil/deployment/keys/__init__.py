"""Keys and certificates: making, storing, checking and using them."""
