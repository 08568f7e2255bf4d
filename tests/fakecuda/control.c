/* control.c - what tests set and ask; see fakecuda.h. */
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "capture.h"
#include "context.h"
#include "events.h"
#include "graphs.h"
#include "kernels.h"
#include "memory.h"
#include "pools.h"
#include "work.h"

/* ---- settings --------------------------------------------------------------------------------- */

static void
for_devices_locked(int device, void (*change)(fake_device *, size_t), size_t value)
{
    for (int i = 0; i < FAKE_MAX_DEVICES; i++) {
        if (device < 0 || device == i) {
            change(&fake_devices[i], value);
        }
    }
}

static void
change_capacity(fake_device *device, size_t bytes)
{
    device->capacity = bytes;
}

static void
change_occupied(fake_device *device, size_t bytes)
{
    device->occupied = bytes;
}

void
fakecuda_set_capacity(int device, size_t bytes)
{
    pthread_mutex_lock(&fake_lock);
    for_devices_locked(device, change_capacity, bytes);
    pthread_mutex_unlock(&fake_lock);
}

void
fakecuda_occupy(int device, size_t bytes)
{
    pthread_mutex_lock(&fake_lock);
    for_devices_locked(device, change_occupied, bytes);
    pthread_mutex_unlock(&fake_lock);
}

void
fakecuda_lose_device(int device, int error)
{
    pthread_mutex_lock(&fake_lock);
    for (int i = 0; i < FAKE_MAX_DEVICES; i++) {
        if (device < 0 || device == i) {
            fake_lose_locked(i, error == 0 ? (int)cudaErrorLaunchFailure : error);
        }
    }
    pthread_mutex_unlock(&fake_lock);
}

void
fakecuda_set_unmap_syncs(int syncs)
{
    pthread_mutex_lock(&fake_lock);
    fake_setting.unmap_syncs = syncs != 0;
    pthread_mutex_unlock(&fake_lock);
}

void
fakecuda_set_lag(long queries)
{
    pthread_mutex_lock(&fake_lock);
    fake_setting.lag = queries;
    pthread_mutex_unlock(&fake_lock);
}

/* ---- numbers ---------------------------------------------------------------------------------- */

static uint64_t
mapped_bytes_locked(void)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < fake_mappings.count; i++) {
        const fake_mapping *mapping = fake_mappings.items[i].data;
        bytes += mapping->origin == FAKE_OF_VMM ? mapping->size : 0;
    }
    return bytes;
}

/* Live allocations of cudaMalloc, pools and their like; not of host memory. */
static uint64_t
allocations_locked(void)
{
    uint64_t count = 0;
    for (size_t i = 0; i < fake_mappings.count; i++) {
        const fake_mapping *mapping = fake_mappings.items[i].data;
        count += mapping->memory->device >= 0 && mapping->origin != FAKE_OF_VMM &&
                 !mapping->freed;
    }
    return count;
}

static void
count_locked(int device, fakecuda_numbers *out)
{
    *out = (fakecuda_numbers){
        .memory_handles = fake_handle_count_locked(FAKE_PAGE),
        .mapped_now = mapped_bytes_locked(),
        .address_now = fake_reserved_bytes_locked(),
        .pinned_now = fake_pinned_bytes_locked(),
        .allocations = allocations_locked(),
        .streams = fake_handle_count_locked(FAKE_STREAM),
        .events = fake_handle_count_locked(FAKE_EVENT),
        .graphs =
            fake_handle_count_locked(FAKE_GRAPH) + fake_handle_count_locked(FAKE_EXEC),
        .operations = fake_operations_locked(),
    };
    for (int i = 0; i < FAKE_MAX_DEVICES; i++) {
        if (device < 0 || device == i) {
            out->memory_now += fake_devices[i].used;
            out->memory_peak += fake_devices[i].used_peak;
            out->contexts += fake_devices[i].in_use;
        }
    }
}

void
fakecuda_counters(int device, fakecuda_numbers *out)
{
    pthread_mutex_lock(&fake_lock);
    count_locked(device, out);
    pthread_mutex_unlock(&fake_lock);
    out->violations = fakecuda_violations(NULL, 0);
}

uint64_t
fakecuda_check_leaks(char *text, size_t size)
{
    fakecuda_numbers now;
    fakecuda_counters(-1, &now);
    const struct {
        const char *name;
        uint64_t count;
    } rows[] = {
        {"streams", now.streams},
        {"events", now.events},
        {"graphs", now.graphs},
        {"allocations", now.allocations},
        {"memory handles", now.memory_handles},
        {"bytes mapped", now.mapped_now},
        {"bytes of addresses reserved", now.address_now},
        {"bytes of host memory page-locked", now.pinned_now},
    };
    uint64_t kinds = 0;
    size_t used = 0;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        kinds += rows[i].count > 0;
        if (rows[i].count > 0 && text != NULL && used < size) {
            used += (size_t)snprintf(text + used, size - used, "%llu %s\n",
                                     (unsigned long long)rows[i].count, rows[i].name);
        }
    }
    if (used == 0 && text != NULL && size > 0) {
        *text = '\0';
    }
    return kinds;
}

/* ---- from the start ----------------------------------------------------------------------------- */

static void
drop_objects_locked(void)
{
    void *object;
    while ((object = fake_handle_at_locked(FAKE_EXEC, 0)) != NULL) {
        (void)fake_graph_exec_destroy_locked(((fake_exec *)object)->handle);
    }
    while ((object = fake_handle_at_locked(FAKE_GRAPH, 0)) != NULL) {
        fake_graph_drop_locked(object);
    }
    while ((object = fake_handle_at_locked(FAKE_EVENT, 0)) != NULL) {
        (void)fake_event_destroy_locked(((fake_event *)object)->handle);
    }
}

void
fakecuda_reset(void)
{
    pthread_mutex_lock(&fake_lock);
    fake_read_settings();
    fake_capture_reset_locked();
    fake_work_reset_locked();
    drop_objects_locked();
    fake_modules_reset_locked();
    fake_pools_reset_locked();
    fake_memory_reset_locked();
    fake_handles_reset_locked();
    fake_errors_reset();
    for (int i = 0; i < FAKE_MAX_DEVICES; i++) {
        fake_devices[i] = (fake_device){.capacity = fake_setting.capacity,
                                        .file = fake_devices[i].file,
                                        .file_end = fake_devices[i].file_end};
    }
    fake_context_reset_locked();
    fake_initialised = false;
    pthread_mutex_unlock(&fake_lock);
}
