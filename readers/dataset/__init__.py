"""Map-style datasets over packed records."""
