"""JPEGs and pixels: the C extension, the cut, geometry and decoders. Free of torch."""
