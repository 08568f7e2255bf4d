#include "device/handles.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "device/device.h"

#define CHUNK_NODES (1u << GM_HANDLE_CHUNK_BITS)
#define SLOT_LIMIT (1u << GM_HANDLE_SLOT_BITS)

static _Atomic uint64_t next_serial = 1;
static _Atomic uint64_t next_thread = 1;

void
gm_handles_init(gm_handles *table, size_t node_size)
{
    table->node_size = (node_size + 15) & ~(size_t)15;
}

void
gm_handles_destroy(gm_handles *table)
{
    for (uint32_t i = 0; i < GM_HANDLE_CHUNKS; i++) {
        char *chunk = atomic_load_explicit(&table->chunks[i], memory_order_relaxed);
        if (chunk == NULL) {
            break;
        }
        free(chunk);
        atomic_store_explicit(&table->chunks[i], NULL, memory_order_relaxed);
    }
    table->live = 0;
    table->carved = 0;
    table->first_free = 0;
}

/* NULL when the slot's chunk was never made. */
static gm_handle_node *
node_at(gm_handles *table, uint32_t slot)
{
    char *chunk = atomic_load_explicit(&table->chunks[slot >> GM_HANDLE_CHUNK_BITS],
                                       memory_order_acquire);
    if (chunk == NULL) {
        return NULL;
    }
    size_t offset = (size_t)(slot & (CHUNK_NODES - 1)) * table->node_size;
    return (gm_handle_node *)(void *)(chunk + offset);
}

static gm_status
add_chunk(gm_handles *table, uint32_t slot)
{
    char *chunk = calloc(CHUNK_NODES, table->node_size);
    if (chunk == NULL) {
        return GM_NO_HOST_MEMORY;
    }
    atomic_store_explicit(&table->chunks[slot >> GM_HANDLE_CHUNK_BITS], chunk,
                          memory_order_release);
    return GM_OK;
}

gm_status
gm_handles_take(gm_handles *table, gm_handle_node **out)
{
    uint32_t slot;
    gm_handle_node *node;
    if (table->first_free != 0) {
        slot = table->first_free - 1;
        node = node_at(table, slot);
        table->first_free = node->next_free;
    }
    else {
        slot = table->carved;
        if (slot == SLOT_LIMIT) {
            return GM_NO_HOST_MEMORY;
        }
        if ((slot & (CHUNK_NODES - 1)) == 0) {
            GM_TRY(add_chunk(table, slot));
        }
        node = node_at(table, slot);
        table->carved++;
    }
    memset((char *)node + sizeof(*node), 0, table->node_size - sizeof(*node));
    uint64_t serial = atomic_fetch_add_explicit(&next_serial, 1, memory_order_relaxed);
    node->slot = slot;
    node->next_free = 0;
    atomic_store_explicit(&node->handle, serial << GM_HANDLE_SLOT_BITS | slot,
                          memory_order_release);
    table->live++;
    *out = node;
    return GM_OK;
}

void
gm_handles_give(gm_handles *table, gm_handle_node *node)
{
    GM_ASSERT(table->live > 0);
    atomic_store_explicit(&node->handle, 0, memory_order_release);
    node->next_free = table->first_free;
    table->first_free = node->slot + 1;
    table->live--;
}

gm_handle_node *
gm_handles_find(gm_handles *table, uint64_t handle)
{
    if (handle < GM_HANDLE_FIRST) {
        return NULL;
    }
    gm_handle_node *node = node_at(table, (uint32_t)(handle & (SLOT_LIMIT - 1)));
    if (node == NULL ||
        atomic_load_explicit(&node->handle, memory_order_acquire) != handle) {
        return NULL;
    }
    return node;
}

void
gm_handles_visit(gm_handles *table, void (*visit)(gm_handle_node *node, void *argument),
                 void *argument)
{
    for (uint32_t slot = 0; slot < table->carved; slot++) {
        gm_handle_node *node = node_at(table, slot);
        if (atomic_load_explicit(&node->handle, memory_order_relaxed) != 0) {
            visit(node, argument);
        }
    }
}

uint64_t
gm_thread_number(void)
{
    static _Thread_local uint64_t number;
    if (number == 0) {
        number = atomic_fetch_add_explicit(&next_thread, 1, memory_order_relaxed);
    }
    return number;
}

uint64_t
gm_handle_stream_identity(uint64_t stream)
{
    if (stream == GM_STREAM_LEGACY) {
        return 0;
    }
    if (stream == GM_STREAM_PER_THREAD) {
        return GM_IDENTITY_OF_THREAD | gm_thread_number();
    }
    return stream;
}
