/* kernels.c - launches, and the twins that run them.
 *
 * Note [Twins and addresses]
 * Device memory cannot be touched by the process; inside a twin it can. The first touch
 * of a mapping faults, the handler looks whether the device may use what is mapped there,
 * notes that the kernel uses it, and opens it until the twin ends. A touch of anything
 * else of a device's addresses ends the twin as the device's trap would: what was done
 * stays done, the device is lost. So what a kernel uses is seen and need not be declared,
 * in units of a mapping. What arguments point to counts as used from the launch on, since
 * it must not go before the kernel has run.
 */
#include "kernels.h"

#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"

#define MOST_FAULTS 4 /* of one mapping: others may shut it meanwhile */

static fake_kernel *kernels;

/* ---- the registry ---------------------------------------------------------------------------- */

fake_kernel *
fake_kernel_need_locked(const char *name)
{
    fake_kernel *kernel = kernels;
    while (kernel != NULL && strcmp(kernel->name, name) != 0) {
        kernel = kernel->next;
    }
    if (kernel == NULL) {
        kernel = fake_allocate(sizeof(*kernel));
        size_t size = strlen(name) + 1;
        kernel->name = memcpy(fake_allocate(size), name, size);
        kernel->next = kernels;
        kernels = kernel;
    }
    return kernel;
}

void
fakecuda_register_kernel(const char *name, fakecuda_twin twin, const size_t *sizes,
                         size_t count)
{
    pthread_mutex_lock(&fake_lock);
    fake_kernel *kernel = fake_kernel_need_locked(name);
    free(kernel->sizes);
    kernel->sizes = fake_allocate((count + 1) * sizeof(*sizes));
    for (size_t i = 0; i < count; i++) {
        kernel->sizes[i] = sizes[i];
    }
    kernel->count = count;
    kernel->twin = twin;
    pthread_mutex_unlock(&fake_lock);
}

/* ---- launches ---------------------------------------------------------------------------------- */

/* Parameters lie at multiples of their size, up to 16 bytes, as the compiler lays them
 * out; larger ones are structs, at multiples of 8. */
static size_t
place_parameter(size_t offset, size_t size)
{
    size_t alignment = size > 16 ? 8 : size;
    while ((alignment & (alignment - 1)) != 0) {
        alignment &= alignment - 1;
    }
    alignment = alignment == 0 ? 1 : alignment;
    return (offset + alignment - 1) / alignment * alignment;
}

size_t
fake_parameter_offset(const fake_kernel *kernel, size_t index)
{
    size_t offset = 0;
    for (size_t i = 0; i < kernel->count; i++) {
        offset = place_parameter(offset, kernel->sizes[i]);
        if (i == index) {
            return offset;
        }
        offset += kernel->sizes[i];
    }
    return offset;
}

static fake_kernel_call *
make_call(const fake_kernel *kernel, const fake_shape *shape,
          const fake_arguments *arguments, int device)
{
    fake_kernel_call *call = fake_allocate(sizeof(*call));
    size_t size = arguments->pointers == NULL
                      ? arguments->block_size
                      : fake_parameter_offset(kernel, kernel->count);
    char *block = fake_allocate(size + 1);
    for (size_t i = 0; arguments->pointers != NULL && i < kernel->count; i++) {
        memcpy(block + fake_parameter_offset(kernel, i), arguments->pointers[i],
               kernel->sizes[i]);
    }
    if (arguments->pointers == NULL && size > 0) {
        memcpy(block, arguments->block, size);
    }
    call->arguments = block;
    call->twin = kernel->twin;
    call->launch = (fakecuda_launch){.name = kernel->name,
                                     .shared_bytes = shape->shared_bytes,
                                     .device = device,
                                     .arguments = block,
                                     .argument_bytes = size};
    memcpy(call->launch.grid, shape->grid, sizeof(shape->grid));
    memcpy(call->launch.block, shape->block, sizeof(shape->block));
    return call;
}

/* What the arguments point to, as far as they look like pointers. */
static void
add_argument_spans_locked(fake_task *task)
{
    const fakecuda_launch *launch = &task->kernel->launch;
    for (size_t at = 0; at + sizeof(uint64_t) <= launch->argument_bytes;
         at += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, (const char *)launch->arguments + at, sizeof(word));
        const fake_mapping *mapping = fake_mapping_at_locked(word);
        if (mapping != NULL) {
            fake_span *span = fake_push(&task->spans, &task->span_count,
                                        &task->span_capacity, sizeof(*span));
            *span = (fake_span){
                .address = word, .mapping = mapping->id, .memory = mapping->memory->id};
        }
    }
}

static int
check_shape(const fake_shape *shape)
{
    uint64_t threads = 1;
    for (int i = 0; i < 3; i++) {
        threads *= shape->block[i];
        if (shape->grid[i] == 0 || shape->block[i] == 0) {
            return (int)cudaErrorInvalidConfiguration;
        }
    }
    return threads > 1024 ? (int)cudaErrorInvalidConfiguration : 0;
}

int
fake_kernel_launch_locked(const fake_kernel *kernel, const fake_shape *shape,
                          const fake_arguments *arguments, CUstream stream_handle)
{
    int error = check_shape(shape);
    fake_stream *stream =
        error != 0 ? NULL : fake_stream_of_locked(stream_handle, &error);
    if (stream == NULL) {
        return error;
    }
    if (stream->device != fake_current_device_locked()) {
        (void)fake_violation_locked("a stream of device %d, and device %d is current",
                                    stream->device, fake_current_device_locked());
        return (int)cudaErrorInvalidResourceHandle;
    }
    if (kernel->twin == NULL) {
        (void)fake_violation_locked("kernel %s has no host twin to run it",
                                    kernel->name);
        return (int)cudaErrorInvalidDeviceFunction;
    }
    fake_task task = {.work = FAKE_KERNEL, .device = stream->device};
    task.kernel = make_call(kernel, shape, arguments, stream->device);
    add_argument_spans_locked(&task);
    return fake_submit_locked(stream, &task, NULL, NULL);
}

void
fake_kernel_call_free(fake_kernel_call *call)
{
    if (call != NULL) {
        free(call->arguments);
        free(call);
    }
}

/* ---- running --------------------------------------------------------------------------------------- */

typedef struct fake_opened {
    uint64_t address;
    size_t size;
    unsigned faults;
} fake_opened;

/* The twin that the thread runs. */
typedef struct fake_run {
    const fake_op *op;
    int device;
    sigjmp_buf trap;
    uint64_t fault; /* the address that ended it */
    const char *reason;
    fake_opened *opened; /* owned */
    size_t opened_count, opened_capacity;
} fake_run;

static _Thread_local fake_run *current_run;
static struct sigaction previous_action;

/* Opens what lies at the address for the run. NULL, or why the device may not touch it. */
static const char *
open_for_run_locked(fake_run *run, uint64_t address)
{
    const fake_mapping *mapping = fake_mapping_at_locked(address);
    if (mapping == NULL) {
        return "not mapped";
    }
    fake_opened *opened = NULL;
    for (size_t i = 0; i < run->opened_count; i++) {
        if (run->opened[i].address == mapping->address) {
            opened = &run->opened[i];
        }
    }
    if (!fake_may_use(mapping, run->device, false)) {
        return "not accessible to the device";
    }
    if (opened == NULL) {
        opened = fake_push(&run->opened, &run->opened_count, &run->opened_capacity,
                           sizeof(*opened));
        opened->address = mapping->address;
        opened->size = mapping->size;
        (void)fake_note_touch_locked(run->op, mapping);
    }
    if (++opened->faults > MOST_FAULTS) {
        return "not writable for the device";
    }
    bool writable = fake_may_use(mapping, run->device, true);
    return fake_open_locked(mapping, writable) ? NULL : "not to be opened";
}

static void
on_fault(int number, siginfo_t *info, void *context)
{
    fake_run *run = current_run;
    uint64_t address = (uint64_t)(uintptr_t)info->si_addr;
    if (run != NULL) {
        pthread_mutex_lock(&fake_lock);
        bool ours = fake_is_device_address_locked(address);
        const char *reason = ours ? open_for_run_locked(run, address) : NULL;
        pthread_mutex_unlock(&fake_lock);
        if (ours && reason == NULL) {
            return;
        }
        if (ours) {
            run->fault = address;
            run->reason = reason;
            siglongjmp(run->trap, 1);
        }
    }
    if ((previous_action.sa_flags & SA_SIGINFO) != 0) {
        previous_action.sa_sigaction(number, info, context);
    }
    else if (previous_action.sa_handler == SIG_DFL ||
             previous_action.sa_handler == SIG_IGN) {
        (void)signal(number, SIG_DFL); /* and the fault happens again */
    }
    else {
        previous_action.sa_handler(number);
    }
}

/* Others may have put their handler in our place meanwhile: theirs comes next then. */
static void
watch_faults_locked(void)
{
    struct sigaction now;
    (void)sigaction(SIGSEGV, NULL, &now);
    if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_fault) {
        return;
    }
    previous_action = now;
    struct sigaction ours = {.sa_sigaction = on_fault,
                             .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    (void)sigaction(SIGSEGV, &ours, NULL);
}

void
fake_run_kernel_locked(const fake_op *op, const fake_task *task)
{
    fake_run *run = fake_allocate(sizeof(*run));
    run->op = op;
    run->device = task->device;
    watch_faults_locked();
    pthread_mutex_unlock(&fake_lock);
    current_run = run;
    fake_inside_work = true;
    if (sigsetjmp(run->trap, 1) == 0) {
        task->kernel->twin(&task->kernel->launch);
    }
    fake_inside_work = false;
    current_run = NULL;
    pthread_mutex_lock(&fake_lock);
    for (size_t i = 0; i < run->opened_count && !fake_setting.host_access; i++) {
        fake_shut_locked(run->opened[i].address, run->opened[i].size);
    }
    if (run->reason != NULL) {
        (void)fake_violation_locked("kernel %s touches address 0x%" PRIx64
                                    ", which is %s",
                                    task->kernel->launch.name, run->fault, run->reason);
        fake_lose_locked(task->device, (int)cudaErrorIllegalAddress);
    }
    free(run->opened);
    free(run);
}
