/* uses.c - which work used which bytes, and whether that was in order; see memory.h. */
#include <inttypes.h>

#include "memory.h"

/* ---- spans ---------------------------------------------------------------------------- */

static int
refuse_unmapped_locked(uint64_t address)
{
    const fake_block *block = fake_block_at_locked(address);
    (void)fake_violation_locked(
        "address 0x%" PRIx64 " is %s", address,
        block == NULL     ? "a device's, but nobody's: it was freed or never allocated"
        : block->reserved ? "reserved, but not mapped"
                          : "outside every allocation");
    return (int)cudaErrorInvalidValue;
}

static int
check_span_locked(const fake_mapping *mapping, uint64_t address, int device,
                  bool writes)
{
    if (mapping->freed) {
        (void)fake_violation_locked(
            "address 0x%" PRIx64 " was given to cudaFreeAsync before", address);
        return (int)cudaErrorInvalidValue;
    }
    if (!fake_may_use(mapping, device, writes)) {
        (void)fake_violation_locked("device %d has no access to address 0x%" PRIx64
                                    " for %s",
                                    device, address, writes ? "writing" : "reading");
        return (int)cudaErrorInvalidValue;
    }
    return 0;
}

int
fake_add_span_locked(fake_task *task, uint64_t address, size_t size, int device,
                     bool writes)
{
    fake_origin origin = FAKE_OF_VMM;
    for (uint64_t at = address, end = address + size; at < end;) {
        const fake_mapping *mapping = fake_mapping_at_locked(at);
        if (mapping == NULL) {
            if (!fake_is_device_address_locked(at) && at == address) {
                return 0; /* pageable memory of the host */
            }
            return refuse_unmapped_locked(at);
        }
        if (at != address && (origin != FAKE_OF_VMM || mapping->origin != origin)) {
            (void)fake_violation_locked("%zu bytes at 0x%" PRIx64
                                        " run past the end of the allocation",
                                        size, address);
            return (int)cudaErrorInvalidValue;
        }
        origin = mapping->origin;
        int error = check_span_locked(mapping, at, device, writes);
        if (error != 0) {
            return error;
        }
        uint64_t stop = mapping->address + mapping->size;
        stop = stop < end ? stop : end;
        fake_span *span = fake_push(&task->spans, &task->span_count,
                                    &task->span_capacity, sizeof(*span));
        *span = (fake_span){.address = at,
                            .size = (size_t)(stop - at),
                            .mapping = mapping->id,
                            .memory = mapping->memory->id,
                            .device = device,
                            .writes = writes};
        at = stop;
    }
    return 0;
}

/* Does the span's address lead where it led? A page may have been away meanwhile, if it is
 * the same one at the same place again. A block of a pool may have a new owner already:
 * that was judged by the order of streams when work was queued. */
static bool
leads_there(const fake_span *span, const fake_mapping *now)
{
    return now != NULL &&
           (now->id == span->mapping || now->origin == FAKE_OF_POOL ||
            (now->origin == FAKE_OF_VMM && now->memory->id == span->memory));
}

bool
fake_check_spans_locked(const fake_task *task)
{
    for (size_t i = 0; i < task->span_count; i++) {
        const fake_span *span = &task->spans[i];
        const fake_mapping *now = fake_mapping_around_locked(span->address);
        if (leads_there(span, now)) {
            if (span->size == 0 || fake_may_use(now, span->device, span->writes)) {
                continue;
            }
            (void)fake_violation_locked(
                "device %d lost its access to address 0x%" PRIx64
                " before its work ran",
                span->device, span->address);
            return false;
        }
        (void)fake_violation_locked(
            "address 0x%" PRIx64 " is %s when its work was queued or captured",
            span->address,
            now == NULL ? "mapped no longer, but was" : "mapped to other memory than");
        return false;
    }
    return true;
}

/* ---- uses ------------------------------------------------------------------------------- */

static void
forget_use(fake_memory *memory, size_t index)
{
    memory->uses[index] = memory->uses[--memory->use_count];
}

/* Says how an earlier use and this one, which nothing orders, disturb each other. */
static int
report_disorder_locked(const fake_mapping *mapping, const fake_use *earlier,
                       const fake_op *op, const fake_use *use)
{
    if (earlier->mapping == use->mapping) {
        return fake_violation_locked(
            "race: stream %" PRIu64 " %s bytes at 0x%" PRIx64 " that stream %" PRIu64
            " %s, and nothing orders the two",
            op->stream_id, use->writes ? "writes" : "reads",
            mapping->address + (use->begin - mapping->offset), earlier->stream_id,
            earlier->writes ? "writes" : "reads");
    }
    return fake_violation_locked(
        "memory at 0x%" PRIx64 " is used on stream %" PRIu64 " while stream %" PRIu64
        " used it through another mapping, and nothing orders the two",
        mapping->address, op->stream_id, earlier->stream_id);
}

/* A page that was moved under one of them, or has two names, is nobody's as a whole. */
static bool
disturbs(const fake_mapping *mapping, const fake_use *earlier, const fake_use *use)
{
    if (earlier->mapping != use->mapping && mapping->origin == FAKE_OF_VMM) {
        return true;
    }
    return fake_setting.races && (earlier->writes || use->writes) &&
           earlier->begin < use->end && use->begin < earlier->end;
}

/* Does the later use, which is ordered, say all that the earlier one says? */
static bool
covers(const fake_use *earlier, const fake_use *use)
{
    return earlier->mapping == use->mapping && (use->writes || !earlier->writes) &&
           use->begin <= earlier->begin && earlier->end <= use->end;
}

/* FAKE_BROKEN_RULE when an earlier use is disturbed. */
static int
check_use_locked(const fake_op *op, const fake_mapping *mapping, const fake_use *use)
{
    const fake_memory *memory = mapping->memory;
    const fake_op *allocated = mapping->allocated;
    if (allocated != NULL &&
        !fake_is_before_locked(allocated->lane, allocated->number, op)) {
        return fake_violation_locked("0x%" PRIx64 " is used on stream %" PRIu64
                                     ", which nothing orders after its allocation",
                                     mapping->address, op->stream_id);
    }
    for (size_t i = 0; i < memory->use_count; i++) {
        const fake_use *earlier = &memory->uses[i];
        if (disturbs(mapping, earlier, use) &&
            !fake_is_before_locked(earlier->lane, earlier->number, op)) {
            return report_disorder_locked(mapping, earlier, op, use);
        }
    }
    return 0;
}

/* Forgets what is finished, and what the new use stands for, too. */
static void
enter_use_locked(const fake_op *op, fake_memory *memory, const fake_use *use)
{
    for (size_t i = memory->use_count; i-- > 0;) {
        const fake_use *earlier = &memory->uses[i];
        bool known = fake_is_known_locked(earlier->lane, earlier->number);
        bool before = fake_is_before_locked(earlier->lane, earlier->number, op);
        if (known || (before && covers(earlier, use))) {
            forget_use(memory, i);
        }
    }
    fake_use *place = fake_push(&memory->uses, &memory->use_count,
                                &memory->use_capacity, sizeof(*place));
    *place = *use;
}

static fake_use
use_of(const fake_op *op, const fake_mapping *mapping, size_t begin, size_t size,
       bool writes)
{
    return (fake_use){.lane = op->lane,
                      .number = op->number,
                      .stream_id = op->stream_id,
                      .mapping = mapping->id,
                      .begin = begin,
                      .end = begin + size,
                      .writes = writes};
}

/* All are checked before one is entered: work that is refused has used nothing. */
int
fake_note_uses_locked(const fake_op *op)
{
    if (!fake_check_spans_locked(&op->task)) {
        return (int)cudaErrorInvalidValue;
    }
    for (int commit = 0; commit < 2; commit++) {
        for (size_t i = 0; i < op->task.span_count; i++) {
            const fake_span *span = &op->task.spans[i];
            const fake_mapping *mapping = fake_mapping_around_locked(span->address);
            size_t begin = (size_t)(span->address - mapping->address) + mapping->offset;
            fake_use use = use_of(op, mapping, begin, span->size, span->writes);
            int error = commit ? 0 : check_use_locked(op, mapping, &use);
            if (error != 0) {
                return error;
            }
            if (commit) {
                enter_use_locked(op, mapping->memory, &use);
            }
        }
    }
    return 0;
}

int
fake_note_touch_locked(const fake_op *op, const fake_mapping *mapping)
{
    fake_use use = use_of(op, mapping, mapping->offset, 0, false);
    int error = check_use_locked(op, mapping, &use);
    if (error == 0) {
        enter_use_locked(op, mapping->memory, &use);
    }
    return error;
}

int
fake_check_finished_locked(const fake_mapping *mapping, const char *what)
{
    const fake_memory *memory = mapping->memory;
    for (size_t i = 0; i < memory->use_count; i++) {
        const fake_use *use = &memory->uses[i];
        if (use->mapping == mapping->id &&
            !fake_is_known_locked(use->lane, use->number)) {
            return fake_violation_locked("0x%" PRIx64
                                         " is %s, and work on stream %" PRIu64
                                         " that uses it is not known to be finished",
                                         mapping->address, what, use->stream_id);
        }
    }
    return 0;
}

int
fake_check_before_locked(const fake_mapping *mapping, const fake_op *op,
                         const char *what)
{
    const fake_memory *memory = mapping->memory;
    for (size_t i = 0; i < memory->use_count; i++) {
        const fake_use *use = &memory->uses[i];
        if (use->mapping == mapping->id &&
            !fake_is_before_locked(use->lane, use->number, op)) {
            return fake_violation_locked("0x%" PRIx64 " is %s on stream %" PRIu64
                                         ", and nothing orders that after its use on "
                                         "stream %" PRIu64,
                                         mapping->address, what, op->stream_id,
                                         use->stream_id);
        }
    }
    return 0;
}
