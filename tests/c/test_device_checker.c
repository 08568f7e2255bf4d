/* test_device_checker.c - the checker of host and sim devices: each edge that orders two
 * uses, and the same program without it, which must be reported. Streams here are never
 * stalled and events are done at once: work that happens to be finished excuses nothing.
 */
#include <sys/wait.h>
#include <unistd.h>

#include "checker_scene.h"
#include "device/handles.h"

/* ---- bytes that begin a new life ------------------------------------------------- */

static void
check_same_stream(scene *self, bool ordered)
{
    block(self, self->a, 512, self->s);
    use_bytes(self, self->a, 512, self->s);
    block(self, self->a, 512, ordered ? self->s : self->t);
    check_reported(self, ordered ? 0 : 1, "block");
}

static void
check_stream_wait(scene *self, bool ordered)
{
    use_bytes(self, self->a, 512, self->s);
    record(self, self->e, self->s);
    if (!ordered) {
        use_bytes(self, self->a, 512, self->s); /* the event does not cover this one */
    }
    wait_for(self, self->t, self->e);
    block(self, self->a, 512, self->t);
    check_reported(self, ordered ? 0 : 1, "block");
}

static void
check_wait_for_nothing(scene *self, bool ordered)
{
    use_bytes(self, self->a, 512, self->s);
    if (ordered) {
        record(self, self->e, self->s);
    }
    wait_for(self, self->t, self->e);
    block(self, self->a, 512, self->t);
    check_reported(self, ordered ? 0 : 1, "block");
}

static void
check_event_query(scene *self, bool ordered)
{
    use_bytes(self, self->a, 512, self->s);
    record(self, self->e, self->s);
    if (ordered) {
        CHECK_OK(self->ops->event_query(self->device, self->e));
    }
    block(self, self->a, 512, self->t);
    check_reported(self, ordered ? 0 : 1, "block");
}

static void
check_event_synchronize(scene *self, bool ordered)
{
    use_bytes(self, self->a, 512, self->s);
    record(self, self->e, self->s);
    record(self, self->f, self->t);
    CHECK_OK(self->ops->event_synchronize(self->device, ordered ? self->e : self->f,
                                          UINT64_MAX));
    block(self, self->a, 512, self->t);
    check_reported(self, ordered ? 0 : 1, "block");
}

static void
check_stream_synchronize(scene *self, bool ordered)
{
    use_bytes(self, self->a, 512, self->s);
    CHECK_OK(self->ops->stream_synchronize(self->device, ordered ? self->s : self->t,
                                           UINT64_MAX));
    block(self, self->a, 512, self->t);
    check_reported(self, ordered ? 0 : 1, "block");
}

static void
check_threads_synchronize(scene *self, bool ordered)
{
    use_bytes(self, self->a, 512, ordered ? GM_STREAM_PER_THREAD : self->s);
    CHECK_OK(self->ops->threads_synchronize(self->device, UINT64_MAX));
    block(self, self->a, 512, self->t);
    check_reported(self, ordered ? 0 : 1, "block");
}

/* An event that is not done teaches nothing. */
static void
check_not_ready(scene *self, bool ordered)
{
    gm_device *inner = gm_fault_inner(self->device);
    bool sim = inner->info.kind == GM_DEVICE_SIM;
    if (sim) {
        gm_sim_set_lag(inner, 1);
    }
    else {
        CHECK_OK(gm_host_stall(inner, self->s));
    }
    use_bytes(self, self->a, 512, self->s);
    record(self, self->e, self->s);
    CHECK_STATUS(self->ops->event_query(self->device, self->e), GM_NOT_READY);
    CHECK_STATUS(self->ops->stream_synchronize(self->device, self->s, 0), GM_NOT_READY);
    CHECK_STATUS(self->ops->event_synchronize(self->device, self->e, 0), GM_NOT_READY);
    if (sim) {
        gm_sim_tick(inner);
    }
    else {
        CHECK_OK(gm_host_release_work(inner, self->s, SIZE_MAX, NULL));
    }
    if (ordered) {
        CHECK_OK(self->ops->event_query(self->device, self->e));
    }
    block(self, self->a, 512, self->t);
    check_reported(self, ordered ? 0 : 1, "block");
}

/* s -> t -> u by two events. */
static void
check_transitive(scene *self, bool ordered)
{
    use_bytes(self, self->a, 512, self->s);
    record(self, self->e, self->s);
    if (!ordered) {
        record(self, self->f, self->t); /* too early to hand s on */
    }
    wait_for(self, self->t, self->e);
    if (ordered) {
        record(self, self->f, self->t);
    }
    wait_for(self, self->u, self->f);
    block(self, self->a, 512, self->u);
    check_reported(self, ordered ? 0 : 1, "block");
}

/* s -> t by an event, t -> host by another. */
static void
check_transitive_to_host(scene *self, bool ordered)
{
    use_bytes(self, self->a, 512, self->s);
    record(self, self->e, self->s);
    if (ordered) {
        wait_for(self, self->t, self->e);
    }
    CHECK_OK(self->ops->stream_synchronize(self->device, self->t, UINT64_MAX));
    block(self, self->a, 512, self->u);
    check_reported(self, ordered ? 0 : 1, "block");
}

/* An event stands for its last recording alone. */
static void
check_recorded_again(scene *self, bool ordered)
{
    use_bytes(self, self->a, 512, self->s);
    record(self, self->e, self->s);
    if (!ordered) {
        record(self, self->e, self->t);
    }
    CHECK_OK(self->ops->event_query(self->device, self->e));
    block(self, self->a, 512, self->u);
    check_reported(self, ordered ? 0 : 1, "block");
}

/* A recording that fails leaves the event as it was. */
static void
check_failed_record(scene *self, bool ordered)
{
    gm_stream gone;
    CHECK_OK(self->ops->stream_create(self->device, &gone));
    CHECK_OK(self->ops->stream_destroy(self->device, gone));
    use_bytes(self, self->a, 512, self->s);
    if (ordered) {
        record(self, self->e, self->s);
    }
    CHECK_STATUS(self->ops->event_record(self->device, self->e, gone), GM_INVALID);
    CHECK_OK(self->ops->event_query(self->device, self->e));
    block(self, self->a, 512, self->u);
    check_reported(self, ordered ? 0 : 1, "block");
}

/* Streams of every lane that used the bytes must be ordered, as for a block that was
 * recorded on a second stream. */
static void
check_two_users(scene *self, bool ordered)
{
    block(self, self->a, 1024, self->s);
    use_bytes(self, self->a, 1024, self->t);
    use_bytes(self, self->a, 1024, self->s);
    if (ordered) {
        record(self, self->e, self->t);
        wait_for(self, self->s, self->e);
    }
    block(self, self->a, 512, self->s);
    check_reported(self, ordered ? 0 : 1, "block");
}

static void
check_other_bytes(scene *self, bool ordered)
{
    use_bytes(self, self->a + 512, 1024, self->s);
    block(self, self->a, 512, self->t);
    block(self, self->a + 1536, 512, self->t);
    check_clean(self);
    block(self, self->a + (ordered ? 2048 : 1024), 512, self->t);
    check_reported(self, ordered ? 0 : 1, "block");
}

/* What a later block leaves of an earlier use still counts. */
static void
check_remainders(scene *self, bool ordered)
{
    size_t at = 4096;
    use_bytes(self, self->a, 8192, self->s);
    block(self, self->a + at, 512, self->s);
    record(self, self->e, self->s);
    if (ordered) {
        wait_for(self, self->t, self->e);
    }
    block(self, self->a, 512, self->t);
    block(self, self->a + at, 512, self->t);
    block(self, self->a + 7680, 512, self->t);
    check_reported(self, ordered ? 0 : 3, "block");
    block(self, self->a, 512, self->t); /* each is reported once */
    CHECK_EQ(violations_of(self), ordered ? 0 : 3);
}

/* A use over several pages is a use of each, and a hole between them is none. */
static void
check_several_pages(scene *self, bool ordered)
{
    CHECK_OK(self->ops->map(self->device, self->b + PAGE, self->two));
    use_bytes(self, self->b, 2 * PAGE, self->s);
    block(self, self->b + PAGE + 512, 512, ordered ? self->s : self->t);
    check_reported(self, ordered ? 0 : 1, "block");
    block(self, self->a - PAGE, PAGE, self->t);
    use_bytes(self, 512, 512, self->t); /* no memory of the device */
    CHECK_EQ(violations_of(self), ordered ? 0 : 1);
}

/* Two addresses, one page. */
static void
check_alias(scene *self, bool ordered)
{
    use_bytes(self, self->a, 512, self->s);
    record(self, self->e, self->s);
    if (ordered) {
        wait_for(self, self->t, self->e);
    }
    block(self, self->b, 512, self->t);
    check_reported(self, ordered ? 0 : 1, "block");
}

/* A number that a finished stream leaves to another one does not lend it its past. */
static void
check_streams_come_and_go(scene *self, bool ordered)
{
    gm_stream last = self->s;
    for (int i = 0; i < 500; i++) {
        CHECK_OK(self->ops->stream_create(self->device, &last));
        block(self, self->a, 512, last);
        use_bytes(self, self->a, 512, last);
        if (i < 499 || ordered) {
            CHECK_OK(self->ops->stream_synchronize(self->device, last, UINT64_MAX));
        }
    }
    check_clean(self);
    block(self, self->a, 512, self->u);
    check_reported(self, ordered ? 0 : 1, "block");
}

/* A stream that only waited knows something: it is not forgotten. */
static void
check_waiting_streams_are_remembered(scene *self, bool ordered)
{
    use_bytes(self, self->a, 512, self->s);
    record(self, self->e, self->s);
    if (ordered) {
        wait_for(self, self->t, self->e);
    }
    for (uint64_t i = 1; i < 20; i++) {
        self->ops->note_use(self->device, self->b + 512 * i, 512, UINT64_C(7) << i);
    }
    block(self, self->a, 512, self->t);
    check_reported(self, ordered ? 0 : 1, "block");
}

static void
check_copies_and_fills(scene *self, bool ordered)
{
    gm_stream later = ordered ? self->s : self->t;
    char local[512];
    if (!gm_device_has(self->device, GM_CAP_MEMORY)) {
        CHECK_STATUS(self->ops->fill_async(self->device, self->a, "x", 1, 512, self->s),
                     GM_UNSUPPORTED);
        block(self, self->a, 512, self->t);
        check_clean(self);
        return;
    }
    CHECK_OK(self->ops->fill_async(self->device, self->a, "wxyz", 4, 128, self->s));
    block(self, self->a + 508, 4, later);
    CHECK_OK(self->ops->copy_async(self->device, self->a + 1024, (uintptr_t)local, 512,
                                   self->s));
    block(self, self->a + 1024, 512, later);
    CHECK_OK(self->ops->copy_async(self->device, (uintptr_t)local, self->a + 2048, 512,
                                   self->s));
    block(self, self->a + 2048, 512, later);
    check_reported(self, ordered ? 0 : 3, "block");
}

/* ---- mappings that go ------------------------------------------------------------ */

static void
check_unmap(scene *self, bool ordered)
{
    use_bytes(self, self->a, 512, self->s);
    record(self, self->e, self->s);
    wait_for(self, self->t, self->e); /* an edge, but not one to the host */
    if (ordered) {
        CHECK_OK(self->ops->event_query(self->device, self->e));
    }
    CHECK_OK(self->ops->unmap(self->device, self->b, PAGE));
    check_clean(self);
    CHECK_OK(self->ops->unmap(self->device, self->a, PAGE));
    check_reported(self, ordered ? 0 : 1, "unmap");
}

/* A use that a later one implies is still known when the other mapping goes. */
static void
check_unmap_of_an_alias(scene *self, bool ordered)
{
    use_bytes(self, self->a, PAGE, self->s);
    record(self, self->e, self->s);
    wait_for(self, self->t, self->e);
    block(self, self->b, PAGE, self->t);
    check_clean(self);
    if (ordered) {
        CHECK_OK(self->ops->event_query(self->device, self->e));
    }
    CHECK_OK(self->ops->unmap(self->device, self->a, PAGE));
    check_reported(self, ordered ? 0 : 1, "unmap");
}

/* Uses stay with the page when it moves, and go with it. */
static void
check_a_page_moves(scene *self, bool ordered)
{
    gm_devptr c = self->range;
    use_bytes(self, self->a, 512, self->s);
    if (ordered) {
        CHECK_OK(self->ops->stream_synchronize(self->device, self->s, UINT64_MAX));
    }
    CHECK_OK(self->ops->unmap(self->device, self->a, PAGE));
    CHECK_OK(self->ops->unmap(self->device, self->b, PAGE));
    check_reported(self, ordered ? 0 : 1, "unmap");
    CHECK_OK(self->ops->map(self->device, c, self->one));
    block(self, c, 512, self->t);
    CHECK_EQ(violations_of(self), ordered ? 0 : 2);
    use_bytes(self, c, 512, self->s);
    CHECK_OK(self->ops->stream_synchronize(self->device, self->s, UINT64_MAX));
    CHECK_OK(self->ops->stream_synchronize(self->device, self->t, UINT64_MAX));
    CHECK_OK(self->ops->unmap(self->device, c, PAGE));
    CHECK_STATUS(self->ops->page_destroy(self->device, 999), GM_INVALID);
    CHECK_OK(self->ops->page_destroy(self->device, self->one));
    CHECK_OK(self->ops->page_create(self->device, &self->one));
    CHECK_OK(self->ops->map(self->device, c, self->one));
    block(self, c, 512, self->u);
    CHECK_EQ(violations_of(self), ordered ? 0 : 2);
    CHECK_STATUS(self->ops->address_release(self->device, self->range, 2 * MIB),
                 GM_INVALID);
    block(self, c, 512, self->t); /* the range is still known */
    CHECK_EQ(violations_of(self), ordered ? 1 : 3);
}

static void
check_segment_destroy(scene *self, bool ordered)
{
    gm_devptr segment;
    CHECK_OK(self->ops->segment_create(self->device, 2 * MIB, &segment));
    block(self, segment + MIB, 512, self->s);
    CHECK_STATUS(self->ops->segment_destroy(self->device, segment, MIB), GM_INVALID);
    if (ordered) {
        CHECK_OK(self->ops->stream_synchronize(self->device, self->s, UINT64_MAX));
    }
    CHECK_OK(self->ops->segment_destroy(self->device, segment, 2 * MIB));
    check_reported(self, ordered ? 0 : 1, "segment_destroy");
}

/* ---- reports --------------------------------------------------------------------- */

static void
check_text(scene *self, bool ordered)
{
    char text[4096], small[10];
    size_t lines = 0;
    for (gm_devptr i = 0; i < 20; i++) {
        use_bytes(self, self->a + 512 * i, 512, self->s);
        block(self, self->a + 512 * i, 512, ordered ? self->s : self->t);
    }
    CHECK_EQ(gm_device_violations(self->device, text, sizeof(text)), ordered ? 0 : 20);
    for (const char *at = strstr(text, "block at"); at != NULL;
         at = strstr(at + 1, "block at")) {
        lines++;
    }
    CHECK_EQ(lines, ordered ? 0 : 8);
    if (!ordered) {
        char wanted[200];
        (void)snprintf(wanted, sizeof(wanted),
                       "block at 0x%" PRIx64 ": page %" PRIu64
                       ", bytes 0 to 512: use 1 of stream %" PRIu64 "; stream %" PRIu64
                       " knows 0, the host knows 0\n",
                       self->a, self->one, self->s, self->t);
        CHECK(strncmp(text, wanted, strlen(wanted)) == 0);
        CHECK_EQ(gm_device_violations(self->device, small, sizeof(small)), 20);
        CHECK(strcmp(small, "block at ") == 0);
    }
}

static void
test_unchecked(void)
{
    gm_host_options options = {.capacity = MIB, .page_size = PAGE, .paging = true};
    gm_device *device = open_host(&options);
    char text[10] = "x";
    CHECK(!gm_device_is_checked(device) && device->ops->note_use == NULL);
    CHECK_EQ(gm_device_violations(device, text, sizeof(text)), 0);
    CHECK_EQ(text[0], '\0');
    gm_device_release(device);
}

static void
test_fork(void)
{
    scene self;
    make_scene(&self, checked_device(0));
    use_bytes(&self, self.a, 512, self.s);
    block(&self, self.a, 512, self.t);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        block(&self, self.a, 512, self.u);
        _exit(violations_of(&self) == 0 &&
                      self.ops->event_query(self.device, self.e) == GM_FORKED
                  ? 0
                  : 1);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    check_reported(&self, 1, "block");
    end_scene(&self);
}

/* ---- one test for each, over the devices ------------------------------------------ */

#define SCENE_TEST(name)            \
    static void test_##name(void)   \
    {                               \
        over_devices(check_##name); \
    }

SCENE_TEST(same_stream)
SCENE_TEST(stream_wait)
SCENE_TEST(wait_for_nothing)
SCENE_TEST(event_query)
SCENE_TEST(event_synchronize)
SCENE_TEST(stream_synchronize)
SCENE_TEST(threads_synchronize)
SCENE_TEST(not_ready)
SCENE_TEST(transitive)
SCENE_TEST(transitive_to_host)
SCENE_TEST(recorded_again)
SCENE_TEST(failed_record)
SCENE_TEST(two_users)
SCENE_TEST(other_bytes)
SCENE_TEST(remainders)
SCENE_TEST(several_pages)
SCENE_TEST(alias)
SCENE_TEST(streams_come_and_go)
SCENE_TEST(waiting_streams_are_remembered)
SCENE_TEST(copies_and_fills)
SCENE_TEST(unmap)
SCENE_TEST(unmap_of_an_alias)
SCENE_TEST(a_page_moves)
SCENE_TEST(segment_destroy)
SCENE_TEST(text)

static const gm_test tests[] = {
    {"same_stream", test_same_stream},
    {"stream_wait", test_stream_wait},
    {"wait_for_nothing", test_wait_for_nothing},
    {"event_query", test_event_query},
    {"event_synchronize", test_event_synchronize},
    {"stream_synchronize", test_stream_synchronize},
    {"threads_synchronize", test_threads_synchronize},
    {"not_ready", test_not_ready},
    {"transitive", test_transitive},
    {"transitive_to_host", test_transitive_to_host},
    {"recorded_again", test_recorded_again},
    {"failed_record", test_failed_record},
    {"two_users", test_two_users},
    {"other_bytes", test_other_bytes},
    {"remainders", test_remainders},
    {"several_pages", test_several_pages},
    {"alias", test_alias},
    {"streams_come_and_go", test_streams_come_and_go},
    {"waiting_streams_are_remembered", test_waiting_streams_are_remembered},
    {"copies_and_fills", test_copies_and_fills},
    {"unmap", test_unmap},
    {"unmap_of_an_alias", test_unmap_of_an_alias},
    {"a_page_moves", test_a_page_moves},
    {"segment_destroy", test_segment_destroy},
    {"text", test_text},
    {"unchecked", test_unchecked},
    {"fork", test_fork},
};

GM_TEST_MAIN(tests)
