/* handles.h - numbers that stand for the streams and events of a backend.
 *
 * A handle is a serial number and a slot: serial << 20 | slot. Serials are counted for
 * the whole process and never repeat, so a stale handle, or one of another device, is
 * told from every living one by a single comparison. Slots are reused. Nodes live in
 * chunks that stay where they are until the table is destroyed, so a reader without
 * the lock may follow any handle.
 *
 * A node is the owner's struct and starts with a gm_handle_node.
 *
 * Thread-safety: gm_handles_find from any thread without a lock; all others under the
 * owner's. Ownership: the table owns the nodes. Cost: O(1).
 */
#ifndef GM_DEVICE_HANDLES_H
#define GM_DEVICE_HANDLES_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define GM_HANDLE_SLOT_BITS 20
#define GM_HANDLE_CHUNK_BITS 8
#define GM_HANDLE_CHUNKS (1u << (GM_HANDLE_SLOT_BITS - GM_HANDLE_CHUNK_BITS))

/* Handles below this are never made: backends give them meanings of their own. */
#define GM_HANDLE_FIRST ((uint64_t)1 << GM_HANDLE_SLOT_BITS)

typedef struct gm_handle_node {
    _Atomic uint64_t handle; /* 0: the slot is free */
    uint32_t slot;
    uint32_t next_free; /* slot + 1; 0: the last */
} gm_handle_node;

typedef struct gm_handles {
    size_t node_size;    /* bytes */
    uint32_t live;       /* nodes in use */
    uint32_t carved;     /* slots that were ever used */
    uint32_t first_free; /* slot + 1; 0: none */
    _Atomic(char *) chunks[GM_HANDLE_CHUNKS];
} gm_handles;

/* Pre: the struct is zeroed. */
void
gm_handles_init(gm_handles *table, size_t node_size);

void
gm_handles_destroy(gm_handles *table);

/* A node with a new handle, zeroed past its head. GM_NO_HOST_MEMORY, also when 2^20 are
 * live. */
GM_NODISCARD gm_status
gm_handles_take(gm_handles *table, gm_handle_node **out);

/* The handle dies; the slot is reused. */
void
gm_handles_give(gm_handles *table, gm_handle_node *node);

/* The living node of a handle, or NULL. */
gm_handle_node *
gm_handles_find(gm_handles *table, uint64_t handle);

/* Calls `visit` for each living node. Cost: O(slots ever used). */
void
gm_handles_visit(gm_handles *table, void (*visit)(gm_handle_node *node, void *argument),
                 void *argument);

/* The number of the calling thread, from 1 on; never reused within a process. */
uint64_t
gm_thread_number(void);

/* ---- streams with a meaning of their own ----------------------------------------- */

/* The default stream by its other name. */
#define GM_STREAM_LEGACY ((uint64_t)1)

/* Each thread's own default stream. */
#define GM_STREAM_PER_THREAD ((uint64_t)2)

/* What gm_device_ops.stream_identity answers in host and sim devices. No handle has
 * GM_IDENTITY_OF_THREAD. */
uint64_t
gm_handle_stream_identity(uint64_t stream);

#endif
