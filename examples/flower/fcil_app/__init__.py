"""A Flower app that plays a whole experiment of fcil."""
