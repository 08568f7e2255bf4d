/* scene.h - what the tests of the stand-in share: a fresh start, and checks of what was
 * punished.
 */
#ifndef FAKECUDA_SCENE_H
#define FAKECUDA_SCENE_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdlib.h>

#include "check.h"
#include "fakecuda.h"

#define MIB ((size_t)1 << 20)
#define PAGE (2 * MIB)

/* The call succeeds. */
#define OK(call) CHECK_EQ_SIGNED((call), 0)

/* The call fails with that error. */
#define FAILS(call, error) CHECK_EQ_SIGNED((call), (error))

/* Everything as at the start, under settings such as "DEVICES=2 LAG=0". */
static inline void
begin(const char *settings)
{
    static const char *const names[] = {
        "DEVICES",     "CAPACITY",    "LAG",         "PEERS", "DRIVER_VERSION",
        "VMM",         "DEPTH",       "RACES",       "LEAKS", "STRICT",
        "UNMAP_SYNCS", "HOST_ACCESS", "GRANULARITY",
    };
    char name[64], text[256];
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        (void)snprintf(name, sizeof(name), "FAKECUDA_%s", names[i]);
        (void)unsetenv(name);
    }
    (void)snprintf(text, sizeof(text), "%s", settings);
    for (char *setting = strtok(text, " "); setting != NULL;
         setting = strtok(NULL, " ")) {
        char *value = strchr(setting, '=');
        *value = '\0';
        (void)snprintf(name, sizeof(name), "FAKECUDA_%s", setting);
        (void)setenv(name, value + 1, 1);
    }
    fakecuda_reset();
    (void)cudaGetLastError();
}

/* Nothing was punished. */
static inline void
expect_clean(void)
{
    char text[4096];
    if (fakecuda_violations(text, sizeof(text)) != 0) {
        fprintf(stderr, "%s", text);
        check_fail(__FILE__, __LINE__, "no violation");
    }
}

/* One violation at least, and one that says that; they are forgotten. */
static inline void
expect_punished(const char *part)
{
    char text[4096];
    uint64_t count = fakecuda_violations(text, sizeof(text));
    if (count == 0 || strstr(text, part) == NULL) {
        fprintf(stderr, "wanted \"%s\", got:\n%s", part, text);
        check_fail(__FILE__, __LINE__, "a violation");
    }
    fakecuda_clear_violations();
}

static inline cudaStream_t
make_stream(void)
{
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static inline cudaEvent_t
make_event(void)
{
    cudaEvent_t event;
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
}

static inline unsigned char *
make_memory(size_t size)
{
    void *memory;
    OK(cudaMalloc(&memory, size));
    return memory;
}

/* The byte at a device address, whatever is queued. */
static inline unsigned
byte_at(const void *address)
{
    unsigned char byte = 0;
    CHECK_EQ_SIGNED(fakecuda_peek((uint64_t)(uintptr_t)address, &byte, 1), 0);
    return byte;
}

#endif
