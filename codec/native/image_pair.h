/* The images that a function reads and writes. */

#ifndef PACKTRAIN_IMAGE_PAIR_H
#define PACKTRAIN_IMAGE_PAIR_H

#include <Python.h>

#include <stdbool.h>

/* Two images of bytes, contiguous and apart from each other, with the same number of channels: 1, 3 or 4. */
typedef struct {
    Py_buffer in, out;
} ImagePair;

/* Opens both; false with a Python exception if they are not as above. */
bool image_pair_open(ImagePair *pair, PyObject *in, PyObject *out);
void image_pair_close(ImagePair *pair);

/* Whether both images have the same size and no alpha channel; sets a Python exception if not. */
bool image_pair_is_even(const ImagePair *pair);

#endif
