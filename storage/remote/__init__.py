"""Object stores: the addresses of objects, and those who read and write them."""
