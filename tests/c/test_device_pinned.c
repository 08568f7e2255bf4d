/* test_device_pinned.c - the pinned memory of a device as a device: where its segments
 * lie, what is given back, and events on the host's own stream.
 */
#include "device/pinned_device.h"
#include "device_kinds.h"

static gm_device *
host_device(void)
{
    gm_host_options options = {.capacity = 8 * MIB, .paging = true};
    return open_host(&options);
}

static gm_device *
pinned_of(gm_device *inner)
{
    gm_device *device = NULL;
    CHECK_OK(gm_pinned_device_create(inner, &device));
    return device;
}

static void
test_it_describes_itself(void)
{
    gm_device *inner = host_device();
    gm_device *device = pinned_of(inner);
    CHECK(strcmp(device->info.name, "host:0 pinned") == 0);
    CHECK(gm_device_has(device, GM_CAP_HOST_ACCESS | GM_CAP_MEMORY));
    CHECK(!gm_device_has(device, GM_CAP_PAGING));
    CHECK(gm_pinned_device_inner(device) == inner);
    CHECK(gm_pinned_device_inner(inner) == inner);
    CHECK(device->ops->page_create == NULL);
    size_t free_bytes, total;
    CHECK_OK(device->ops->memory_info(device, &free_bytes, &total));
    CHECK(free_bytes <= total);
    CHECK_EQ(total, device->info.total);
    CHECK(device->ops->clock_ns(device) <= inner->ops->clock_ns(inner));
    gm_device_release(inner);
    gm_device_release(device);
}

static void
test_segments_are_aligned_writable_and_given_back(void)
{
    gm_device *inner = host_device();
    gm_device *device = pinned_of(inner);
    gm_devptr segments[20];
    size_t sizes[20];
    for (size_t i = 0; i < 20; i++) {
        sizes[i] = (i + 1) * 512 * (i % 3 == 0 ? 4096 : 1);
        CHECK_OK(device->ops->segment_create(device, sizes[i], &segments[i]));
        CHECK_EQ(segments[i] % GM_RANGE_ALIGNMENT, 0);
        memset(gm_device_host_pointer(segments[i]), (int)i, sizes[i]);
    }
    for (size_t i = 0; i < 20; i++) {
        const unsigned char *bytes = gm_device_host_pointer(segments[i]);
        CHECK_EQ(bytes[0], i);
        CHECK_EQ(bytes[sizes[i] - 1], i);
    }
    for (size_t i = 20; i-- > 0;) {
        CHECK_OK(device->ops->segment_destroy(device, segments[i], sizes[i]));
    }
    CHECK_STATUS(device->ops->segment_destroy(device, segments[0], 512), GM_INVALID);
    CHECK_EQ(counters_of(device).pinned_now, 0);
    gm_device_release(device);
    gm_device_release(inner);
}

static void
test_failures_of_the_inner_device_come_through(void)
{
    gm_device *inner = behind_faults(host_device());
    gm_device *device = pinned_of(inner);
    gm_devptr address = 7;
    gm_event event = 7;
    for (uint64_t nth = 1; nth <= 2; nth++) {
        gm_fault_plan plan = {.call = GM_CALL_PINNED_CREATE,
                              .nth = nth,
                              .for_ever = true,
                              .status = GM_NO_HOST_MEMORY};
        gm_fault_arm(inner, &plan);
        gm_status status = device->ops->segment_create(device, 2 * MIB, &address);
        if (nth == 1 || status != GM_OK) {
            CHECK_STATUS(status, GM_OUT_OF_MEMORY);
            CHECK_EQ(address, 7);
        }
        else {
            CHECK_OK(device->ops->segment_destroy(device, address, 2 * MIB));
        }
        CHECK_EQ(counters_of(device).pinned_now, 0);
    }
    gm_fault_plan plan = {
        .call = GM_CALL_EVENT_CREATE, .nth = 1, .status = GM_DEVICE_ERROR};
    gm_fault_arm(inner, &plan);
    CHECK_STATUS(device->ops->event_create(device, &event), GM_DEVICE_ERROR);
    CHECK_EQ(event, 7);
    gm_fault_arm(inner, NULL);
    gm_device_release(device);
    gm_device_release(inner);
}

static void
test_the_hosts_stream_is_always_done(void)
{
    gm_device *inner = host_device();
    gm_device *device = pinned_of(inner);
    const gm_device_ops *ops = device->ops;
    gm_stream stream;
    gm_event event;
    bool capturing = true;
    CHECK_EQ(ops->stream_identity(device, GM_HOST_STREAM), GM_HOST_STREAM);
    CHECK_EQ(GM_HOST_STREAM & GM_IDENTITY_OF_THREAD, 0);
    CHECK_OK(ops->stream_synchronize(device, GM_HOST_STREAM, 0));
    CHECK_OK(ops->threads_synchronize(device, 0));
    CHECK_OK(ops->stream_capturing(device, GM_HOST_STREAM, &capturing));
    CHECK(!capturing);
    CHECK_OK(ops->stream_create(device, &stream));
    CHECK_EQ(ops->stream_identity(device, stream),
             inner->ops->stream_identity(inner, stream));
    CHECK_OK(ops->event_create(device, &event));
    CHECK_OK(ops->event_query(device, event));
    CHECK_OK(gm_host_stall(inner, stream));
    CHECK_OK(ops->event_record(device, event, stream));
    CHECK_STATUS(ops->event_query(device, event), GM_NOT_READY);
    CHECK_STATUS(ops->event_synchronize(device, event, 0), GM_NOT_READY);
    CHECK_STATUS(ops->stream_wait(device, GM_HOST_STREAM, event), GM_UNSUPPORTED);
    CHECK_STATUS(ops->stream_synchronize(device, stream, 0), GM_NOT_READY);
    CHECK_OK(ops->event_record(device, event, GM_HOST_STREAM));
    CHECK_OK(ops->event_query(device, event));
    CHECK_OK(ops->event_synchronize(device, event, 0));
    CHECK_OK(ops->stream_wait(device, stream, event));
    CHECK_OK(ops->event_record(device, event, stream));
    CHECK_STATUS(ops->event_query(device, event), GM_NOT_READY);
    CHECK_OK(gm_host_release_work(inner, stream, SIZE_MAX, NULL));
    CHECK_OK(ops->event_query(device, event));
    CHECK_OK(ops->stream_wait(device, GM_HOST_STREAM, event));
    CHECK_OK(ops->stream_wait(device, stream, event));
    CHECK_OK(ops->stream_capturing(device, stream, &capturing));
    CHECK_OK(ops->event_destroy(device, event));
    CHECK_OK(ops->stream_destroy(device, stream));
    gm_device_release(device);
    gm_device_release(inner);
}

static const gm_test tests[] = {
    {"it_describes_itself", test_it_describes_itself},
    {"segments_are_aligned_writable_and_given_back",
     test_segments_are_aligned_writable_and_given_back},
    {"failures_of_the_inner_device_come_through",
     test_failures_of_the_inner_device_come_through},
    {"the_hosts_stream_is_always_done", test_the_hosts_stream_is_always_done},
};

GM_TEST_MAIN(tests)
