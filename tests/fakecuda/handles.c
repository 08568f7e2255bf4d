/* handles.c - the numbers that programs hold in place of objects, and host memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

/* A handle is BASE + its kind and slot. It points nowhere, so that a program that looks
 * behind it ends at once. */
#define BASE ((uint64_t)0x5a << 32)
#define KIND_SHIFT 28
#define SLOT_SHIFT 4

typedef struct fake_table {
    void **objects; /* by slot; NULL: the slot is free */
    size_t count, capacity;
    uint32_t *vacant; /* slots that were given back; the last one goes out first */
    size_t vacant_count, vacant_capacity;
} fake_table;

static fake_table tables[FAKE_KINDS];

static const char *const kind_names[FAKE_KINDS] = {
    "stream",        "event",   "graph",  "executable graph", "memory pool",
    "memory handle", "context", "module", "function",
};

void *
fake_handle_make_locked(fake_kind kind, void *object)
{
    fake_table *table = &tables[kind];
    size_t slot;
    if (table->vacant_count > 0) {
        slot = table->vacant[--table->vacant_count];
    }
    else {
        slot = table->count;
        (void)fake_push(&table->objects, &table->count, &table->capacity,
                        sizeof(void *));
    }
    table->objects[slot] = object;
    return (void *)(uintptr_t)(BASE | (uint64_t)kind << KIND_SHIFT |
                               (uint64_t)(slot + 1) << SLOT_SHIFT);
}

/* The slot of a handle, or SIZE_MAX: it is no handle of this kind. */
static size_t
slot_of(fake_kind kind, const void *handle)
{
    uint64_t number =
        (uint64_t)(uintptr_t)handle - (BASE | (uint64_t)kind << KIND_SHIFT);
    size_t slot = (size_t)(number >> SLOT_SHIFT) - 1;
    bool whole = number % (1u << SLOT_SHIFT) == 0;
    return whole && slot < tables[kind].count ? slot : SIZE_MAX;
}

void *
fake_handle_find_locked(fake_kind kind, const void *handle)
{
    size_t slot = slot_of(kind, handle);
    return slot == SIZE_MAX ? NULL : tables[kind].objects[slot];
}

void *
fake_handle_need_locked(fake_kind kind, const void *handle, int *error)
{
    void *object = fake_handle_find_locked(kind, handle);
    if (object == NULL) {
        (void)fake_violation_locked(
            slot_of(kind, handle) == SIZE_MAX ? "%p is no %s" : "%p is a destroyed %s",
            handle, kind_names[kind]);
        *error = (int)cudaErrorInvalidResourceHandle;
    }
    return object;
}

void
fake_handle_drop_locked(fake_kind kind, const void *handle)
{
    fake_table *table = &tables[kind];
    size_t slot = slot_of(kind, handle);
    table->objects[slot] = NULL;
    uint32_t *vacant = fake_push(&table->vacant, &table->vacant_count,
                                 &table->vacant_capacity, sizeof(*vacant));
    *vacant = (uint32_t)slot;
}

size_t
fake_handle_count_locked(fake_kind kind)
{
    return tables[kind].count - tables[kind].vacant_count;
}

void *
fake_handle_at_locked(fake_kind kind, size_t n)
{
    for (size_t slot = 0; slot < tables[kind].count; slot++) {
        if (tables[kind].objects[slot] != NULL && n-- == 0) {
            return tables[kind].objects[slot];
        }
    }
    return NULL;
}

void
fake_handles_reset_locked(void)
{
    for (int kind = 0; kind < FAKE_KINDS; kind++) {
        tables[kind].count = 0;
        tables[kind].vacant_count = 0;
    }
}

/* ---- host memory ------------------------------------------------------------------- */

_Noreturn static void
end_without_memory(void)
{
    (void)fputs("fakecuda: out of host memory\n", stderr);
    abort();
}

void *
fake_allocate(size_t size)
{
    void *memory = calloc(1, size);
    if (memory == NULL) {
        end_without_memory();
    }
    return memory;
}

void *
fake_grow(void *memory, size_t size)
{
    memory = realloc(memory, size);
    if (memory == NULL) {
        end_without_memory();
    }
    return memory;
}

void *
fake_push(void *array_pointer, size_t *count, size_t *capacity, size_t size)
{
    void *array;
    memcpy(&array, array_pointer, sizeof(array));
    if (*count == *capacity) {
        *capacity = *capacity == 0 ? 8 : *capacity * 2;
        array = fake_grow(array, *capacity * size);
        memcpy(array_pointer, &array, sizeof(array));
    }
    char *place = (char *)array + (*count)++ * size;
    memset(place, 0, size);
    return place;
}
