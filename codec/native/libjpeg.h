/* Which libjpeg is loaded. It need not be the one whose headers the extension was compiled with. */

#ifndef PACKTRAIN_LIBJPEG_H
#define PACKTRAIN_LIBJPEG_H

#include <Python.h>

/* What the loaded libjpeg says of itself, and where it lies, as a str. NULL and an ImportError if it is not compatible
   with the headers. */
PyObject *loaded_libjpeg(void);

#endif
