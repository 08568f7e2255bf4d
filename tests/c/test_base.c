/* test_base.c - the lock, the slab, the deferred list, bits and the ring. */
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bits.h"
#include "base/deferred.h"
#include "base/futex.h"
#include "base/list.h"
#include "base/mutex.h"
#include "base/process.h"
#include "base/slab.h"
#include "check.h"

/* ---- statuses ---- */

static void
test_status_names_every_status(void)
{
    for (int status = 0; status < GM_STATUS_COUNT; status++) {
        CHECK(strcmp(gm_status_name((gm_status)status), "unknown status") != 0);
        CHECK(gm_status_text((gm_status)status)[0] != '\0');
    }
    CHECK(strcmp(gm_status_name(GM_OUT_OF_MEMORY), "out of memory") == 0);
    CHECK(strcmp(gm_status_name(GM_STATUS_COUNT), "unknown status") == 0);
    CHECK(strcmp(gm_status_text(GM_STATUS_COUNT), "unknown status") == 0);
}

/* ---- bits ---- */

static void
test_bits_align_and_scan(void)
{
    uint64_t out = 7;
    CHECK(gm_is_pow2(1) && gm_is_pow2(UINT64_C(1) << 63));
    CHECK(!gm_is_pow2(0) && !gm_is_pow2(6));
    CHECK_EQ(gm_lowest_bit(8), 3);
    CHECK_EQ(gm_highest_bit(UINT64_MAX), 63);
    CHECK_EQ(gm_align_down(4097, 4096), 4096);
    CHECK_EQ(gm_align_up_unchecked(4097, 4096), 8192);
    CHECK_OK(gm_align_up(1, 512, &out));
    CHECK_EQ(out, 512);
    CHECK_STATUS(gm_align_up(UINT64_MAX, 512, &out), GM_INVALID);
    CHECK_STATUS(gm_align_up(1, 3, &out), GM_INVALID);
    CHECK_EQ(out, 512);
}

/* ---- list ---- */

static void
test_list_inserts_removes_splices(void)
{
    gm_list head, other, items[4];
    gm_list_init(&head);
    gm_list_init(&other);
    for (int i = 0; i < 4; i++) {
        gm_list_init(&items[i]);
    }
    gm_list_push_back(&head, &items[1]);
    gm_list_push_front(&head, &items[0]);
    gm_list_push_back(&other, &items[2]);
    gm_list_push_back(&other, &items[3]);
    gm_list_splice_back(&head, &other);
    CHECK(gm_list_is_empty(&other));
    gm_list_splice_back(&head, &other);
    int seen = 0;
    GM_LIST_FOREACH_SAFE(link, following, &head) {
        CHECK(link == &items[seen]);
        seen++;
        gm_list_remove(link);
        gm_list_remove(link);
    }
    CHECK_EQ(seen, 4);
    CHECK(gm_list_is_empty(&head));
}

/* ---- slab ---- */

static void
test_slab_grows_in_larger_steps(void)
{
    enum {
        NODES = 100000 /* of 128 bytes: 32 small slabs and 6 large ones */
    };
    gm_slab slab;
    gm_slab_init(&slab, 128);
    CHECK_OK(gm_slab_reserve(&slab, 1));
    CHECK_EQ(gm_slab_bytes(&slab), 64 << 10);
    for (int i = 0; i < NODES; i++) {
        CHECK_OK(gm_slab_reserve(&slab, 1));
        unsigned char *node = gm_slab_take(&slab);
        CHECK_EQ((uintptr_t)node % 64, 0);
        CHECK(node[0] == 0 && node[127] == 0);
        memset(node, 1, 128);
    }
    CHECK_EQ(gm_slab_live(&slab), NODES);
    CHECK_EQ(gm_slab_bytes(&slab), 14 << 20);
    gm_slab_destroy(&slab);
}

static void
test_slab_zeroes_fresh_nodes_and_reuses(void)
{
    enum {
        COUNT = 5000
    };
    static unsigned char *nodes[COUNT];
    gm_slab slab;
    gm_slab_init(&slab, 100);
    CHECK_EQ(slab.node_size, 112);
    for (int i = 0; i < COUNT; i++) {
        /* An uneven reservation crosses the ends of slabs in their middle. */
        CHECK_OK(gm_slab_reserve(&slab, (size_t)(i % 700) + 1));
        nodes[i] = gm_slab_take(&slab);
        for (int byte = 0; byte < 100; byte++) {
            CHECK_EQ(nodes[i][byte], 0);
        }
        memset(nodes[i], 0xAB, 100);
    }
    CHECK_EQ(gm_slab_live(&slab), COUNT);
    size_t bytes = gm_slab_bytes(&slab);
    gm_slab_give(&slab, nodes[17]);
    unsigned char *again = gm_slab_take(&slab);
    CHECK(again == nodes[17]);
    CHECK_EQ(again[99], 0xAB);
    for (int i = 0; i < COUNT; i++) {
        gm_slab_give(&slab, nodes[i]);
    }
    CHECK_EQ(gm_slab_live(&slab), 0);
    CHECK_OK(gm_slab_reserve(&slab, COUNT));
    CHECK_EQ(gm_slab_bytes(&slab), bytes);
    gm_slab_destroy(&slab);
    CHECK_EQ(gm_slab_bytes(&slab), 0);
    CHECK_EQ(slab.available, 0);
    gm_slab_destroy(&slab);
}

/* ---- mutex ---- */

enum {
    THREADS = 4,
    ROUNDS = 20000
};

static gm_mutex shared_lock;
static uint64_t shared_count;

static void *
count_under_lock(void *argument)
{
    (void)argument;
    for (int i = 0; i < ROUNDS; i++) {
        if (i % 8 == 0) {
            while (!gm_mutex_try_lock(&shared_lock)) {
            }
        }
        else {
            gm_mutex_lock(&shared_lock);
        }
        shared_count++;
        gm_mutex_unlock(&shared_lock);
    }
    return NULL;
}

static void
run_threads(void *(*run)(void *), void *argument)
{
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        CHECK_EQ(pthread_create(&threads[i], NULL, run, argument), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    }
}

static void
test_mutex_excludes_under_contention(void)
{
    gm_mutex_init(&shared_lock, GM_RANK_ARENA);
    shared_count = 0;
    run_threads(count_under_lock, NULL);
    CHECK_EQ(shared_count, (uint64_t)THREADS * ROUNDS);
    CHECK_EQ(atomic_load(&shared_lock.word), 0);
}

static void *
lock_once(void *argument)
{
    gm_mutex *lock = argument;
    gm_mutex_lock(lock);
    gm_mutex_unlock(lock);
    return NULL;
}

static void
test_mutex_wakes_a_sleeper(void)
{
    gm_mutex lock;
    pthread_t thread;
    gm_mutex_init(&lock, GM_RANK_ARENA);
    gm_mutex_lock(&lock);
    CHECK_EQ(pthread_create(&thread, NULL, lock_once, &lock), 0);
    /* The word says 2 once the other thread is about to sleep. */
    while (atomic_load(&lock.word) != 2) {
        usleep(100);
    }
    gm_mutex_unlock(&lock);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(atomic_load(&lock.word), 0);
}

#if GM_DEBUG

/* Runs `body` in a child; true when it ended by abort. */
static bool
aborts(void (*body)(void))
{
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        const struct rlimit no_core = {0, 0};
        (void)setrlimit(RLIMIT_CORE, &no_core);
        (void)freopen("/dev/null", "w", stderr);
        signal(SIGABRT, SIG_DFL);
        body();
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static gm_mutex lanes, arena, second_arena, pages;

static void
init_ranked(void)
{
    gm_mutex_init(&lanes, GM_RANK_LANES);
    gm_mutex_init(&arena, GM_RANK_ARENA);
    gm_mutex_init(&second_arena, GM_RANK_ARENA);
    gm_mutex_init(&pages, GM_RANK_PAGE_POOL);
}

static void
lock_in_order(void)
{
    gm_mutex_lock(&lanes);
    gm_mutex_lock(&arena);
    gm_mutex_lock(&pages);
    CHECK_EQ(gm_mutex_held_count(), 3);
    CHECK(gm_mutex_is_held(&arena));
    gm_mutex_unlock(&arena);
    gm_mutex_unlock(&pages);
    gm_mutex_unlock(&lanes);
    CHECK_EQ(gm_mutex_held_count(), 0);
    CHECK(!gm_mutex_is_held(&arena));
}

static void
steal_second_arena(void)
{
    gm_mutex_lock(&lanes);
    gm_mutex_lock(&arena);
    CHECK(gm_mutex_try_lock(&second_arena));
    gm_mutex_lock(&pages);
    gm_mutex_unlock(&pages);
    gm_mutex_unlock(&second_arena);
    gm_mutex_unlock(&arena);
    gm_mutex_unlock(&lanes);
}

static void
lock_out_of_order(void)
{
    gm_mutex_lock(&pages);
    gm_mutex_lock(&arena);
}

static void
try_out_of_order(void)
{
    gm_mutex_lock(&pages);
    (void)gm_mutex_try_lock(&arena);
}

static void
lock_equal_rank(void)
{
    gm_mutex_lock(&lanes);
    gm_mutex_lock(&arena);
    gm_mutex_lock(&second_arena);
}

static void
try_equal_rank_without_remap(void)
{
    gm_mutex_lock(&arena);
    (void)gm_mutex_try_lock(&second_arena);
}

static void
lock_twice(void)
{
    gm_mutex_lock(&arena);
    gm_mutex_lock(&arena);
}

static void
unlock_unheld(void)
{
    gm_mutex_unlock(&arena);
}

static void
test_mutex_ranks_are_checked(void)
{
    init_ranked();
    lock_in_order();
    steal_second_arena();
    CHECK(!aborts(lock_in_order));
    CHECK(aborts(lock_out_of_order));
    CHECK(aborts(try_out_of_order));
    CHECK(aborts(lock_equal_rank));
    CHECK(aborts(try_equal_rank_without_remap));
    CHECK(aborts(lock_twice));
    CHECK(aborts(unlock_unheld));
}

#else

static void
test_mutex_ranks_are_checked(void)
{
    gm_mutex lock;
    gm_mutex_init(&lock, GM_RANK_ARENA);
    CHECK(gm_mutex_is_held(&lock));
    CHECK_EQ(gm_mutex_held_count(), 0);
}

#endif

/* ---- futex ---- */

static void
test_futex_wait_ends_in_time(void)
{
    _Atomic uint32_t word = 3;
    uint64_t start = gm_monotonic_ns();
    gm_futex_wait(&word, 4, UINT64_MAX);
    gm_futex_wait(&word, 3, 2000000);
    CHECK(gm_monotonic_ns() - start >= 1000000);
    gm_futex_wake(&word, 1);
}

/* ---- deferred list ---- */

typedef struct deferred_item {
    gm_deferred_node node;
    int producer;
    int number;
} deferred_item;

static gm_deferred deferred;
static deferred_item deferred_items[THREADS][ROUNDS];
static _Atomic int next_producer;
static _Atomic int producers_done;

static void *
produce(void *argument)
{
    (void)argument;
    int producer = atomic_fetch_add(&next_producer, 1);
    for (int i = 0; i < ROUNDS; i++) {
        deferred_items[producer][i].producer = producer;
        deferred_items[producer][i].number = i;
        gm_deferred_push(&deferred, &deferred_items[producer][i].node);
    }
    atomic_fetch_add(&producers_done, 1);
    return NULL;
}

static void
test_deferred_keeps_each_producers_order(void)
{
    pthread_t threads[THREADS];
    int next[THREADS] = {0};
    bool last_look = false;
    gm_deferred_init(&deferred);
    CHECK(gm_deferred_take_all(&deferred) == NULL);
    for (int i = 0; i < THREADS; i++) {
        CHECK_EQ(pthread_create(&threads[i], NULL, produce, NULL), 0);
    }
    for (;;) {
        last_look = atomic_load(&producers_done) == THREADS;
        gm_deferred_node *node = gm_deferred_take_all(&deferred);
        while (node != NULL) {
            deferred_item *item = GM_CONTAINER_OF(node, deferred_item, node);
            node = node->next;
            CHECK_EQ_SIGNED(item->number, next[item->producer]);
            next[item->producer]++;
        }
        if (last_look) {
            break;
        }
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
        CHECK_EQ_SIGNED(next[i], ROUNDS);
    }
    CHECK(gm_deferred_is_empty(&deferred));
}

/* ---- process ---- */

static void
test_process_counts_forks(void)
{
    gm_process_init();
    gm_process_init();
    uint32_t before = gm_process_generation();
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        _exit(gm_process_generation() == before + 1 ? 0 : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK_EQ(gm_process_generation(), before);
    gm_process_set_exiting(true);
    CHECK(gm_process_is_exiting());
    gm_process_set_exiting(false);
    CHECK(!gm_process_is_exiting());
}

static const gm_test tests[] = {
    {"status_names_every_status", test_status_names_every_status},
    {"bits_align_and_scan", test_bits_align_and_scan},
    {"list_inserts_removes_splices", test_list_inserts_removes_splices},
    {"slab_grows_in_larger_steps", test_slab_grows_in_larger_steps},
    {"slab_zeroes_fresh_nodes_and_reuses", test_slab_zeroes_fresh_nodes_and_reuses},
    {"mutex_excludes_under_contention", test_mutex_excludes_under_contention},
    {"mutex_wakes_a_sleeper", test_mutex_wakes_a_sleeper},
    {"mutex_ranks_are_checked", test_mutex_ranks_are_checked},
    {"futex_wait_ends_in_time", test_futex_wait_ends_in_time},
    {"deferred_keeps_each_producers_order", test_deferred_keeps_each_producers_order},
    {"process_counts_forks", test_process_counts_forks},
};

GM_TEST_MAIN(tests)
