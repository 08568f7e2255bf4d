/* contract_backends.h - every backend that needs no hardware, for the contract suite.
 */
#ifndef GM_TESTS_CONTRACT_BACKENDS_H
#define GM_TESTS_CONTRACT_BACKENDS_H

#include "device/checker_device.h"
#include "device_kinds.h"

#define CAPACITY (64 * MIB)
#define PAGE (2 * MIB)

typedef struct backend {
    const char *name;
    bool sim;
    bool paging;
    bool aliasing;
    bool faulty;
    bool checked; /* by the device's checker; nothing may be reported */
} backend;

static const backend backends[] = {
    {"host", false, true, false, false, false},
    {"host, aliasing", false, true, true, false, false},
    {"host, segments", false, false, false, false, false},
    {"host, faults", false, true, true, true, false},
    {"host, segments, faults", false, false, false, true, false},
    {"sim", true, true, false, false, false},
    {"sim, aliasing", true, true, true, false, false},
    {"sim, segments", true, false, false, false, false},
    {"sim, faults", true, true, true, true, false},
    {"sim, segments, faults", true, false, false, true, false},
    {"host, checked", false, true, true, false, true},
    {"host, segments, checked, faults", false, false, false, true, true},
    {"sim, checked, faults", true, true, true, true, true},
    {"sim, segments, checked", true, false, false, false, true},
};

static inline gm_device *
open_backend(const backend *kind)
{
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
        gm_device *device = open_backend(&backends[i]);
        printf("   %s\n", backends[i].name);
        check(device, &backends[i]);
        CHECK_EQ(counters_of(device).memory_now, 0);
        CHECK_EQ(counters_of(device).mapped_now, 0);
        CHECK_EQ(counters_of(device).address_now, 0);
        CHECK_EQ(gm_device_is_checked(device), backends[i].checked);
        CHECK_EQ(gm_device_violations(device, NULL, 0), 0);
        gm_device_release(device);
    }
}

#endif
