#include "base/status.h"

static const char *const status_names[] = {
#define GM_STATUS_NAME(constant, name, text) name,
    GM_STATUS_MAP(GM_STATUS_NAME)
#undef GM_STATUS_NAME
};

static const char *const status_texts[] = {
#define GM_STATUS_TEXT(constant, name, text) text,
    GM_STATUS_MAP(GM_STATUS_TEXT)
#undef GM_STATUS_TEXT
};

_Static_assert(sizeof(status_names) / sizeof(status_names[0]) == GM_STATUS_COUNT,
               "one name for each status");

const char *
gm_status_name(gm_status status)
{
    if ((unsigned)status >= GM_STATUS_COUNT) {
        return "unknown status";
    }
    return status_names[status];
}

const char *
gm_status_text(gm_status status)
{
    if ((unsigned)status >= GM_STATUS_COUNT) {
        return "unknown status";
    }
    return status_texts[status];
}
