"""What programs call: the names that `fcil` itself has, one module for each group of them."""
