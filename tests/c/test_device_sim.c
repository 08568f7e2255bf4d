/* test_device_sim.c - the sim device: time and lag, addresses, unlimited capacity. */
#include <pthread.h>

#include "device_kinds.h"

#define PAGE (2 * MIB)

static gm_device *
open_with_lag(uint64_t lag)
{
    gm_sim_options options = {.capacity = 64 * MIB, .paging = true, .lag = lag};
    return open_sim(&options);
}

static void
tick(gm_device *device, int times)
{
    for (int i = 0; i < times; i++) {
        gm_sim_tick(device);
    }
}

static void
test_bad_options_are_refused(void)
{
    static const gm_sim_options bad[] = {
        {.capacity = 0},
        {.capacity = MIB, .index = -1},
        {.capacity = MIB, .page_size = 2048},
        {.capacity = MIB, .page_size = 12288},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        gm_device *device = NULL;
        CHECK_STATUS(gm_sim_create(&bad[i], &device), GM_INVALID);
        CHECK(device == NULL);
    }
}

/* ---- time ---- */

static void
test_events_are_done_after_the_lag(void)
{
    gm_device *device = open_with_lag(3);
    const gm_device_ops *ops = device->ops;
    gm_event early, late;
    CHECK_OK(ops->event_create(device, &early));
    CHECK_OK(ops->event_create(device, &late));
    CHECK_OK(ops->event_record(device, early, 0));
    tick(device, 2);
    CHECK_STATUS(ops->event_query(device, early), GM_NOT_READY);
    CHECK_OK(ops->event_record(device, late, 0));
    tick(device, 1);
    CHECK_OK(ops->event_query(device, early));
    CHECK_STATUS(ops->event_query(device, late), GM_NOT_READY);
    CHECK_EQ(ops->clock_ns(device), 3000);
    CHECK_EQ(gm_sim_host_waits(device), 0);
    /* A host wait moves time to the event. */
    CHECK_OK(ops->event_synchronize(device, late, UINT64_MAX));
    CHECK_EQ(gm_sim_host_waits(device), 1);
    CHECK_EQ(ops->clock_ns(device), 5000);
    CHECK_OK(ops->event_query(device, late));
    CHECK_OK(ops->event_synchronize(device, late, UINT64_MAX));
    CHECK_EQ(gm_sim_host_waits(device), 1);
    gm_sim_set_lag(device, 0);
    CHECK_OK(ops->event_record(device, late, 0));
    CHECK_OK(ops->event_query(device, late));
    gm_device_release(device);
}

static void
test_waits_with_a_limit(void)
{
    gm_device *device = open_with_lag(10);
    const gm_device_ops *ops = device->ops;
    gm_event event;
    CHECK_OK(ops->event_create(device, &event));
    CHECK_OK(ops->event_record(device, event, 0));
    CHECK_STATUS(ops->event_synchronize(device, event, 0), GM_NOT_READY);
    CHECK_EQ(gm_sim_host_waits(device), 0);
    CHECK_STATUS(ops->stream_synchronize(device, 0, 4000), GM_NOT_READY);
    CHECK_EQ(ops->clock_ns(device), 4000);
    CHECK_EQ(gm_sim_host_waits(device), 1);
    CHECK_OK(ops->event_synchronize(device, event, 6000));
    CHECK_EQ(ops->clock_ns(device), 10000);
    CHECK_OK(ops->stream_synchronize(device, 0, 0));
    gm_sim_set_lag(device, UINT64_MAX);
    CHECK_OK(ops->event_record(device, event, 0));
    CHECK_OK(ops->stream_synchronize(device, 0, UINT64_MAX));
    tick(device, 1);
    CHECK_OK(ops->event_query(device, event));
    gm_device_release(device);
}

static void
test_streams_order_events(void)
{
    gm_device *device = open_with_lag(5);
    const gm_device_ops *ops = device->ops;
    gm_stream a, b;
    gm_event first, second;
    CHECK_OK(ops->stream_create(device, &a));
    CHECK_OK(ops->stream_create(device, &b));
    CHECK_OK(ops->event_create(device, &first));
    CHECK_OK(ops->event_create(device, &second));
    CHECK_OK(ops->event_record(device, first, a));
    gm_sim_set_lag(device, 1);
    CHECK_OK(ops->event_record(device, second, b));
    tick(device, 1);
    CHECK_OK(ops->event_query(device, second));
    /* After waiting for `first`, b is not done before it. */
    CHECK_OK(ops->stream_wait(device, b, first));
    CHECK_OK(ops->event_record(device, second, b));
    tick(device, 3);
    CHECK_STATUS(ops->event_query(device, second), GM_NOT_READY);
    CHECK_STATUS(ops->stream_synchronize(device, b, 0), GM_NOT_READY);
    CHECK_STATUS(ops->event_query(device, first), GM_NOT_READY);
    tick(device, 1);
    CHECK_OK(ops->event_query(device, first));
    CHECK_OK(ops->event_query(device, second));
    /* Nor does a later event of one stream overtake an earlier one. */
    gm_sim_set_lag(device, 9);
    CHECK_OK(ops->event_record(device, first, a));
    gm_sim_set_lag(device, 0);
    CHECK_OK(ops->event_record(device, second, a));
    CHECK_STATUS(ops->event_query(device, second), GM_NOT_READY);
    gm_device_release(device);
}

static void *
record_on_stream_two(void *argument)
{
    gm_device *device = argument;
    gm_event event;
    CHECK_OK(device->ops->event_create(device, &event));
    CHECK_OK(device->ops->event_record(device, event, 2));
    CHECK_STATUS(device->ops->stream_synchronize(device, 2, 0), GM_NOT_READY);
    return NULL;
}

static void
test_each_thread_has_its_own_stream_two(void)
{
    gm_device *device = open_with_lag(4);
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        CHECK_EQ(pthread_create(&thread, NULL, record_on_stream_two, device), 0);
        CHECK_EQ(pthread_join(thread, NULL), 0);
        CHECK_OK(device->ops->stream_synchronize(device, 2, 0));
        CHECK_STATUS(device->ops->threads_synchronize(device, 0), GM_NOT_READY);
        tick(device, 2);
    }
    CHECK_OK(device->ops->threads_synchronize(device, UINT64_MAX));
    CHECK_OK(device->ops->threads_synchronize(device, 0));
    gm_device_release(device);
}

/* ---- addresses ---- */

static void
test_addresses_are_used_again(void)
{
    enum {
        RANGES = 64
    };
    gm_device *device = open_with_lag(0);
    const gm_device_ops *ops = device->ops;
    gm_devptr ranges[RANGES], again, highest = 0;
    for (int i = 0; i < RANGES; i++) {
        CHECK_OK(ops->address_reserve(device, (size_t)(i % 5 + 1) * PAGE, &ranges[i]));
        CHECK(ranges[i] < (gm_devptr)1 << 47);
        highest = ranges[i] > highest ? ranges[i] : highest;
    }
    /* Neighbouring holes join: what two ranges left takes one of their size. */
    CHECK_OK(ops->address_release(device, ranges[11], 2 * PAGE));
    CHECK_OK(ops->address_release(device, ranges[13], 4 * PAGE));
    CHECK_OK(ops->address_release(device, ranges[12], 3 * PAGE));
    CHECK_OK(ops->address_reserve(device, 9 * PAGE, &again));
    CHECK_EQ(again, ranges[11]);
    CHECK_OK(ops->address_release(device, again, 9 * PAGE));
    for (int i = 0; i < RANGES; i++) {
        if (i < 11 || i > 13) {
            size_t size = (size_t)(i % 5 + 1) * PAGE;
            CHECK_OK(ops->address_release(device, ranges[i], size));
        }
    }
    uint32_t seed = 12345;
    for (int i = 0; i < 20000; i++) {
        gm_devptr pair[2];
        seed = seed * 1664525u + 1013904223u;
        size_t size = (size_t)(seed >> 24 & 7) * PAGE + PAGE;
        CHECK_OK(ops->address_reserve(device, size, &pair[0]));
        CHECK_OK(ops->segment_create(device, 512, &pair[1]));
        CHECK(pair[0] <= highest && pair[1] <= highest);
        CHECK_OK(ops->address_release(device, pair[0], size));
        CHECK_OK(ops->segment_destroy(device, pair[1], 512));
    }
    CHECK_OK(ops->address_reserve(device, PAGE, &again));
    CHECK_EQ(again, ranges[0]);
    gm_device_release(device);
}

static void
test_unlimited_capacity(void)
{
    gm_sim_options options = {.capacity = SIZE_MAX, .paging = true};
    gm_device *device = open_sim(&options);
    const gm_device_ops *ops = device->ops;
    gm_devptr segment, range;
    gm_page page;
    CHECK_EQ(device->info.total, SIZE_MAX / 4);
    CHECK_EQ(free_of(device), SIZE_MAX / 4);
    CHECK_OK(ops->segment_create(device, (size_t)1 << 44, &segment));
    CHECK_STATUS(ops->segment_create(device, (size_t)1 << 47, &segment),
                 GM_OUT_OF_MEMORY);
    CHECK_OK(ops->address_reserve(device, (size_t)1 << 33, &range));
    for (size_t i = 0; i < 4096; i++) {
        CHECK_OK(ops->page_create(device, &page));
        CHECK_EQ(page, i + 1);
        CHECK_OK(ops->map(device, range + i * PAGE, page));
    }
    CHECK_OK(ops->grant(device, range, 4096 * PAGE));
    CHECK_OK(ops->unmap(device, range + 64 * PAGE, 64 * PAGE));
    for (size_t i = 127; i >= 64; i--) {
        CHECK_OK(ops->page_destroy(device, i + 1));
    }
    for (size_t i = 64; i < 128; i++) {
        CHECK_OK(ops->page_create(device, &page));
        CHECK_EQ(page, i + 1);
    }
    CHECK_OK(ops->page_create(device, &page));
    CHECK_EQ(page, 4097);
    CHECK_EQ(counters_of(device).mapped_now, (4096 - 64) * PAGE);
    gm_device_release(device);
}

static void
test_no_other_open_device_has_the_addresses(void)
{
    enum {
        DEVICES = 5
    };
    gm_sim_options options = {.capacity = SIZE_MAX, .paging = true};
    gm_device *devices[DEVICES];
    gm_devptr range[DEVICES], segment[DEVICES], again;
    const size_t sizes[] = {PAGE, (size_t)3 << 38, PAGE, (size_t)1 << 40, PAGE};
    for (int i = 0; i < DEVICES; i++) {
        devices[i] = open_sim(&options);
        const gm_device_ops *ops = devices[i]->ops;
        CHECK_OK(ops->address_reserve(devices[i], sizes[i], &range[i]));
    }
    for (int i = 0; i < DEVICES; i++) {
        const gm_device_ops *ops = devices[i]->ops;
        CHECK_OK(ops->segment_create(devices[i], sizes[DEVICES - 1 - i], &segment[i]));
        for (int j = 0; j <= i; j++) {
            size_t other = sizes[DEVICES - 1 - j];
            CHECK(range[j] + sizes[j] <= segment[i] ||
                  segment[i] + sizes[DEVICES - 1 - i] <= range[j]);
            CHECK(j == i || segment[j] + other <= segment[i] ||
                  segment[i] + sizes[DEVICES - 1 - i] <= segment[j]);
            CHECK(j == i || range[j] + sizes[j] <= range[i] ||
                  range[i] + sizes[i] <= range[j]);
        }
    }
    /* What closed devices had is used again; a device alone grows in place. */
    gm_devptr lowest = range[0];
    for (int i = 0; i < DEVICES; i++) {
        gm_device_release(devices[i]);
    }
    devices[0] = open_sim(&options);
    for (int i = 0; i < 8; i++) {
        CHECK_OK(devices[0]->ops->address_reserve(devices[0], sizes[3], &again));
        CHECK_EQ(again, lowest + (gm_devptr)i * sizes[3]);
    }
    gm_device_release(devices[0]);
}

static void
test_the_space_may_be_used_up(void)
{
    gm_sim_options options = {.capacity = SIZE_MAX, .paging = true};
    gm_device *large = open_sim(&options), *small = open_sim(&options);
    gm_devptr first, second, third;
    CHECK_OK(large->ops->address_reserve(large, (size_t)126 << 40, &first));
    CHECK_STATUS(small->ops->address_reserve(small, PAGE, &second), GM_NO_ADDRESS);
    CHECK_STATUS(small->ops->segment_create(small, 512, &second), GM_OUT_OF_MEMORY);
    CHECK_STATUS(large->ops->address_reserve(large, PAGE, &second), GM_NO_ADDRESS);
    /* A region stays one device's for as long as that has addresses of it. */
    CHECK_OK(large->ops->address_release(large, first, (size_t)126 << 40));
    CHECK_OK(large->ops->address_reserve(large, PAGE, &second));
    CHECK_EQ(second, first);
    CHECK_OK(small->ops->address_reserve(small, PAGE, &third));
    CHECK(third >= first + PAGE);
    CHECK_STATUS(large->ops->address_reserve(large, (size_t)126 << 40, &first),
                 GM_NO_ADDRESS);
    CHECK_OK(large->ops->address_release(large, second, PAGE));
    CHECK_OK(small->ops->address_release(small, third, PAGE));
    CHECK_OK(small->ops->address_reserve(small, PAGE, &third));
    CHECK_EQ(third, second);
    gm_device_release(large);
    gm_device_release(small);
}

/* ---- threads ---- */

static void *
open_and_reserve(void *argument)
{
    gm_sim_options options = {.capacity = 64 * MIB};
    (void)argument;
    for (int i = 0; i < 500; i++) {
        gm_device *device = open_sim(&options);
        gm_devptr segment;
        CHECK_OK(device->ops->segment_create(device, PAGE, &segment));
        CHECK_OK(device->ops->segment_destroy(device, segment, PAGE));
        gm_device_release(device);
    }
    return NULL;
}

static void
test_devices_come_and_go_in_threads(void)
{
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(pthread_create(&threads[i], NULL, open_and_reserve, NULL), 0);
    }
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    }
}

static void *
use_events(void *argument)
{
    gm_device *device = argument;
    const gm_device_ops *ops = device->ops;
    for (int i = 0; i < 2000; i++) {
        gm_event event;
        CHECK_OK(ops->event_create(device, &event));
        CHECK_OK(ops->event_record(device, event, 0));
        gm_sim_tick(device);
        gm_status status = ops->event_query(device, event);
        CHECK(status == GM_OK || status == GM_NOT_READY);
        CHECK_OK(ops->event_synchronize(device, event, UINT64_MAX));
        CHECK_OK(ops->event_query(device, event));
        CHECK_OK(ops->event_destroy(device, event));
    }
    return NULL;
}

static void
test_threads_share_the_device(void)
{
    gm_device *device = open_with_lag(7);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(pthread_create(&threads[i], NULL, use_events, device), 0);
    }
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    }
    CHECK_EQ(counters_of(device).calls[GM_CALL_EVENT_QUERY], 16000);
    gm_device_release(device);
}

static const gm_test tests[] = {
    {"bad_options_are_refused", test_bad_options_are_refused},
    {"events_are_done_after_the_lag", test_events_are_done_after_the_lag},
    {"waits_with_a_limit", test_waits_with_a_limit},
    {"streams_order_events", test_streams_order_events},
    {"each_thread_has_its_own_stream_two", test_each_thread_has_its_own_stream_two},
    {"addresses_are_used_again", test_addresses_are_used_again},
    {"no_other_open_device_has_the_addresses",
     test_no_other_open_device_has_the_addresses},
    {"the_space_may_be_used_up", test_the_space_may_be_used_up},
    {"unlimited_capacity", test_unlimited_capacity},
    {"devices_come_and_go_in_threads", test_devices_come_and_go_in_threads},
    {"threads_share_the_device", test_threads_share_the_device},
};

GM_TEST_MAIN(tests)
