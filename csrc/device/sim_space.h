/* sim_space.h - the address space that all sim devices of the process share.
 *
 * One address belongs to one device at most, as with unified addressing: whoever is
 * given an address can tell whose it is. The space is cut into regions; a sim device
 * claims the lowest free ones when it needs them, and they are its own until it has
 * given all its addresses back or is closed. So a device that is alone has the same
 * addresses in each run, and one beside others has them at the same distances, up to a
 * region.
 *
 * The space ends below the topmost TiB of 47 bits, where the system puts the memory of
 * host devices.
 *
 * Thread-safety: an internal lock (GM_RANK_SHARED). In a child of fork no region is
 * claimed: the devices of the parent are dead there. Cost: O(number of regions).
 */
#ifndef GM_DEVICE_SIM_SPACE_H
#define GM_DEVICE_SIM_SPACE_H

#include <stdbool.h>
#include <stdint.h>

#include "device/intervals.h"

#define GM_SIM_SPACE_BASE ((uint64_t)1 << 40)
#define GM_SIM_SPACE_END ((uint64_t)127 << 40)
#define GM_SIM_REGION ((uint64_t)1 << 38)
#define GM_SIM_REGIONS \
    ((unsigned)((GM_SIM_SPACE_END - GM_SIM_SPACE_BASE) / GM_SIM_REGION))

/* Claims for `owner` the lowest run of free regions that has room for `size` bytes at
 * `alignment` (a power of two), counting the owner's free ranges `holes` next to it.
 * GM_NO_ADDRESS when there is none. */
GM_NODISCARD gm_status
gm_sim_space_claim(const void *owner, const gm_intervals *holes, uint64_t size,
                   uint64_t alignment, gm_interval *out);

/* All regions of `owner` are free again. */
void
gm_sim_space_release(const void *owner);

#endif
