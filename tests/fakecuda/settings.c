/* settings.c - the environment, read at the start and again at each reset. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

#define DEFAULT_CAPACITY ((size_t)24 << 30)
#define DEFAULT_GRANULARITY ((size_t)2 << 20)
#define DEFAULT_POISON ((size_t)64 << 20)
#define DEFAULT_DEPTH 1024

fake_settings fake_setting;

_Noreturn static void
refuse(const char *name, const char *value, const char *accepted)
{
    (void)fprintf(stderr, "fakecuda: %s=%s is not %s\n", name, value, accepted);
    exit(2);
}

static size_t
read_bytes(const char *name, size_t otherwise)
{
    const char *value = getenv(name);
    if (value == NULL || *value == '\0') {
        return otherwise;
    }
    static const char units[] = "KMGT";
    char *end;
    double number = strtod(value, &end);
    const char *unit = *end == '\0' ? NULL : strchr(units, *end);
    if (unit != NULL) {
        number *= (double)((size_t)1024 << (10 * (unit - units)));
        end++;
        end += strncmp(end, "iB", 2) == 0 ? 2 : 0;
    }
    if (*end != '\0' || end == value || number < 0 || number > 1e18) {
        refuse(name, value, "a number of bytes, such as 512M or 24GiB");
    }
    return (size_t)number;
}

static long
read_number(const char *name, long least, long most, long otherwise)
{
    const char *value = getenv(name);
    if (value == NULL || *value == '\0') {
        return otherwise;
    }
    char *end;
    long number = strtol(value, &end, 10);
    if (*end != '\0' || number < least || number > most) {
        char accepted[64];
        (void)snprintf(accepted, sizeof(accepted), "a number from %ld to %ld", least,
                       most);
        refuse(name, value, accepted);
    }
    return number;
}

static bool
read_switch(const char *name, bool otherwise)
{
    return read_number(name, 0, 1, otherwise ? 1 : 0) != 0;
}

static fake_strictness
read_strictness(void)
{
    static const char *const names[] = {"record", "report", "abort", "now"};
    const char *value = getenv("FAKECUDA_STRICT");
    if (value == NULL || *value == '\0') {
        return FAKE_RECORD;
    }
    for (int i = 0; i < (int)(sizeof(names) / sizeof(names[0])); i++) {
        if (strcmp(value, names[i]) == 0) {
            return (fake_strictness)i;
        }
    }
    refuse("FAKECUDA_STRICT", value, "record, report, abort or now");
}

void
fake_read_settings(void)
{
    fake_setting = (fake_settings){
        .devices = (int)read_number("FAKECUDA_DEVICES", 0, FAKE_MAX_DEVICES, 1),
        .driver_version = (int)read_number("FAKECUDA_DRIVER_VERSION", 0, 99999, 13000),
        .peers = read_switch("FAKECUDA_PEERS", true),
        .vmm = read_switch("FAKECUDA_VMM", true),
        .unmap_syncs = read_switch("FAKECUDA_UNMAP_SYNCS", false),
        .host_access = read_switch("FAKECUDA_HOST_ACCESS", false),
        .races = read_switch("FAKECUDA_RACES", true),
        .leaks = read_switch("FAKECUDA_LEAKS", false),
        .strict = read_strictness(),
        .capacity = read_bytes("FAKECUDA_CAPACITY", DEFAULT_CAPACITY),
        .granularity = read_bytes("FAKECUDA_GRANULARITY", DEFAULT_GRANULARITY),
        .address_space = read_bytes("FAKECUDA_ADDRESS_SPACE", 0),
        .poison = read_bytes("FAKECUDA_POISON", DEFAULT_POISON),
        .depth = (size_t)read_number("FAKECUDA_DEPTH", 1, 1 << 30, DEFAULT_DEPTH),
        .lag = read_number("FAKECUDA_LAG", -1, 1 << 30, 1),
    };
    size_t granularity = fake_setting.granularity;
    if (granularity < 4096 || (granularity & (granularity - 1)) != 0) {
        refuse("FAKECUDA_GRANULARITY", getenv("FAKECUDA_GRANULARITY"),
               "a power of two from 4K");
    }
}
