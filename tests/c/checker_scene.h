/* checker_scene.h - a checked device with streams, events and pages, and the few words
 * that it is told, for the tests of the checker.
 */
#ifndef GM_TESTS_CHECKER_SCENE_H
#define GM_TESTS_CHECKER_SCENE_H

#include "device/checker_device.h"
#include "device_kinds.h"

#define PAGE ((size_t)64 << 10)

/* ---- a scene --------------------------------------------------------------------- */

/* Two pages: `one` is mapped at `a` and at `b`, `two` nowhere. */
typedef struct scene {
    gm_device *device;
    const gm_device_ops *ops;
    gm_stream s, t, u;
    gm_event e, f;
    gm_devptr range, a, b;
    gm_page one, two;
} scene;

static inline uint64_t
violations_of(const scene *self)
{
    return gm_device_violations(self->device, NULL, 0);
}

/* Exactly `count` violations, each of this check. */
static inline void
check_reported(const scene *self, uint64_t count, const char *check)
{
    char text[4096];
    uint64_t found = gm_device_violations(self->device, text, sizeof(text));
    if (found != count) {
        fprintf(stderr, "%s\n", text);
    }
    CHECK_EQ(found, count);
    for (const char *line = text; *line != '\0'; line++) {
        CHECK(strncmp(line, check, strlen(check)) == 0);
        line += strcspn(line, "\n");
        if (*line == '\0') {
            break;
        }
    }
    CHECK_EQ(text[0] != '\0', count != 0);
}

static inline void
check_clean(const scene *self)
{
    check_reported(self, 0, "");
}

static inline void
make_scene(scene *self, gm_device *device)
{
    *self = (scene){.device = device, .ops = device->ops};
    const gm_device_ops *ops = self->ops;
    CHECK(gm_device_is_checked(device));
    CHECK_OK(ops->stream_create(device, &self->s));
    CHECK_OK(ops->stream_create(device, &self->t));
    CHECK_OK(ops->stream_create(device, &self->u));
    CHECK_OK(ops->event_create(device, &self->e));
    CHECK_OK(ops->event_create(device, &self->f));
    CHECK_OK(ops->address_reserve(device, 2 * MIB, &self->range));
    CHECK_OK(ops->page_create(device, &self->one));
    CHECK_OK(ops->page_create(device, &self->two));
    self->a = self->range + 4 * PAGE;
    self->b = self->range + 7 * PAGE;
    CHECK_OK(ops->map(device, self->a, self->one));
    CHECK_OK(ops->map(device, self->b, self->one));
    CHECK_OK(ops->grant(device, self->a, PAGE));
    CHECK_OK(ops->grant(device, self->b, PAGE));
}

static inline void
end_scene(scene *self)
{
    const gm_device_ops *ops = self->ops;
    CHECK_OK(ops->event_destroy(self->device, self->e));
    CHECK_OK(ops->event_destroy(self->device, self->f));
    gm_device_release(self->device);
}

static inline gm_device *
checked_device(int kind)
{
    gm_host_options host = {.capacity = 8 * MIB,
                            .page_size = PAGE,
                            .paging = true,
                            .aliasing = true,
                            .checked = true};
    gm_sim_options sim = {.capacity = 8 * MIB,
                          .page_size = PAGE,
                          .paging = true,
                          .aliasing = true,
                          .checked = true};
    gm_device *device = kind == 1 ? open_sim(&sim) : open_host(&host);
    return kind == 2 ? behind_faults(device) : device;
}

/* Runs a check with and without what it is about: on a host device, a sim device, and a
 * host device behind faults. */
static inline void
over_devices(void (*check)(scene *self, bool ordered))
{
    for (int kind = 0; kind < 3; kind++) {
        for (int ordered = 0; ordered < 2; ordered++) {
            scene self;
            make_scene(&self, checked_device(kind));
            check(&self, ordered != 0);
            end_scene(&self);
        }
    }
}

/* ---- what the device is told ----------------------------------------------------- */

static inline uint64_t
identity(const scene *self, gm_stream stream)
{
    return self->ops->stream_identity(self->device, stream);
}

static inline void
block(const scene *self, gm_devptr address, size_t size, gm_stream stream)
{
    self->ops->note_block(self->device, address, size, identity(self, stream));
}

static inline void
use_bytes(const scene *self, gm_devptr address, size_t size, gm_stream stream)
{
    self->ops->note_use(self->device, address, size, identity(self, stream));
}

static inline void
record(const scene *self, gm_event event, gm_stream stream)
{
    CHECK_OK(self->ops->event_record(self->device, event, stream));
}

static inline void
wait_for(const scene *self, gm_stream stream, gm_event event)
{
    CHECK_OK(self->ops->stream_wait(self->device, stream, event));
}

#endif
