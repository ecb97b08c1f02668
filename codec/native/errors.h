/* Errors of C code: of three kinds, each of which is one Python exception. */

#ifndef PACKTRAIN_ERRORS_H
#define PACKTRAIN_ERRORS_H

#include <Python.h>

#include <setjmp.h>
#include <stdio.h>
/* First: it defines JPEG_LIB_VERSION, on which the numbers of the messages in jerror.h depend. */
#include <jpeglib.h>

#include <jerror.h>
#ifndef JPEG_LIB_VERSION
#error "jpeglib.h does not say which version of libjpeg it belongs to"
#endif

typedef enum {
    INPUT_ERROR,   /* what the caller gave is wrong: ValueError */
    MEMORY_ERROR,  /* there is not enough memory: MemoryError */
    LIBRARY_ERROR, /* libjpeg does not do what this extension was written for: RuntimeError */
} ErrorKind;

/* Sets a Python exception, for C code that has nothing to do with libjpeg; the message of a MEMORY_ERROR may be NULL.
   Returns NULL. */
PyObject *set_error(ErrorKind kind, const char *message);

/* An error manager that jumps back to its user on errors and on warnings: libjpeg warns where it can only guess what
   damaged data means. */
typedef struct {
    struct jpeg_error_mgr base;
    jmp_buf escape;
    ErrorKind kind;
    char message[JMSG_LENGTH_MAX];
} Errors;

/* Prepares `errors`; returns the value for cinfo.err. */
struct jpeg_error_mgr *errors_init(Errors *errors);

/* Leaves the current libjpeg call with a message of our own; that of a MEMORY_ERROR may be NULL. */
_Noreturn void errors_raise(Errors *errors, ErrorKind kind, const char *message);

/* Sets a Python exception from the error that was last jumped out of. Returns NULL. */
PyObject *errors_set(const Errors *errors);

#endif
