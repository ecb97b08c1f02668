"""What changes the values of pixels: colours, tones, filters and warps, on arrays or, if need be, through Pillow."""
