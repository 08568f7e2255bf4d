/* test_device_fault.c - plans of failure, delays and recording, over a sim device. */
#include <pthread.h>

#include "base/futex.h"
#include "device_kinds.h"

static gm_device *
open_faulty(void)
{
    gm_sim_options options = {.index = 1, .capacity = 64 * MIB, .paging = true};
    return behind_faults(open_sim(&options));
}

static gm_status
create_segment(gm_device *device, gm_devptr *out)
{
    return device->ops->segment_create(device, 512, out);
}

static void
test_inner_device(void)
{
    gm_device *device = open_faulty();
    gm_device *inner = gm_fault_inner(device);
    CHECK(inner != device);
    CHECK(gm_fault_inner(inner) == inner);
    CHECK(strcmp(device->info.name, "sim:1") == 0);
    gm_device *twice = behind_faults(gm_device_retain(device));
    CHECK(gm_fault_inner(twice) == inner);
    gm_device_release(twice);
    CHECK_EQ(free_of(device), 64 * MIB);
    gm_device_release(device);
}

static void
test_one_call_fails_once(void)
{
    gm_device *device = open_faulty();
    gm_fault_plan plan = {
        .call = GM_CALL_SEGMENT_CREATE, .nth = 3, .status = GM_DEVICE_ERROR};
    gm_devptr address = 7;
    gm_fault_arm(device, &plan);
    CHECK_OK(create_segment(device, &address));
    CHECK_EQ(free_of(device), 64 * MIB - 512);
    CHECK_OK(create_segment(device, &address));
    CHECK_EQ(gm_fault_injected(device), 0);
    gm_devptr untouched = 7;
    CHECK_STATUS(create_segment(device, &untouched), GM_DEVICE_ERROR);
    CHECK_EQ(untouched, 7);
    CHECK_EQ(gm_fault_injected(device), 1);
    CHECK_OK(create_segment(device, &address));
    /* The call that failed was not made. */
    CHECK_EQ(counters_of(device).calls[GM_CALL_SEGMENT_CREATE], 3);
    CHECK_EQ(counters_of(device).memory_now, 3 * 512);
    gm_fault_arm(device, &plan);
    CHECK_EQ(gm_fault_injected(device), 0);
    CHECK_OK(create_segment(device, &address));
    CHECK_OK(create_segment(device, &address));
    CHECK_STATUS(create_segment(device, &address), GM_DEVICE_ERROR);
    gm_device_release(device);
}

static void
test_calls_fail_for_ever(void)
{
    gm_device *device = open_faulty();
    gm_fault_plan plan = {.call = GM_CALL_PAGE_CREATE,
                          .nth = 2,
                          .for_ever = true,
                          .status = GM_OUT_OF_MEMORY};
    gm_page page;
    gm_devptr address;
    gm_fault_arm(device, &plan);
    CHECK_OK(device->ops->page_create(device, &page));
    for (int i = 0; i < 5; i++) {
        CHECK_STATUS(device->ops->page_create(device, &page), GM_OUT_OF_MEMORY);
        CHECK_OK(create_segment(device, &address));
    }
    CHECK_EQ(gm_fault_injected(device), 5);
    gm_fault_arm(device, NULL);
    CHECK_OK(device->ops->page_create(device, &page));
    CHECK_EQ(gm_fault_injected(device), 0);
    gm_device_release(device);
}

static void
test_calls_of_every_kind_count_together(void)
{
    gm_device *device = open_faulty();
    gm_fault_plan plan = {.call = -1, .nth = 3, .status = GM_DEVICE_LOST};
    gm_event event;
    gm_page page;
    size_t free_bytes, total;
    gm_fault_arm(device, &plan);
    CHECK_OK(device->ops->event_create(device, &event));
    CHECK_OK(device->ops->event_query(device, event));
    CHECK_STATUS(device->ops->memory_info(device, &free_bytes, &total), GM_DEVICE_LOST);
    CHECK_OK(device->ops->page_create(device, &page));
    plan.nth = 0;
    gm_fault_arm(device, &plan);
    for (int i = 0; i < 10; i++) {
        CHECK_OK(device->ops->event_query(device, event));
    }
    CHECK_EQ(gm_fault_injected(device), 0);
    gm_device_release(device);
}

/* Each call kind has a wrapper that fails by its own name and no other. */
static void
test_each_call_fails_by_its_name(void)
{
    gm_device *device = open_faulty();
    const gm_device_ops *ops = device->ops;
    for (int call = 0; call < GM_CALL_COUNT; call++) {
        gm_fault_plan plan = {
            .call = call, .nth = 1, .for_ever = true, .status = GM_BUSY};
        uint64_t out;
        size_t n;
        void *memory;
        bool yes;
        gm_fault_arm(device, &plan);
        gm_status got[GM_CALL_COUNT] = {
            [GM_CALL_MEMORY_INFO] = ops->memory_info(device, &n, &n),
            [GM_CALL_SEGMENT_CREATE] = ops->segment_create(device, 1, &out),
            [GM_CALL_SEGMENT_DESTROY] = ops->segment_destroy(device, 1, 1),
            [GM_CALL_ADDRESS_RESERVE] = ops->address_reserve(device, 1, &out),
            [GM_CALL_ADDRESS_RELEASE] = ops->address_release(device, 1, 1),
            [GM_CALL_PAGE_CREATE] = ops->page_create(device, &out),
            [GM_CALL_PAGE_DESTROY] = ops->page_destroy(device, 0),
            [GM_CALL_MAP] = ops->map(device, 1, 1),
            [GM_CALL_UNMAP] = ops->unmap(device, 1, 1),
            [GM_CALL_GRANT] = ops->grant(device, 1, 1),
            [GM_CALL_STREAM_CREATE] = ops->stream_create(device, &out),
            [GM_CALL_STREAM_DESTROY] = ops->stream_destroy(device, 9),
            [GM_CALL_STREAM_SYNCHRONIZE] = ops->stream_synchronize(device, 9, 0),
            [GM_CALL_THREADS_SYNCHRONIZE] = ops->threads_synchronize(device, 0),
            [GM_CALL_STREAM_CAPTURING] = ops->stream_capturing(device, 9, &yes),
            [GM_CALL_EVENT_CREATE] = ops->event_create(device, &out),
            [GM_CALL_EVENT_DESTROY] = ops->event_destroy(device, 9),
            [GM_CALL_EVENT_RECORD] = ops->event_record(device, 9, 9),
            [GM_CALL_EVENT_QUERY] = ops->event_query(device, 9),
            [GM_CALL_EVENT_SYNCHRONIZE] = ops->event_synchronize(device, 9, 0),
            [GM_CALL_STREAM_WAIT] = ops->stream_wait(device, 9, 9),
            [GM_CALL_COPY] = ops->copy_async(device, 1, 1, 1, 0),
            [GM_CALL_FILL] = ops->fill_async(device, 1, "", 1, 1, 0),
            [GM_CALL_PINNED_CREATE] = ops->pinned_create(device, 0, &memory),
            [GM_CALL_PINNED_DESTROY] = ops->pinned_destroy(device, &n, 1),
            [GM_CALL_PIN] = ops->pin(device, NULL, 1),
            [GM_CALL_UNPIN] = ops->unpin(device, &n, 1),
            [GM_CALL_LAUNCH] = ops->launch(device, NULL, NULL, 0, 0),
        };
        for (int other = 0; other < GM_CALL_COUNT; other++) {
            CHECK_EQ(got[other] == GM_BUSY, other == call);
        }
        CHECK_EQ(gm_fault_injected(device), 1);
    }
    gm_device_release(device);
}

static void
test_calls_are_delayed(void)
{
    gm_device *device = open_faulty();
    gm_fault_plan plan = {.call = GM_CALL_MEMORY_INFO, .delay_ns = 5000000};
    gm_fault_arm(device, &plan);
    uint64_t start = gm_monotonic_ns();
    (void)free_of(device);
    (void)free_of(device);
    CHECK(gm_monotonic_ns() - start >= 10000000);
    gm_device_release(device);
}

static void
test_calls_are_written_down(void)
{
    gm_device *device = open_faulty();
    gm_device_call kinds[8] = {GM_CALL_COUNT};
    gm_event event;
    CHECK_EQ(gm_fault_recorded(device, NULL, 0), 0);
    CHECK_OK(gm_fault_record(device, 3));
    CHECK_OK(device->ops->event_create(device, &event));
    CHECK_OK(device->ops->event_record(device, event, 0));
    CHECK_EQ(gm_fault_recorded(device, kinds, 8), 2);
    CHECK_EQ(kinds[0], GM_CALL_EVENT_CREATE);
    CHECK_EQ(kinds[1], GM_CALL_EVENT_RECORD);
    CHECK_OK(device->ops->event_query(device, event));
    CHECK_OK(device->ops->event_destroy(device, event));
    CHECK_EQ(gm_fault_recorded(device, kinds, 8), 3);
    CHECK_EQ(kinds[0], GM_CALL_EVENT_RECORD);
    CHECK_EQ(kinds[2], GM_CALL_EVENT_DESTROY);
    kinds[1] = GM_CALL_COUNT;
    CHECK_EQ(gm_fault_recorded(device, kinds, 1), 3);
    CHECK_EQ(kinds[1], GM_CALL_COUNT);
    CHECK_OK(gm_fault_record(device, 0));
    CHECK_EQ(gm_fault_recorded(device, kinds, 8), 0);
    gm_device_release(device);
}

enum {
    CALLS = 4000
};

static void *
call_much(void *argument)
{
    gm_device *device = argument;
    uint64_t *failed = calloc(1, sizeof(*failed));
    CHECK(failed != NULL);
    for (int i = 0; i < CALLS; i++) {
        size_t free_bytes, total;
        gm_status status = device->ops->memory_info(device, &free_bytes, &total);
        *failed += status == GM_BUSY;
    }
    return failed;
}

static void
test_exactly_one_thread_is_struck(void)
{
    gm_device *device = open_faulty();
    gm_fault_plan plan = {.call = GM_CALL_MEMORY_INFO, .nth = CALLS, .status = GM_BUSY};
    pthread_t threads[3];
    uint64_t sum = 0;
    gm_fault_arm(device, &plan);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(pthread_create(&threads[i], NULL, call_much, device), 0);
    }
    for (int i = 0; i < 3; i++) {
        void *failed;
        CHECK_EQ(pthread_join(threads[i], &failed), 0);
        sum += *(uint64_t *)failed;
        free(failed);
    }
    CHECK_EQ(sum, 1);
    CHECK_EQ(gm_fault_injected(device), 1);
    gm_device_release(device);
}

static const gm_test tests[] = {
    {"inner_device", test_inner_device},
    {"one_call_fails_once", test_one_call_fails_once},
    {"calls_fail_for_ever", test_calls_fail_for_ever},
    {"calls_of_every_kind_count_together", test_calls_of_every_kind_count_together},
    {"each_call_fails_by_its_name", test_each_call_fails_by_its_name},
    {"calls_are_delayed", test_calls_are_delayed},
    {"calls_are_written_down", test_calls_are_written_down},
    {"exactly_one_thread_is_struck", test_exactly_one_thread_is_struck},
};

GM_TEST_MAIN(tests)
