/* The module packtrain._codec.native._extension. */

#include "functions.h"

#include "coefficient_groups.h"
#include "libjpeg.h"

#include <stdbool.h>
#include <stdio.h>
#include <jpeglib.h>

static PyMethodDef methods[] = {
    {"transcode", transcode, METH_VARARGS, NULL},
    {"cut", cut, METH_VARARGS, NULL},
    {"coefficient_record", coefficient_record, METH_VARARGS, NULL},
    {"coefficients", coefficients, METH_VARARGS, NULL},
    {"decode", decode, METH_VARARGS, NULL},
    {"rgb_to_rgbx", rgb_to_rgbx, METH_VARARGS, NULL},
    {"rgbx_to_rgb", rgbx_to_rgb, METH_VARARGS, NULL},
    {"copy_pixels", copy_pixels, METH_VARARGS, NULL},
    {"copy_records", copy_records, METH_VARARGS, NULL},
    {"lookup", lookup, METH_VARARGS, NULL},
    {"take_rows", take_rows, METH_VARARGS, NULL},
    {"hash_keys", hash_keys, METH_VARARGS, NULL},
    {"has_repeats", has_repeats, METH_O, NULL},
    {"resize_pixels", resize_pixels, METH_VARARGS, NULL},
    {"unfilter", unfilter, METH_VARARGS, NULL},
    {"brighten", brighten, METH_VARARGS, NULL},
    {"contrast", contrast, METH_VARARGS, NULL},
    {"saturate", saturate, METH_VARARGS, NULL},
    {"turn_hues", turn_hues, METH_VARARGS, NULL},
    {"map_values", map_values, METH_VARARGS, NULL},
    {"stretch_values", stretch_values, METH_O, NULL},
    {"equalize_values", equalize_values, METH_O, NULL},
    {"box_blur", box_blur, METH_VARARGS, NULL},
    {"gaussian_blur", gaussian_blur, METH_VARARGS, NULL},
    {"sharpness", sharpness, METH_VARARGS, NULL},
    {"mean_of_images", mean_of_images, METH_VARARGS, NULL},
    {"blend_images", blend_images, METH_VARARGS, NULL},
    {"warp", warp, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

#define TEXT_OF(token) #token
#define TEXT(macro) TEXT_OF(macro)
#ifdef JPEG_C_PARAM_SUPPORTED
#define COMPILED "mozjpeg " TEXT(LIBJPEG_TURBO_VERSION_NUMBER)
#else
#define COMPILED "libjpeg-turbo " TEXT(LIBJPEG_TURBO_VERSION)
#endif

static bool add_text(PyObject *module, const char *name, PyObject *text) {
    bool added = text && PyModule_AddObjectRef(module, name, text) == 0;
    Py_XDECREF(text);
    return added;
}

static int fill(PyObject *module) {
    coefficient_groups_init();
    copy_records_init();
    bool filled = add_text(module, "LIBJPEG", PyUnicode_FromString(COMPILED)) &&
                  add_text(module, "LOADED", loaded_libjpeg());
    return filled ? 0 : -1;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, fill},
#ifdef Py_mod_gil
    /* What a call writes to belongs to it, or is memory that its caller gave it. */
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_extension", .m_methods = methods, .m_slots = slots};

PyMODINIT_FUNC PyInit__extension(void) { return PyModuleDef_Init(&definition); }
