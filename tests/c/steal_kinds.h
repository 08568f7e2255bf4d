/* steal_kinds.h - pools that move pages of free blocks, and work that says whether the
 * memory under it was left alone.
 */
#ifndef GM_TESTS_STEAL_KINDS_H
#define GM_TESTS_STEAL_KINDS_H

#include "pool/internal.h"
#include "pool_kinds.h"

/* Without aliasing a page is at one address at a time. */
static inline gm_device *
host_with(size_t capacity, bool aliasing)
{
    gm_host_options options = {.capacity = capacity,
                               .page_size = PAGE,
                               .paging = true,
                               .aliasing = aliasing,
                               .manual_clock = true};
    return open_host(&options);
}

static inline gm_pool *
stealing_pool(gm_device *device, gm_steal_mode steal, size_t limit)
{
    gm_pool_options options = usual_options();
    options.steal = steal;
    options.limit = limit;
    return open_pool(device, &options);
}

static inline gm_block *
take_kind(gm_pool *pool, size_t size, gm_stream stream, gm_arena_kind kind)
{
    gm_request request = {.size = size, .stream = stream, .kind = kind};
    gm_block *block = NULL;
    CHECK_OK(gm_pool_alloc(pool, &request, &block, NULL));
    return block;
}

/* A free block of `size` bytes with new pages, and above it a live one, *guard. */
static inline gm_devptr
leave_hole(gm_pool *pool, size_t size, gm_stream stream, gm_block **guard)
{
    size_t found = stats_of(pool).unplaced_bytes;
    CHECK_OK(gm_pool_reserve(pool, reserved(pool) - found + size + MIB, NULL));
    gm_block *block = take(pool, size, stream);
    gm_devptr address = gm_block_address(block);
    *guard = take(pool, MIB, stream);
    CHECK_EQ(gm_block_address(*guard), address + size);
    gm_pool_free(block);
    return address;
}

/* ---- what lies where ------------------------------------------------------------- */

static inline bool
overlaps(const gm_block *block, gm_devptr address, size_t size)
{
    return gm_block_address(block) < address + size &&
           gm_block_address(block) + gm_block_size(block) > address;
}

static inline gm_slot *
slot_at(const gm_block *block, gm_devptr address)
{
    const gm_chunk *chunk = block->chunk;
    CHECK(address >= chunk->base && address < chunk->base + chunk->size);
    return &chunk->slots[(address - chunk->base) / PAGE];
}

/* The slots of a range of the chunk of `block` that are in a state. */
static inline size_t
count_slots(const gm_block *block, gm_devptr address, size_t size, gm_slot_state state)
{
    size_t count = 0;
    for (size_t at = 0; at < size; at += PAGE) {
        count += slot_at(block, address + at)->state == state;
    }
    return count;
}

static inline uint64_t
calls_of(gm_pool *pool, gm_device_call call)
{
    return counters_of(gm_pool_device(pool)).calls[call];
}

/* ---- work ------------------------------------------------------------------------ */

/* Runs that found something else than they should. */
static _Atomic size_t spoilt;

typedef struct expectation {
    gm_devptr address;
    size_t size;
    unsigned char value;
} expectation;

/* Does all of it hold one value? */
static inline bool
holds(gm_devptr address, size_t size, unsigned char value)
{
    const unsigned char *bytes = gm_device_host_pointer(address);
    return bytes[0] == value && memcmp(bytes, bytes + 1, size - 1) == 0;
}

static inline void
run_expectation(const void *argument)
{
    const expectation *self = argument;
    spoilt += !holds(self->address, self->size, self->value);
}

/* Queues a write of all of a block. */
static inline void
write_later(gm_block *block, unsigned char value, gm_stream stream)
{
    gm_device *device = gm_fault_inner(gm_pool_device(gm_block_pool(block)));
    CHECK_OK(device->ops->fill_async(device, gm_block_address(block), &value, 1,
                                     gm_block_size(block), stream));
}

/* Queues a look at it, which counts in `spoilt` if anything else lies there then. */
static inline void
expect_later(gm_block *block, unsigned char value, gm_stream stream)
{
    static const gm_kernel kernel = {.name = "expect", .run_on_host = run_expectation};
    gm_device *device = gm_fault_inner(gm_pool_device(gm_block_pool(block)));
    expectation arguments = {.address = gm_block_address(block),
                             .size = gm_block_size(block),
                             .value = value};
    CHECK_OK(
        device->ops->launch(device, &kernel, &arguments, sizeof(arguments), stream));
}

/* A block that is written, read again at its end and freed in between, as a program on
 * a stream does that runs ahead of it. */
static inline void
use_and_free(gm_block *block, unsigned char value, gm_stream stream)
{
    write_later(block, value, stream);
    expect_later(block, value, stream);
    gm_pool_free(block);
}

#endif
