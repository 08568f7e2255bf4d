/* pool_kinds.h - opening pools and reading them, for all tests of the pool.
 *
 * Host devices here have pages of 64 KiB, so that a few blocks fill some. A test ends
 * with close_pool, which holds the pool to giving everything back.
 */
#ifndef GM_TESTS_POOL_KINDS_H
#define GM_TESTS_POOL_KINDS_H

#include <sys/wait.h>
#include <unistd.h>

#include "device_kinds.h"
#include "pool/pool.h"

#define KIB ((size_t)1 << 10)
#define PAGE ((size_t)64 << 10)
#define SECOND UINT64_C(1000000000)

/* ---- devices and pools ----------------------------------------------------------- */

static inline gm_device *
host_device(size_t capacity)
{
    gm_host_options options = {
        .capacity = capacity, .page_size = PAGE, .paging = true, .aliasing = true};
    return open_host(&options);
}

/* Its time moves by gm_host_advance alone. */
static inline gm_device *
host_device_with_clock(size_t capacity)
{
    gm_host_options options = {.capacity = capacity,
                               .page_size = PAGE,
                               .paging = true,
                               .aliasing = true,
                               .manual_clock = true};
    return open_host(&options);
}

/* Options of most tests: the defaults, and no waiting before a failure. */
static inline gm_pool_options
usual_options(void)
{
    gm_pool_options options;
    gm_pool_options_init(&options);
    options.oom_wait_ns = 0;
    return options;
}

static inline gm_pool *
open_pool(gm_device *device, const gm_pool_options *options)
{
    gm_pool *pool = NULL;
    CHECK_OK(gm_pool_create(device, options, &pool));
    return pool;
}

/* With the usual options; of pages or of segments. */
static inline gm_pool *
pool_on(gm_device *device, bool paging)
{
    gm_pool_options options = usual_options();
    options.paging = paging;
    return open_pool(device, &options);
}

static inline gm_stream
new_stream(gm_device *device)
{
    gm_stream stream = 0;
    CHECK_OK(device->ops->stream_create(device, &stream));
    return stream;
}

static inline gm_stream
stalled_stream(gm_device *device)
{
    gm_stream stream = new_stream(device);
    CHECK_OK(gm_host_stall(gm_fault_inner(device), stream));
    return stream;
}

/* All work on the stream runs, and what comes later runs at once. */
static inline void
let_run(gm_device *device, gm_stream stream)
{
    CHECK_OK(gm_host_release_work(gm_fault_inner(device), stream, SIZE_MAX, NULL));
}

/* The nth call of a kind from now on fails. */
static inline void
fail_nth(gm_device *device, gm_device_call call, uint64_t nth, gm_status status)
{
    gm_fault_plan plan = {.call = (int)call, .nth = nth, .status = status};
    gm_fault_arm(device, &plan);
}

/* ---- blocks ---------------------------------------------------------------------- */

/* As the Python layer does: the fast path, and the whole one where that may help. */
static inline gm_status
allocate(gm_pool *pool, size_t size, gm_stream stream, gm_block **out, gm_oom *oom)
{
    gm_request request = {.size = size, .stream = stream};
    gm_status status = gm_pool_try_alloc(pool, &request, out);
    if (status == GM_MISS || status == GM_BUSY) {
        status = gm_pool_alloc(pool, &request, out, oom);
    }
    return status;
}

static inline gm_block *
take(gm_pool *pool, size_t size, gm_stream stream)
{
    gm_block *block = NULL;
    CHECK_OK(allocate(pool, size, stream, &block, NULL));
    return block;
}

/* ---- what a pool says ------------------------------------------------------------ */

/* Every invariant holds. */
#define CHECK_POOL(pool)                                                              \
    do {                                                                              \
        char check_pool_text[160] = "";                                               \
        if (gm_pool_check(pool, check_pool_text, sizeof(check_pool_text)) != GM_OK) { \
            check_fail(__FILE__, __LINE__, check_pool_text);                          \
        }                                                                             \
    } while (0)

static inline gm_pool_stats
stats_of(gm_pool *pool)
{
    gm_pool_stats stats;
    gm_pool_read_stats(pool, &stats);
    return stats;
}

static inline size_t
reserved(gm_pool *pool)
{
    return stats_of(pool).reserved_bytes.all.current;
}

static inline gm_trim_report
trim_all(gm_pool *pool)
{
    gm_trim_request request = {0};
    gm_trim_report report;
    CHECK_OK(gm_pool_trim(pool, &request, &report));
    return report;
}

/* The pool goes, and with it all memory, addresses and pages of its device, which goes,
 * too. */
static inline void
close_pool(gm_pool *pool)
{
    gm_device *device = gm_pool_device(pool);
    CHECK_POOL(pool);
    gm_pool_release(pool);
    CHECK_EQ(counters_of(device).memory_now, 0);
    CHECK_EQ(counters_of(device).mapped_now, 0);
    CHECK_EQ(counters_of(device).address_now, 0);
    gm_device_release(device);
}

/* ---- reports --------------------------------------------------------------------- */

/* What came through the report hook while report_to_test was set. */
static int reports;
static gm_status last_report;
static char last_report_text[160];

static inline void
note_report(gm_status status, const char *what)
{
    reports++;
    last_report = status;
    (void)snprintf(last_report_text, sizeof(last_report_text), "%s", what);
}

static inline void
watch_reports(void)
{
    reports = 0;
    last_report = GM_OK;
    last_report_text[0] = '\0';
    gm_set_report_hook(note_report);
}

/* Exactly one report has come, and it says this. */
#define CHECK_REPORT(status, text)                    \
    do {                                              \
        CHECK_EQ(reports, 1);                         \
        CHECK_STATUS(last_report, status);            \
        CHECK(strcmp(last_report_text, (text)) == 0); \
        watch_reports();                              \
    } while (0)

/* ---- children -------------------------------------------------------------------- */

/* Runs `body` in a child of fork and returns what waitpid says. A failed check ends the
 * child with status 1. `quiet`: its standard error is thrown away. It ends without a
 * search for leaks: a child leaks what its parent's other threads held. */
static inline int
run_in_child(void (*body)(void *argument), void *argument, bool quiet)
{
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        if (quiet && freopen("/dev/null", "w", stderr) == NULL) {
            exit(2);
        }
        body(argument);
        fflush(NULL);
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

/* The checks of `body` hold in a child of fork. */
static inline void
check_in_child(void (*body)(void *argument), void *argument)
{
    int status = run_in_child(body, argument, false);
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 0);
}

#endif
