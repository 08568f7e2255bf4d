/* failure.h - what a driver said when a call of it failed, for the words of an error.
 *
 * A gm_status tells a caller what to do; a person wants the driver's own number, name
 * and the call. A backend notes them on its way out, in the thread that made the call,
 * and the Python layer takes them when it words the error. Nothing is decided by them.
 *
 * Thread-safety: one note for each thread. Cost: O(1).
 */
#ifndef GM_DEVICE_FAILURE_H
#define GM_DEVICE_FAILURE_H

#include <stdbool.h>

#include "base/status.h"

typedef struct gm_failure {
    gm_status status; /* that the call answered */
    int code;         /* the driver's number; 0: it has none */
    char name[48];    /* the number's name, such as "cudaErrorIllegalAddress" */
    char call[48];    /* such as "cuMemCreate" */
    char text[256];   /* a sentence */
} gm_failure;

/* The newest failure of this thread. */
void
gm_failure_note(const gm_failure *failure);

/* Takes the note if it is about this status. False: there is none. */
bool
gm_failure_take(gm_status status, gm_failure *out);

#endif
