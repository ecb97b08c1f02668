#include "image_pair.h"

#include "arguments.h"
#include "errors.h"

static bool is_image(const Py_buffer *view) {
    return view->ndim == 3 && view->itemsize == 1 && is_side(view->shape[0]) && is_side(view->shape[1]) &&
           (view->shape[2] == 1 || view->shape[2] == 3 || view->shape[2] == 4);
}

bool image_pair_open(ImagePair *pair, PyObject *in, PyObject *out) {
    if (!take_buffer(in, &pair->in, PyBUF_C_CONTIGUOUS, "the image is not contiguous")) {
        return false;
    }
    if (!take_buffer(out, &pair->out, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE, "the output is not contiguous and writable")) {
        PyBuffer_Release(&pair->in);
        return false;
    }
    if (!is_image(&pair->in) || !is_image(&pair->out) || pair->in.shape[2] != pair->out.shape[2]) {
        set_error(INPUT_ERROR, "the image or the output is not height x width x 1, 3 or 4 bytes, or their channels differ");
    } else if (overlaps(&pair->in, &pair->out)) {
        set_error(INPUT_ERROR, "the image and the output overlap");
    } else {
        return true;
    }
    image_pair_close(pair);
    return false;
}

void image_pair_close(ImagePair *pair) {
    PyBuffer_Release(&pair->in);
    PyBuffer_Release(&pair->out);
}

bool image_pair_is_even(const ImagePair *pair) {
    if (pair->in.shape[0] == pair->out.shape[0] && pair->in.shape[1] == pair->out.shape[1] && pair->in.shape[2] != 4) {
        return true;
    }
    return set_error(INPUT_ERROR, "the output has another size than the image, or they have four channels");
}
