/* capi.h - which pools the exported C functions (include/gpumem.h) act on.
 *
 * A small table of the process: kind of device, and one default pool for each index.
 * The Python layer fills it when it makes a default pool; until then the exported
 * functions refuse, and count that.
 *
 * Thread-safety: every function, from any thread; one lock of rank GM_RANK_REGISTRY
 * that is never held during a call of a pool. Ownership: the table holds one reference
 * on each pool. Fork: a child starts with an empty table.
 */
#ifndef GM_CAPI_CAPI_H
#define GM_CAPI_CAPI_H

#include "base/status.h"
#include "pool/pool.h"

/* Device indexes from 0 to this one less can have a default pool. */
#define GM_CAPI_DEVICES 64

/* From now on the functions act on devices of this kind. A change empties the table. */
void
gm_capi_set_kind(gm_device_kind kind);

gm_device_kind
gm_capi_kind(void);

/* Makes `pool` (retained; NULL: none) the default pool of device `index`. GM_INVALID for
 * an index outside the table, or a pool on a device of another kind. */
GM_NODISCARD gm_status
gm_capi_set_pool(int index, gm_pool *pool);

#endif
