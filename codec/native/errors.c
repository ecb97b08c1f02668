#include "errors.h"

#include <Python.h>

#include <stdbool.h>
#include <string.h>
#include <jerror.h>

static void escape(j_common_ptr info) {
    Errors *errors = (Errors *)info->err;
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

void errors_raise(Errors *errors, const char *message) {
    errors->base.msg_code = 0;
    strncpy(errors->message, message, sizeof errors->message - 1);
    longjmp(errors->escape, 1);
}

void errors_set(const Errors *errors) {
    bool memory = errors->base.msg_code == JERR_OUT_OF_MEMORY;
    PyErr_SetString(memory ? PyExc_MemoryError : PyExc_ValueError, errors->message);
}
