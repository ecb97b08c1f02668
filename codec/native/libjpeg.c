#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "libjpeg.h"

#include "errors.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

/* The JPEG_LIB_VERSION of the loaded libjpeg, which it tells when it is asked for one that does not exist; 0 if it does
   not. */
static int loaded_version(void) {
    struct jpeg_decompress_struct nothing = {0};
    Errors errors;
    nothing.err = errors_init(&errors);
    errors.base.msg_parm.i[0] = 0;
    if (!setjmp(errors.escape)) {
        jpeg_CreateDecompress(&nothing, -1, sizeof nothing);
    }
    return errors.base.msg_parm.i[0];
}

static const char *loaded_path(void) {
    Dl_info found;
    bool known = dladdr((void *)(uintptr_t)jpeg_std_error, &found) && found.dli_fname;
    return known ? found.dli_fname : "an unknown file";
}

PyObject *loaded_libjpeg(void) {
    struct jpeg_error_mgr messages;
    jpeg_std_error(&messages);
    int version = loaded_version();
    if (version != JPEG_LIB_VERSION) {
        return PyErr_Format(PyExc_ImportError, "it was compiled for version %d of libjpeg, and %s is version %d",
                            JPEG_LIB_VERSION, loaded_path(), version);
    }
    const char *const *table = messages.jpeg_message_table;
    /* Errors are told apart by their numbers. */
    if (messages.last_jpeg_message < JMSG_VERSION || !strstr(table[JERR_OUT_OF_MEMORY], "memory")) {
        return PyErr_Format(PyExc_ImportError, "%s numbers its messages in another way than jerror.h", loaded_path());
    }
    return PyUnicode_FromFormat("libjpeg %d (%s; %s), %s", version, table[JMSG_VERSION], table[JMSG_COPYRIGHT],
                                loaded_path());
}
