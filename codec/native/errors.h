/* Errors of libjpeg, as return values and Python exceptions. */

#ifndef PACKTRAIN_ERRORS_H
#define PACKTRAIN_ERRORS_H

#include <setjmp.h>
#include <stdio.h>
#include <jpeglib.h>

/* An error manager that jumps back to its user on errors and on warnings: libjpeg warns where it can only guess what
   damaged data means. */
typedef struct {
    struct jpeg_error_mgr base;
    jmp_buf escape;
    char message[JMSG_LENGTH_MAX];
} Errors;

/* Prepares `errors`; returns the value for cinfo.err. */
struct jpeg_error_mgr *errors_init(Errors *errors);

/* Leaves the current libjpeg call with a message of our own. */
_Noreturn void errors_raise(Errors *errors, const char *message);

/* Sets a Python exception from the error that was last jumped out of. */
void errors_set(const Errors *errors);

#endif
