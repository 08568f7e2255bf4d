/* address_map.h - from an address to its chunk, for the whole process, without a lock.
 *
 * A two-level table over 48-bit addresses in steps of 2 MiB (GM_MAP_STEP): chunks
 * start and end at such steps. Leaves are made on first use and stay; entries are
 * atomic pointers. It exists so that a free by address can be validated without
 * taking anybody's lock, whichever pool the address is from.
 *
 *     root[addr >> 34]  ->  leaf[(addr >> 21) & 8191]  ->  chunk
 *
 * Chunks are type-stable: gm_chunk_create takes a retired one first, and a retired
 * chunk is never given back to malloc, so that a reader with a stale pointer reads
 * another chunk or an empty one, never freed memory.
 *
 * Thread-safety: gm_address_map_find from any thread without a lock; set and clear
 * take an internal lock (GM_RANK_ADDRESS_MAP). Cost: find O(1); set and clear
 * O(size / 2 MiB).
 */
#ifndef GM_HEAP_ADDRESS_MAP_H
#define GM_HEAP_ADDRESS_MAP_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct gm_chunk gm_chunk;

#define GM_MAP_STEP_BITS 21u
#define GM_MAP_STEP ((size_t)1 << GM_MAP_STEP_BITS)

/* Enters [base, base + size). Pre: both multiples of GM_MAP_STEP, below 2^48.
 * GM_NO_HOST_MEMORY changes nothing; GM_INVALID when part of the range is taken. */
GM_NODISCARD gm_status
gm_address_map_set(uint64_t base, size_t size, gm_chunk *chunk);

/* Removes a range that was set. */
void
gm_address_map_clear(uint64_t base, size_t size);

/* The chunk that covers `address`, or NULL. */
gm_chunk *
gm_address_map_find(uint64_t address);

#endif
