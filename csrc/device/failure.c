#include "device/failure.h"

static _Thread_local gm_failure newest; /* status GM_OK: none */

void
gm_failure_note(const gm_failure *failure)
{
    newest = *failure;
}

bool
gm_failure_take(gm_status status, gm_failure *out)
{
    bool found = status != GM_OK && newest.status == status;
    if (found) {
        *out = newest;
    }
    newest.status = GM_OK;
    return found;
}
