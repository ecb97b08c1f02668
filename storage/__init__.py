"""Files on this machine and objects elsewhere: how they are read and written, and the local copies of them."""
