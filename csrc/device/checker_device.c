/* checker_device.c - the calls of a checked device: the device's own, and a word to the
 * checker. See Note [Calls and the model] in checker.h for the order of the two.
 *
 * A call that is refused because the process is a child of fork or exiting asks neither:
 * the checker's lock may be held by a thread that is not there.
 */
#include "device/checker_device.h"

#include <stdlib.h>

#include "device/fault.h"

typedef struct gm_checked_calls {
    gm_device_ops plain; /* the device's own functions */
    gm_checker *checker; /* owned */
} gm_checked_calls;

static const gm_device_ops *
plain_of(const gm_device *self)
{
    return &self->checks->plain;
}

static gm_checker *
checker_of(const gm_device *self)
{
    return self->checks->checker;
}

static uint64_t
identity_of(gm_device *self, gm_stream stream)
{
    return plain_of(self)->stream_identity(self, stream);
}

/* ---- memory ---------------------------------------------------------------------- */

static gm_status
checked_segment_create(gm_device *self, size_t size, gm_devptr *out)
{
    gm_devptr address;
    GM_TRY(plain_of(self)->segment_create(self, size, &address));
    gm_checker_add_segment(checker_of(self), address, size);
    *out = address;
    return GM_OK;
}

static gm_status
checked_segment_destroy(gm_device *self, gm_devptr address, size_t size)
{
    GM_TRY(gm_device_usable(self));
    gm_checker *checker = checker_of(self);
    gm_checker_place *place = gm_checker_take_place(checker, address, size);
    gm_status status = plain_of(self)->segment_destroy(self, address, size);
    if (status == GM_OK) {
        gm_checker_drop_place(checker, place);
    }
    else {
        gm_checker_put_place(checker, place);
    }
    return status;
}

static gm_status
checked_address_reserve(gm_device *self, size_t size, gm_devptr *out)
{
    gm_devptr address;
    GM_TRY(plain_of(self)->address_reserve(self, size, &address));
    gm_checker_add_range(checker_of(self), address, size);
    *out = address;
    return GM_OK;
}

static gm_status
checked_address_release(gm_device *self, gm_devptr address, size_t size)
{
    GM_TRY(gm_device_usable(self));
    gm_checker *checker = checker_of(self);
    gm_checker_place *place = gm_checker_take_place(checker, address, size);
    gm_status status = plain_of(self)->address_release(self, address, size);
    if (status == GM_OK) {
        gm_checker_drop_place(checker, place);
    }
    else {
        gm_checker_put_place(checker, place);
    }
    return status;
}

static gm_status
checked_page_create(gm_device *self, gm_page *out)
{
    gm_page page;
    GM_TRY(plain_of(self)->page_create(self, &page));
    gm_checker_add_page(checker_of(self), page);
    *out = page;
    return GM_OK;
}

static gm_status
checked_page_destroy(gm_device *self, gm_page name)
{
    GM_TRY(gm_device_usable(self));
    gm_checker *checker = checker_of(self);
    gm_checker_page *page = gm_checker_take_page(checker, name);
    gm_status status = plain_of(self)->page_destroy(self, name);
    if (status == GM_OK) {
        gm_checker_drop_page(checker, page);
    }
    else {
        gm_checker_put_page(checker, page);
    }
    return status;
}

static gm_status
checked_map(gm_device *self, gm_devptr address, gm_page page)
{
    GM_TRY(plain_of(self)->map(self, address, page));
    gm_checker_map(checker_of(self), address, page);
    return GM_OK;
}

static gm_status
checked_unmap(gm_device *self, gm_devptr address, size_t size)
{
    GM_TRY(plain_of(self)->unmap(self, address, size));
    gm_checker_unmap(checker_of(self), address, size,
                     !gm_device_has(self, GM_CAP_UNMAP_SYNCS));
    return GM_OK;
}

/* ---- streams and events ---------------------------------------------------------- */

static gm_status
checked_stream_synchronize(gm_device *self, gm_stream stream, uint64_t timeout_ns)
{
    GM_TRY(gm_device_usable(self));
    gm_checker *checker = checker_of(self);
    gm_clock clock = gm_checker_stream_clock(checker, identity_of(self, stream));
    gm_status status = plain_of(self)->stream_synchronize(self, stream, timeout_ns);
    if (status == GM_OK) {
        gm_checker_learn(checker, &clock);
    }
    gm_clock_free(&clock);
    return status;
}

static gm_status
checked_threads_synchronize(gm_device *self, uint64_t timeout_ns)
{
    GM_TRY(gm_device_usable(self));
    gm_checker *checker = checker_of(self);
    gm_clock clock = gm_checker_threads_clock(checker);
    gm_status status = plain_of(self)->threads_synchronize(self, timeout_ns);
    if (status == GM_OK) {
        gm_checker_learn(checker, &clock);
    }
    gm_clock_free(&clock);
    return status;
}

static gm_status
checked_event_destroy(gm_device *self, gm_event event)
{
    GM_TRY(gm_device_usable(self));
    gm_checker_event_gone(checker_of(self), event);
    return plain_of(self)->event_destroy(self, event);
}

static gm_status
checked_event_record(gm_device *self, gm_event event, gm_stream stream)
{
    GM_TRY(gm_device_usable(self));
    gm_checker *checker = checker_of(self);
    gm_clock clock = gm_checker_begin_record(checker, event, identity_of(self, stream));
    gm_status status = plain_of(self)->event_record(self, event, stream);
    gm_checker_end_record(checker, event, &clock, status == GM_OK);
    return status;
}

static gm_status
checked_event_query(gm_device *self, gm_event event)
{
    GM_TRY(gm_device_usable(self));
    gm_checker *checker = checker_of(self);
    uint64_t version = gm_checker_event_version(checker, event);
    GM_TRY(plain_of(self)->event_query(self, event));
    gm_checker_event_done(checker, event, version);
    return GM_OK;
}

static gm_status
checked_event_synchronize(gm_device *self, gm_event event, uint64_t timeout_ns)
{
    GM_TRY(gm_device_usable(self));
    gm_checker *checker = checker_of(self);
    uint64_t version = gm_checker_event_version(checker, event);
    GM_TRY(plain_of(self)->event_synchronize(self, event, timeout_ns));
    gm_checker_event_done(checker, event, version);
    return GM_OK;
}

static gm_status
checked_stream_wait(gm_device *self, gm_stream stream, gm_event event)
{
    GM_TRY(gm_device_usable(self));
    gm_checker *checker = checker_of(self);
    uint64_t version = gm_checker_event_version(checker, event);
    GM_TRY(plain_of(self)->stream_wait(self, stream, event));
    gm_checker_stream_waits(checker, identity_of(self, stream), event, version);
    return GM_OK;
}

/* ---- work ------------------------------------------------------------------------ */

static gm_status
checked_copy_async(gm_device *self, gm_devptr destination, gm_devptr source, size_t n,
                   gm_stream stream)
{
    GM_TRY(plain_of(self)->copy_async(self, destination, source, n, stream));
    uint64_t identity = identity_of(self, stream);
    gm_checker_note_use(checker_of(self), destination, n, identity);
    gm_checker_note_use(checker_of(self), source, n, identity);
    return GM_OK;
}

static gm_status
checked_fill_async(gm_device *self, gm_devptr destination, const void *pattern,
                   size_t width, size_t count, gm_stream stream)
{
    GM_TRY(
        plain_of(self)->fill_async(self, destination, pattern, width, count, stream));
    gm_checker_note_use(checker_of(self), destination, width * count,
                        identity_of(self, stream));
    return GM_OK;
}

static void
checked_note_block(gm_device *self, gm_devptr address, size_t size, uint64_t identity)
{
    if (gm_device_usable(self) == GM_OK) {
        gm_checker_note_block(checker_of(self), address, size, identity);
    }
}

static void
checked_note_use(gm_device *self, gm_devptr address, size_t size, uint64_t identity)
{
    if (gm_device_usable(self) == GM_OK) {
        gm_checker_note_use(checker_of(self), address, size, identity);
    }
}

/* ---- life ------------------------------------------------------------------------ */

static void
checked_close(gm_device *self)
{
    gm_checked_calls *checks = self->checks;
    checks->plain.close(self);
    gm_checker_destroy(checks->checker);
    free(checks);
}

/* Puts the checked calls in place. Without paging there are no pages to check. */
static void
cover(gm_device_ops *ops)
{
    if (ops->map != NULL) {
        ops->address_reserve = checked_address_reserve;
        ops->address_release = checked_address_release;
        ops->page_create = checked_page_create;
        ops->page_destroy = checked_page_destroy;
        ops->map = checked_map;
        ops->unmap = checked_unmap;
    }
    ops->segment_create = checked_segment_create;
    ops->segment_destroy = checked_segment_destroy;
    ops->stream_synchronize = checked_stream_synchronize;
    ops->threads_synchronize = checked_threads_synchronize;
    ops->event_destroy = checked_event_destroy;
    ops->event_record = checked_event_record;
    ops->event_query = checked_event_query;
    ops->event_synchronize = checked_event_synchronize;
    ops->stream_wait = checked_stream_wait;
    ops->copy_async = checked_copy_async;
    ops->fill_async = checked_fill_async;
    ops->note_block = checked_note_block;
    ops->note_use = checked_note_use;
    ops->close = checked_close;
}

gm_status
gm_checker_install(gm_device *device, gm_device_ops *ops)
{
    gm_checked_calls *checks = calloc(1, sizeof(*checks));
    if (checks == NULL) {
        return GM_NO_HOST_MEMORY;
    }
    gm_status status = gm_checker_create(device->info.page_size, &checks->checker);
    if (status != GM_OK) {
        free(checks);
        return status;
    }
    checks->plain = *ops;
    device->checks = checks;
    cover(ops);
    return GM_OK;
}

uint64_t
gm_device_violations(gm_device *device, char *text, size_t size)
{
    const gm_device *inner = gm_fault_inner(device);
    if (size > 0) {
        text[0] = '\0';
    }
    if (inner->checks == NULL || gm_device_usable(inner) == GM_FORKED) {
        return 0;
    }
    return gm_checker_violations(checker_of(inner), text, size);
}
