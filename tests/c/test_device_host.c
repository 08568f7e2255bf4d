/* test_device_host.c - the host device's memory: what it costs, how it maps, what it
 * reports. Its streams: test_device_streams.c; capacity that processes share:
 * test_device_share.c.
 */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device_kinds.h"

#define PAGE (2 * MIB)

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

static gm_device *
open_sized(size_t capacity, size_t page_size)
{
    gm_host_options options = {
        .capacity = capacity, .page_size = page_size, .paging = true};
    return open_host(&options);
}

/* Bytes of this process in RAM. */
static size_t
resident(void)
{
    size_t size, pages;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL);
    CHECK_EQ(fscanf(file, "%zu %zu", &size, &pages), 2);
    fclose(file);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* The kernel's mappings that touch [start, start + size). */
static size_t
mappings_in(gm_devptr start, size_t size)
{
    size_t count = 0;
    char line[512];
    FILE *file = fopen("/proc/self/maps", "r");
    CHECK(file != NULL);
    while (fgets(line, sizeof(line), file) != NULL) {
        uint64_t low, high;
        if (sscanf(line, "%" SCNx64 "-%" SCNx64, &low, &high) == 2 &&
            low < start + size && high > start) {
            count++;
        }
    }
    fclose(file);
    return count;
}

/* Bytes that the memfds of this process take. */
static size_t
memfd_bytes(void)
{
    size_t bytes = 0;
    DIR *folder = opendir("/proc/self/fd");
    CHECK(folder != NULL);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char target[256] = {0};
        struct stat status;
        if (readlinkat(dirfd(folder), entry->d_name, target, sizeof(target) - 1) > 0 &&
            strncmp(target, "/memfd:host:", 12) == 0) {
            CHECK_EQ(fstat(atoi(entry->d_name), &status), 0);
            CHECK((fcntl(atoi(entry->d_name), F_GETFD) & FD_CLOEXEC) != 0);
            bytes += (size_t)status.st_blocks * 512;
        }
    }
    closedir(folder);
    return bytes;
}

static void
map_page(gm_device *device, gm_devptr address)
{
    gm_page page;
    CHECK_OK(device->ops->page_create(device, &page));
    CHECK_OK(device->ops->map(device, address, page));
    CHECK_OK(device->ops->grant(device, address, device->info.page_size));
}

/* ---- options ---- */

static void
test_bad_options_are_refused(void)
{
    static const gm_host_options bad[] = {
        {.capacity = 0},
        {.capacity = SIZE_MAX},
        {.capacity = MIB, .index = -1},
        {.capacity = MIB, .page_size = 2048},
        {.capacity = MIB, .page_size = 12288},
        {.capacity = MIB, .shared_name = ""},
        {.capacity = MIB, .shared_name = "a/b"},
        {.capacity = MIB, .shared_name = "dots.are.out"},
        {.capacity = MIB,
         .shared_name = "a-name-of-more-than-sixty-four-characters-is-longer-than-any-"
                        "person-types"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        gm_device *device = NULL;
        CHECK_STATUS(gm_host_create(&bad[i], &device), GM_INVALID);
        CHECK(device == NULL);
    }
}

/* ---- where segments lie ---- */

static void
test_segments_lie_lowest_first(void)
{
    gm_device *device = open_sized(64 * MIB, 0);
    const gm_device_ops *ops = device->ops;
    gm_devptr first, places[32], again;
    CHECK_OK(ops->segment_create(device, 512, &first));
    for (size_t i = 1; i < 32; i++) {
        CHECK_OK(ops->segment_create(device, MIB, &places[i]));
        CHECK_EQ(places[i], first + i * 2 * MIB);
        memset(gm_device_host_pointer(places[i]), 7, MIB);
    }
    /* What neighbours leave is one place, and the memory there is fresh. */
    CHECK_OK(ops->segment_destroy(device, places[5], MIB));
    CHECK_OK(ops->segment_destroy(device, places[7], MIB));
    CHECK_OK(ops->segment_destroy(device, places[6], MIB));
    CHECK_EQ(mappings_in(places[5], 6 * MIB), 1);
    CHECK_OK(ops->segment_create(device, 6 * MIB, &again));
    CHECK_EQ(again, places[5]);
    CHECK_EQ(((char *)gm_device_host_pointer(again))[2 * MIB], 0);
    CHECK_EQ(((char *)gm_device_host_pointer(places[8]))[MIB - 1], 7);
    gm_device_release(device);
}

static void
test_scattered_segments_find_room(void)
{
    enum {
        COUNT = 32
    };
    gm_device *device = open_sized(COUNT * MIB, 0);
    const gm_device_ops *ops = device->ops;
    gm_devptr places[COUNT], large;
    for (size_t i = 0; i < COUNT; i++) {
        CHECK_OK(ops->segment_create(device, 512, &places[i]));
    }
    for (size_t i = 0; i < COUNT; i += 2) {
        CHECK_OK(ops->segment_destroy(device, places[i], 512));
    }
    /* No place of that size is left among them, yet the capacity is there. */
    CHECK_OK(ops->segment_create(device, 30 * MIB, &large));
    memset(gm_device_host_pointer(large), 1, 30 * MIB);
    CHECK_OK(ops->segment_destroy(device, large, 30 * MIB));
    CHECK_OK(ops->segment_create(device, MIB, &large));
    CHECK_EQ(large, places[0]);
    gm_device_release(device);
}

/* ---- cost and mapping ---- */

static void
test_untouched_memory_costs_nothing(void)
{
    const size_t capacity = (size_t)80 << 30;
    gm_devptr range;
    size_t before = resident();
    gm_device *device = open_sized(capacity, 0);
    CHECK_EQ(free_of(device), capacity);
    CHECK_OK(device->ops->address_reserve(device, capacity, &range));
    for (size_t i = 0; i < capacity / PAGE; i++) {
        map_page(device, range + i * PAGE);
    }
    CHECK_EQ(free_of(device), 0);
    CHECK_EQ(counters_of(device).mapped_now, capacity);
    if (!SANITIZED) {
        CHECK(resident() - before < 20 * MIB);
    }
    /* Neighbours became one mapping. */
    CHECK_EQ(mappings_in(range, capacity), 1);
    char *memory = gm_device_host_pointer(range);
    memory[capacity - 1] = 3;
    CHECK_EQ(memory[capacity - 1], 3);
    gm_device_release(device);
    CHECK_EQ(memfd_bytes(), 0);
}

static void
test_destroyed_pages_give_memory_back(void)
{
    enum {
        PAGES = 8
    };
    gm_device *device = open_sized(64 * MIB, 0);
    gm_page pages[PAGES];
    gm_devptr range;
    CHECK_OK(device->ops->address_reserve(device, PAGES * PAGE, &range));
    for (size_t i = 0; i < PAGES; i++) {
        CHECK_OK(device->ops->page_create(device, &pages[i]));
        CHECK_OK(device->ops->map(device, range + i * PAGE, pages[i]));
    }
    CHECK_OK(device->ops->grant(device, range, PAGES * PAGE));
    CHECK_EQ(mappings_in(range, PAGES * PAGE), 1);
    memset(gm_device_host_pointer(range), 1, PAGES * PAGE);
    CHECK_EQ(memfd_bytes(), PAGES * PAGE);
    CHECK_OK(device->ops->unmap(device, range, 2 * PAGE));
    CHECK_EQ(memfd_bytes(), PAGES * PAGE);
    CHECK_OK(device->ops->page_destroy(device, pages[0]));
    CHECK_OK(device->ops->page_destroy(device, pages[1]));
    CHECK_EQ(memfd_bytes(), (PAGES - 2) * PAGE);
    /* The lowest page comes first again, and its memory is fresh. */
    map_page(device, range);
    CHECK_EQ(((char *)gm_device_host_pointer(range))[7], 0);
    CHECK_EQ(((char *)gm_device_host_pointer(range))[2 * PAGE], 1);
    gm_device_release(device);
    CHECK_EQ(memfd_bytes(), 0);
}

static void
test_large_pages_are_aligned(void)
{
    gm_device *device = open_sized(256 * MIB, 32 * MIB);
    gm_devptr range;
    CHECK_STATUS(device->ops->address_reserve(device, 2 * MIB, &range), GM_INVALID);
    CHECK_OK(device->ops->address_reserve(device, 64 * MIB, &range));
    CHECK_EQ(range % (32 * MIB), 0);
    map_page(device, range + 32 * MIB);
    ((char *)gm_device_host_pointer(range))[64 * MIB - 1] = 1;
    gm_device_release(device);
}

/* Runs `body` in a child; the signal that ended it, or minus its exit status. */
static int
end_of_child(void (*body)(gm_device *device), gm_device *device)
{
    int status;
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        const struct rlimit no_core = {0, 0};
        (void)setrlimit(RLIMIT_CORE, &no_core);
        signal(SIGSEGV, SIG_DFL);
        body(device);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status);
}

static void
touch_without_grant(gm_device *parent)
{
    gm_device *device = open_sized(64 * MIB, 0);
    gm_devptr range;
    gm_page page;
    (void)parent;
    CHECK_OK(device->ops->address_reserve(device, PAGE, &range));
    CHECK_OK(device->ops->page_create(device, &page));
    CHECK_OK(device->ops->map(device, range, page));
    *(volatile char *)gm_device_host_pointer(range) = 1;
}

static void
touch_after_unmap(gm_device *parent)
{
    gm_device *device = open_sized(64 * MIB, 0);
    gm_devptr range;
    (void)parent;
    CHECK_OK(device->ops->address_reserve(device, PAGE, &range));
    map_page(device, range);
    *(volatile char *)gm_device_host_pointer(range) = 1;
    CHECK_OK(device->ops->unmap(device, range, PAGE));
    *(volatile char *)gm_device_host_pointer(range) = 1;
}

static void
test_missing_access_faults(void)
{
    CHECK_EQ_SIGNED(end_of_child(touch_without_grant, NULL), SIGSEGV);
    CHECK_EQ_SIGNED(end_of_child(touch_after_unmap, NULL), SIGSEGV);
}

/* Maps single pages with gaps between until the device refuses; returns how many. */
static size_t
scatter_pages(gm_device *device, gm_devptr range)
{
    const gm_device_ops *ops = device->ops;
    gm_status status = GM_OK;
    size_t mapped = 0;
    while (status == GM_OK && mapped < 100000) {
        gm_page page;
        CHECK_OK(ops->page_create(device, &page));
        status = ops->map(device, range + mapped * 8192, page);
        if (status == GM_OK) {
            mapped++;
        }
        else {
            CHECK_STATUS(status, GM_NO_MAPPING);
            CHECK_OK(ops->page_destroy(device, page));
        }
    }
    CHECK_STATUS(status, GM_NO_MAPPING);
    return mapped;
}

static void
test_scattered_pages_leave_mappings_to_others(void)
{
    const size_t size = (size_t)1 << 30;
    gm_device *device = open_sized(size, 4096);
    const gm_device_ops *ops = device->ops;
    gm_devptr range;
    gm_page page;
    CHECK_OK(ops->address_reserve(device, size, &range));
    size_t mapped = scatter_pages(device, range);
    CHECK(mapped > 20000);
    CHECK_EQ(counters_of(device).mapped_now, mapped * 4096);
    CHECK_EQ(mappings_in(range, size), 2 * mapped);
    /* The program goes on: others map, and what needs no mapping more is mapped. */
    void *other = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(other != MAP_FAILED);
    munmap(other, 4096);
    CHECK_OK(ops->unmap(device, range, 4096));
    CHECK_OK(ops->unmap(device, range + 8192, 4096));
    CHECK_OK(ops->page_create(device, &page));
    CHECK_OK(ops->map(device, range + 8192, page));
    for (size_t i = 2; i < mapped; i++) {
        CHECK_OK(ops->unmap(device, range + i * 8192, 4096));
    }
    CHECK_EQ(mappings_in(range, size), 3);
    gm_device_release(device);
    /* All of it is forgotten with the device. */
    device = open_sized(size, 4096);
    CHECK_OK(device->ops->address_reserve(device, size, &range));
    CHECK_EQ(scatter_pages(device, range), mapped);
    gm_device_release(device);
}

/* Somebody else used the limit up. */
static void
unmap_at_the_limit(gm_device *parent)
{
    gm_device *device = open_sized(MIB * 64, 4096);
    const gm_device_ops *ops = device->ops;
    gm_devptr range;
    gm_page pages[2];
    (void)parent;
    CHECK_OK(ops->address_reserve(device, PAGE, &range));
    for (size_t i = 0; i < 2; i++) {
        CHECK_OK(ops->page_create(device, &pages[i]));
    }
    CHECK_OK(ops->map(device, range, pages[0]));
    CHECK_OK(ops->grant(device, range, 4096));
    for (int protection = PROT_READ;; protection ^= PROT_READ | PROT_WRITE) {
        if (mmap(NULL, 4096, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) ==
            MAP_FAILED) {
            break;
        }
    }
    CHECK_STATUS(ops->map(device, range + 8192, pages[1]), GM_NO_MAPPING);
    CHECK_OK(ops->unmap(device, range, 4096));
    CHECK_OK(ops->page_destroy(device, pages[0]));
    *(volatile char *)gm_device_host_pointer(range) = 1;
}

static void
test_unmap_works_at_the_limit(void)
{
    CHECK_EQ_SIGNED(end_of_child(unmap_at_the_limit, NULL), SIGSEGV);
}

/* ---- capacity ---- */

static void
test_others_take_capacity(void)
{
    gm_device *device = open_sized(64 * MIB, 0);
    gm_devptr segment, more;
    CHECK_OK(gm_host_occupy(device, 60 * MIB));
    CHECK_EQ(free_of(device), 4 * MIB);
    CHECK_OK(device->ops->segment_create(device, 3 * MIB, &segment));
    CHECK_STATUS(device->ops->segment_create(device, 2 * MIB, &more), GM_OUT_OF_MEMORY);
    CHECK_STATUS(gm_host_occupy(device, 62 * MIB), GM_OUT_OF_MEMORY);
    CHECK_STATUS(gm_host_occupy(device, SIZE_MAX), GM_OUT_OF_MEMORY);
    CHECK_OK(gm_host_occupy(device, 61 * MIB));
    CHECK_EQ(free_of(device), 0);
    CHECK_EQ(counters_of(device).memory_now, 3 * MIB);
    CHECK_OK(gm_host_occupy(device, 0));
    CHECK_EQ(free_of(device), 61 * MIB);
    gm_host_set_reported_free(device, 5);
    CHECK_EQ(free_of(device), 5);
    CHECK_OK(device->ops->segment_create(device, 2 * MIB, &more));
    gm_host_set_reported_free(device, SIZE_MAX);
    CHECK_EQ(free_of(device), 59 * MIB);
    gm_device_release(device);
}

static void
test_manual_clock_moves_by_hand(void)
{
    gm_host_options options = {.capacity = MIB, .manual_clock = true};
    gm_device *device = open_host(&options);
    uint64_t start = device->ops->clock_ns(device);
    usleep(1000);
    CHECK_EQ(device->ops->clock_ns(device), start);
    gm_host_advance(device, 1500);
    CHECK_EQ(device->ops->clock_ns(device), start + 1500);
    gm_device_release(device);
}

/* ---- threads ---- */

static void *
churn_pages(void *argument)
{
    gm_device *device = argument;
    const gm_device_ops *ops = device->ops;
    gm_devptr range, segment;
    gm_page page;
    CHECK_OK(ops->address_reserve(device, PAGE, &range));
    for (int i = 0; i < 300; i++) {
        CHECK_OK(ops->page_create(device, &page));
        CHECK_OK(ops->map(device, range, page));
        CHECK_OK(ops->grant(device, range, PAGE));
        *(volatile char *)gm_device_host_pointer(range) = (char)i;
        CHECK_OK(ops->unmap(device, range, PAGE));
        CHECK_OK(ops->page_destroy(device, page));
        CHECK_OK(ops->segment_create(device, 4096, &segment));
        CHECK_OK(ops->segment_destroy(device, segment, 4096));
        (void)free_of(device);
    }
    CHECK_OK(ops->address_release(device, range, PAGE));
    return NULL;
}

static void
test_threads_share_the_memory(void)
{
    gm_device *device = open_sized(64 * MIB, 0);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(pthread_create(&threads[i], NULL, churn_pages, device), 0);
    }
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    }
    gm_device_counters counters = counters_of(device);
    CHECK_EQ(counters.memory_now + counters.mapped_now + counters.address_now, 0);
    CHECK_EQ(counters.calls[GM_CALL_PAGE_CREATE], 1200);
    CHECK_EQ(counters.calls[GM_CALL_UNMAP], 1200);
    gm_device_release(device);
}

static const gm_test all_tests[] = {
    {"bad_options_are_refused", test_bad_options_are_refused},
    {"segments_lie_lowest_first", test_segments_lie_lowest_first},
    {"scattered_segments_find_room", test_scattered_segments_find_room},
    {"untouched_memory_costs_nothing", test_untouched_memory_costs_nothing},
    {"destroyed_pages_give_memory_back", test_destroyed_pages_give_memory_back},
    {"large_pages_are_aligned", test_large_pages_are_aligned},
    {"missing_access_faults", test_missing_access_faults},
    {"others_take_capacity", test_others_take_capacity},
    {"manual_clock_moves_by_hand", test_manual_clock_moves_by_hand},
    {"threads_share_the_memory", test_threads_share_the_memory},
    {"scattered_pages_leave_mappings_to_others",
     test_scattered_pages_leave_mappings_to_others},
    /* Last, and not under sanitizers: at the limit they cannot map for themselves. */
    {"unmap_works_at_the_limit", test_unmap_works_at_the_limit},
};

int
main(int argc, char **argv)
{
    size_t count = sizeof(all_tests) / sizeof(all_tests[0]);
    return check_run(all_tests, SANITIZED ? count - 1 : count, argc, argv);
}
