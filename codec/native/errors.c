#include "errors.h"

#include <stdbool.h>

static ErrorKind kind_of(int code) {
    switch (code) {
    case JERR_OUT_OF_MEMORY:
    case JERR_NO_BACKING_STORE:
        return MEMORY_ERROR;
    case JERR_BAD_ALIGN_TYPE:
    case JERR_BAD_ALLOC_CHUNK:
    case JERR_BAD_BUFFER_MODE:
    case JERR_BAD_LIB_VERSION:
    case JERR_BAD_POOL_ID:
    case JERR_BAD_STATE:
    case JERR_BAD_STRUCT_SIZE:
    case JERR_BAD_VIRTUAL_ACCESS:
    case JERR_BUFFER_SIZE:
    case JERR_CANT_SUSPEND:
    case JERR_VIRTUAL_BUG:
        return LIBRARY_ERROR;
    default:
        return INPUT_ERROR;
    }
}

static void escape(j_common_ptr info) {
    Errors *errors = (Errors *)info->err;
    errors->kind = kind_of(errors->base.msg_code);
    errors->base.format_message(info, errors->message);
    longjmp(errors->escape, 1);
}

static void emit(j_common_ptr info, int level) {
    if (level < 0) {
        escape(info);
    }
}

struct jpeg_error_mgr *errors_init(Errors *errors) {
    jpeg_std_error(&errors->base);
    errors->base.error_exit = escape;
    errors->base.emit_message = emit;
    return &errors->base;
}

void errors_raise(Errors *errors, ErrorKind kind, const char *message) {
    errors->kind = kind;
    snprintf(errors->message, sizeof errors->message, "%s", message ? message : "");
    longjmp(errors->escape, 1);
}

PyObject *errors_set(const Errors *errors) { return set_error(errors->kind, errors->message); }

PyObject *set_error(ErrorKind kind, const char *message) {
    PyObject *const exceptions[] = {
        [INPUT_ERROR] = PyExc_ValueError,
        [MEMORY_ERROR] = PyExc_MemoryError,
        [LIBRARY_ERROR] = PyExc_RuntimeError,
    };
    if (message && *message) {
        PyErr_SetString(exceptions[kind], message);
    } else {
        PyErr_SetNone(exceptions[kind]);
    }
    return NULL;
}
