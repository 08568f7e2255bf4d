/* probe.h - what the parts of the probe share: the device, a clock, medians, and pages.
 *
 * Page here means one allocation handle of the driver, mapped somewhere.
 */
#ifndef GM_VMM_PROBE_PROBE_H
#define GM_VMM_PROBE_PROBE_H

#include <stddef.h>
#include <stdint.h>

#include "driver.h"

#define MIB ((size_t)1 << 20)

/* Rounds of each measurement; figures are their medians. */
#define ROUNDS 9

typedef struct probe {
    CUdevice device;
    CUcontext context;
    CUmemAllocationProp kind; /* device memory */
    CUmemAccessDesc access;   /* read and write, on this device */
    size_t granularity;       /* bytes; the smallest page */
    size_t budget;            /* bytes that the probe may take at once */
    CUstream stream;
    CUstream other; /* not ordered with `stream` */
    CUmodule module;
    CUfunction spin, store, check;
} probe;

/* ---- parts: each adds its own object to the report ------------------------------- */

/* Nanoseconds of create, map, grant, unmap and release, for each size of a page. */
void
probe_page_costs(const probe *self);

/* Which calls return only when work of another stream, which they have nothing to do
 * with, is done. */
void
probe_blocking(const probe *self);

/* Nanoseconds of marks on streams, queries and allocations. */
void
probe_small_calls(const probe *self);

/* Whether a page that is mapped twice reads as it was written, in stream order. */
void
probe_aliases(const probe *self);

/* Whether pages in random order are slower than one allocation. */
void
probe_bandwidth(const probe *self);

/* ---- helpers ----------------------------------------------------------------------- */

uint64_t
now_ns(void);

/* Sorts the values. */
uint64_t
median(uint64_t *values, size_t count);

CUmemGenericAllocationHandle
create_page(const probe *self, size_t size);

CUdeviceptr
reserve_addresses(size_t size);

/* Maps a page and grants access. */
void
place_page(const probe *self, CUdeviceptr at, size_t size,
           CUmemGenericAllocationHandle page);

/* Keeps the stream busy for that long. */
void
launch_spin(const probe *self, uint64_t ns);

/* words[i] = first + i, on a stream. */
void
launch_store(const probe *self, CUstream stream, CUdeviceptr words, uint32_t count,
             uint32_t first);

/* Counts in *bad the words that differ from that. */
void
launch_check(const probe *self, CUstream stream, CUdeviceptr words, uint32_t count,
             uint32_t first, CUdeviceptr bad);

/* ---- the report: JSON on stdout ----------------------------------------------------- */

/* An object or, with '[', an array; `key` is NULL inside an array and at the top. */
void
json_open(const char *key, char bracket);

void
json_close(void);

void
json_integer(const char *key, uint64_t value);

void
json_real(const char *key, double value);

void
json_text(const char *key, const char *value);

void
json_bool(const char *key, int value);

#endif
