/* The module packtrain._codec.native._extension. */

#include "functions.h"

#include <stdio.h>
#include <jpeglib.h>

static PyMethodDef methods[] = {
    {"transcode", transcode, METH_VARARGS, NULL},
    {"cut", cut, METH_VARARGS, NULL},
    {"decode", decode, METH_VARARGS, NULL},
    {"rgb_to_rgbx", rgb_to_rgbx, METH_VARARGS, NULL},
    {"rgbx_to_rgb", rgbx_to_rgb, METH_VARARGS, NULL},
    {"copy_pixels", copy_pixels, METH_VARARGS, NULL},
    {"copy_records", copy_records, METH_VARARGS, NULL},
    {"resize_pixels", resize_pixels, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_extension", NULL, 0, methods, NULL, NULL, NULL, NULL};

#define TEXT_OF(token) #token
#define TEXT(macro) TEXT_OF(macro)

PyMODINIT_FUNC PyInit__extension(void) {
    copy_records_init();
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddStringConstant(module, "LIBJPEG", "libjpeg-turbo " TEXT(LIBJPEG_TURBO_VERSION)) < 0) {
        Py_CLEAR(module);
    }
    return module;
}
