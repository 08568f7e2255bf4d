/* execute.c - the work itself, when its turn has come. */
#include <stdlib.h>
#include <string.h>

#include "events.h"
#include "graphs.h"
#include "kernels.h"
#include "memory.h"
#include "work.h"

void
fake_task_clear(fake_task *task)
{
    free(task->staged);
    free(task->spans);
    fake_kernel_call_free(task->kernel);
    fake_exec_release_locked(task->exec);
    fake_event_release_locked(task->event);
    *task = (fake_task){.work = FAKE_WAIT};
}

/* Where the bytes at an address are, and how many of them lie in one piece. */
static char *
find_bytes_locked(uint64_t address, size_t *size)
{
    const fake_mapping *mapping = fake_mapping_around_locked(address);
    if (mapping == NULL || mapping->memory->device < 0) {
        return (char *)(uintptr_t)address;
    }
    size_t skip = (size_t)(address - mapping->address);
    if (*size > mapping->room - skip) {
        *size = mapping->room - skip;
    }
    return fake_memory_bytes_locked(mapping->memory, mapping->offset + skip);
}

static void
copy_row_locked(uint64_t destination, uint64_t source, size_t size)
{
    while (size > 0) {
        size_t part = size;
        char *to = find_bytes_locked(destination, &part);
        const char *from = find_bytes_locked(source, &part);
        memmove(to, from, part);
        destination += part;
        source += part;
        size -= part;
    }
}

/* The pattern goes on where a piece ends. */
static void
fill_row_locked(const fake_task *task, uint64_t destination)
{
    for (size_t done = 0; done < task->width;) {
        size_t part = task->width - done;
        char *to = find_bytes_locked(destination + done, &part);
        if (task->pattern_size == 1) {
            memset(to, task->pattern[0], part);
        }
        else {
            for (size_t i = 0; i < part; i++) {
                to[i] = (char)task->pattern[(done + i) % task->pattern_size];
            }
        }
        done += part;
    }
}

static void
run_host_function_locked(const fake_task *task)
{
    void (*function)(void *) = task->function;
    cudaStreamCallback_t callback = task->callback;
    cudaStream_t stream = task->callback_stream;
    void *data = task->data;
    pthread_mutex_unlock(&fake_lock);
    fake_inside_work = true;
    if (function != NULL) {
        function(data);
    }
    else {
        callback(stream, cudaSuccess, data);
    }
    fake_inside_work = false;
    pthread_mutex_lock(&fake_lock);
}

void
fake_execute_task_locked(fake_op *op, const fake_task *task)
{
    if (!fake_check_spans_locked(task)) {
        fake_lose_locked(task->device, (int)cudaErrorIllegalAddress);
        return;
    }
    switch (task->work) {
        case FAKE_MARK:
        case FAKE_WAIT:
            break;
        case FAKE_COPY:
            for (size_t row = 0; row < task->height; row++) {
                copy_row_locked(task->destination + row * task->destination_pitch,
                                task->source + row * task->source_pitch, task->width);
            }
            break;
        case FAKE_FILL:
            for (size_t row = 0; row < task->height; row++) {
                fill_row_locked(task,
                                task->destination + row * task->destination_pitch);
            }
            break;
        case FAKE_HOST:
            run_host_function_locked(task);
            break;
        case FAKE_KERNEL:
            fake_run_kernel_locked(op, task);
            break;
        case FAKE_LAUNCH_GRAPH:
            fake_run_graph_locked(op, task);
            break;
    }
}

void
fake_execute_locked(fake_op *op)
{
    fake_execute_task_locked(op, &op->task);
}
