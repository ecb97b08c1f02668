"""Operations on the values of pixels: colours, tones, filters and warps, on arrays or through Pillow."""
