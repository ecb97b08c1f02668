/* The segment in which a crop-ready record has its table of restart intervals. docs/format-records.md specifies it. */

#ifndef PACKTRAIN_INTERVAL_TABLE_H
#define PACKTRAIN_INTERVAL_TABLE_H

#define TABLE_MARKER 0xe9      /* APP9 */
#define TABLE_NAME "packtrain" /* with its final zero */
#define TABLE_HEADER 28        /* bytes before the first entry */

#endif
