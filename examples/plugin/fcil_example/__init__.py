"""One member of each kind for fcil, a file each."""
