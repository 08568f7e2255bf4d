/* contract_backends.h - every backend, for the contract suite; CUDA over its stand-in.
 */
#ifndef GM_TESTS_CONTRACT_BACKENDS_H
#define GM_TESTS_CONTRACT_BACKENDS_H

#include "cuda_kinds.h"
#include "device/checker_device.h"

#define CAPACITY (64 * MIB)
#define PAGE (2 * MIB)

typedef struct backend {
    const char *name;
    bool sim;
    bool paging;
    bool aliasing;
    bool faulty;
    bool checked; /* by the device's checker; nothing may be reported */
    bool cuda;
    bool async; /* segments of the driver's pool */
} backend;

static const backend backends[] = {
    {"host", false, true, false, false, false, false, false},
    {"host, aliasing", false, true, true, false, false, false, false},
    {"host, segments", false, false, false, false, false, false, false},
    {"host, faults", false, true, true, true, false, false, false},
    {"host, segments, faults", false, false, false, true, false, false, false},
    {"sim", true, true, false, false, false, false, false},
    {"sim, aliasing", true, true, true, false, false, false, false},
    {"sim, segments", true, false, false, false, false, false, false},
    {"sim, faults", true, true, true, true, false, false, false},
    {"sim, segments, faults", true, false, false, true, false, false, false},
    {"host, checked", false, true, true, false, true, false, false},
    {"host, segments, checked, faults", false, false, false, true, true, false, false},
    {"sim, checked, faults", true, true, true, true, true, false, false},
    {"sim, segments, checked", true, false, false, false, true, false, false},
    {"cuda", false, true, false, false, false, true, false},
    {"cuda, aliasing", false, true, true, false, false, true, false},
    {"cuda, segments", false, false, false, false, false, true, false},
    {"cuda, segments of the driver's pool", false, false, false, false, false, true,
     true},
    {"cuda, faults", false, true, true, true, false, true, false},
};

static inline gm_device *
open_cuda_backend(const backend *kind)
{
    gm_cuda_options options = {.no_paging = !kind->paging,
                               .aliasing = kind->aliasing,
                               .async_segments = kind->async};
    gm_device *device = open_cuda(&options);
    CHECK_OK(gm_device_prepare(device));
    return kind->faulty ? behind_faults(device) : device;
}

static inline gm_device *
open_backend(const backend *kind)
{
    if (kind->cuda) {
        return open_cuda_backend(kind);
    }
    gm_host_options host = {.index = 3,
                            .capacity = CAPACITY,
                            .paging = kind->paging,
                            .aliasing = kind->aliasing,
                            .checked = kind->checked};
    gm_sim_options sim = {.index = 3,
                          .capacity = CAPACITY,
                          .paging = kind->paging,
                          .aliasing = kind->aliasing,
                          .checked = kind->checked};
    gm_device *device = kind->sim ? open_sim(&sim) : open_host(&host);
    return kind->faulty ? behind_faults(device) : device;
}

/* Runs a check on each backend; all memory must be given back after it. */
static inline void
over_backends(void (*check)(gm_device *device, const backend *kind))
{
    for (size_t i = 0; i < sizeof(backends) / sizeof(backends[0]); i++) {
        if (backends[i].cuda && !cuda_is_here("64M")) {
            continue;
        }
        gm_device *device = open_backend(&backends[i]);
        printf("   %s\n", backends[i].name);
        check(device, &backends[i]);
        CHECK_EQ(counters_of(device).memory_now, 0);
        CHECK_EQ(counters_of(device).mapped_now, 0);
        CHECK_EQ(counters_of(device).address_now, 0);
        CHECK_EQ(gm_device_is_checked(device), backends[i].checked);
        CHECK_EQ(gm_device_violations(device, NULL, 0), 0);
        gm_device_release(device);
        if (backends[i].cuda) {
            check_fake();
        }
    }
}

/* One test for each promise. */
#define CONTRACT_TEST(name)          \
    static void test_##name(void)    \
    {                                \
        over_backends(check_##name); \
    }

#endif
