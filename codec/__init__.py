"""JPEGs and pixels: the C extension, cuts, geometry and decoders. Imports no torch."""
