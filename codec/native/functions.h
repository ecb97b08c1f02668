/* The functions of the module. `Extension` in __init__.py says what each of them does. */

#ifndef PACKTRAIN_FUNCTIONS_H
#define PACKTRAIN_FUNCTIONS_H

#include <Python.h>

PyObject *transcode(PyObject *module, PyObject *args);
PyObject *cut(PyObject *module, PyObject *args);
PyObject *coefficient_record(PyObject *module, PyObject *args);
PyObject *coefficients(PyObject *module, PyObject *args);
PyObject *decode(PyObject *module, PyObject *args);
PyObject *rgb_to_rgbx(PyObject *module, PyObject *args);
PyObject *rgbx_to_rgb(PyObject *module, PyObject *args);
PyObject *copy_pixels(PyObject *module, PyObject *args);
PyObject *copy_records(PyObject *module, PyObject *args);
PyObject *lookup(PyObject *module, PyObject *args);
PyObject *take_rows(PyObject *module, PyObject *args);
PyObject *hash_keys(PyObject *module, PyObject *args);
PyObject *has_repeats(PyObject *module, PyObject *array);
PyObject *resize_pixels(PyObject *module, PyObject *args);
PyObject *unfilter(PyObject *module, PyObject *args);
PyObject *brighten(PyObject *module, PyObject *args);
PyObject *contrast(PyObject *module, PyObject *args);
PyObject *saturate(PyObject *module, PyObject *args);
PyObject *turn_hues(PyObject *module, PyObject *args);
PyObject *map_values(PyObject *module, PyObject *args);
PyObject *stretch_values(PyObject *module, PyObject *array);
PyObject *equalize_values(PyObject *module, PyObject *array);
PyObject *box_blur(PyObject *module, PyObject *args);
PyObject *gaussian_blur(PyObject *module, PyObject *args);
PyObject *sharpness(PyObject *module, PyObject *args);
PyObject *mean_of_images(PyObject *module, PyObject *args);
PyObject *blend_images(PyObject *module, PyObject *args);
PyObject *warp(PyObject *module, PyObject *args);

/* The JPEG of what a rectangle needs of a coefficient record, and where that begins, as `cut` returns it. */
PyObject *transcode_part(const Py_buffer *record, const int box[4]);

/* Prepares the tables of copy_records; call it once, before the first copy_records. */
void copy_records_init(void);

#endif
