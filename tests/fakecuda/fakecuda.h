/* fakecuda.h - how a test steers the stand-in for CUDA and asks what it saw.
 *
 * libcudart.so.12, libcudart.so.13 and libcuda.so.1 of this folder share one
 * implementation, libfakecuda.so; these functions are exported by it and so can be had
 * from any of the three, by linking or through ctypes. README.md has the environment
 * variables and the list of mistakes that are punished.
 *
 * Calls are named as programs spell them ("cudaMalloc", "cuMemMap"); the suffixes that
 * headers add (_v2, _ptsz, ...) do not count. A negative device means every device.
 *
 * Thread-safety: every function.
 */
#ifndef FAKECUDA_H
#define FAKECUDA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the devices ----------------------------------------------------------------- */

/* Bytes of memory of the device; what is in use stays. */
void
fakecuda_set_capacity(int device, size_t bytes);

/* That many bytes belong to another process from now on. */
void
fakecuda_occupy(int device, size_t bytes);

/* The device stops answering: each call that meets it returns `error` until
 * fakecuda_reset. 0: cudaErrorLaunchFailure. */
void
fakecuda_lose_device(int device, int error);

/* Does cuMemUnmap wait for the device? Otherwise unmapping under unfinished work is a
 * violation. cudaFree follows. */
void
fakecuda_set_unmap_syncs(int syncs);

/* How many queries of unfinished work are answered "not ready" before the work runs;
 * negative: all, a query never makes work run. */
void
fakecuda_set_lag(long queries);

/* ---- work that is held back ------------------------------------------------------- */

/* Work on the stream waits from now on, whoever waits for it. `stream` is a
 * cudaStream_t; 0, 1 and 2 mean what they mean to the calling thread. 0: held back,
 * else an error. */
int
fakecuda_stall(void *stream);

/* Lets the next `operations` run, at once as far as their dependencies allow; negative:
 * all, and the stream is no longer held back. */
int
fakecuda_release(void *stream, long operations);

/* Operations on the stream that have not run. */
size_t
fakecuda_pending(void *stream);

/* ---- faults and counters ---------------------------------------------------------- */

/* The nth next call (1: the next one) of that name returns `error` and does nothing
 * else; with `for_ever` so does each one after it. nth 0 takes the faults of that name
 * back; a NULL name with nth 0 takes all back. */
void
fakecuda_fail(const char *call, uint64_t nth, int for_ever, int error);

/* Calls of that name since the start or the last fakecuda_reset_counters, failed ones
 * included; NULL: of every name. */
uint64_t
fakecuda_calls(const char *call);

void
fakecuda_reset_counters(void);

typedef struct fakecuda_numbers {
    uint64_t memory_now;     /* bytes of device memory in use, by this process */
    uint64_t memory_peak;    /* its high-water mark */
    uint64_t memory_handles; /* allocations of cuMemCreate that still have memory */
    uint64_t mapped_now;     /* bytes that cuMemMap mapped */
    uint64_t address_now;    /* bytes that cuMemAddressReserve reserved */
    uint64_t pinned_now;     /* bytes of page-locked host memory */
    uint64_t allocations;    /* live ones of cudaMalloc and its like */
    uint64_t streams;        /* made and not destroyed */
    uint64_t events;
    uint64_t graphs;     /* graphs and executable graphs */
    uint64_t contexts;   /* devices that were used: a primary context was made */
    uint64_t operations; /* queued work that ran */
    uint64_t violations;
} fakecuda_numbers;

/* Memory and contexts of one device; the rest is of the whole process. */
void
fakecuda_counters(int device, fakecuda_numbers *out);

/* ---- memory, seen from outside ---------------------------------------------------- */

/* Reads and writes device memory behind the program's back, as a debugger would: no
 * stream, no check of order. 0, or -1 when the bytes are not all mapped. */
int
fakecuda_peek(uint64_t address, void *out, size_t size);
int
fakecuda_poke(uint64_t address, const void *bytes, size_t size);

/* ---- kernels ---------------------------------------------------------------------- */

/* A launch as its host twin sees it. */
typedef struct fakecuda_launch {
    const char *name;
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    int device;
    const void *arguments; /* all parameters in one block, each at its alignment */
    size_t argument_bytes;
} fakecuda_launch;

/* Runs in place of a kernel, when its turn comes on the stream. Device pointers in the
 * arguments can be dereferenced inside; what is not mapped there, or not for the device,
 * ends the twin and loses the device, as an illegal address does. */
typedef void (*fakecuda_twin)(const fakecuda_launch *launch);

/* The kernel of that name: `sizes` are the bytes of its `count` parameters, in order. A
 * second registration replaces the first. */
void
fakecuda_register_kernel(const char *name, fakecuda_twin twin, const size_t *sizes,
                         size_t count);

/* ---- what was done wrong ---------------------------------------------------------- */

/* How many violations there were. `text` receives them, one in a line, as far as `size`
 * bytes hold them, NUL-terminated; it may be NULL. */
uint64_t
fakecuda_violations(char *text, size_t size);

/* Forgets them. */
void
fakecuda_clear_violations(void);

/* How many objects are left: streams, events, graphs, allocations, mappings, handles,
 * addresses, pinned memory. Each kind is one line of the text; none is a violation. */
uint64_t
fakecuda_check_leaks(char *text, size_t size);

/* As at the start: everything is destroyed, counters, faults and violations are
 * forgotten, the environment is read again. Pre: no other thread is in a call. */
void
fakecuda_reset(void);

#ifdef __cplusplus
}
#endif

#endif
