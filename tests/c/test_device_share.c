/* test_device_share.c - one capacity that host devices share by name, in one process and
 * in several that come, leave, crash and exit.
 */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device_kinds.h"

static char share_name[48];

static gm_device *
open_share(size_t capacity)
{
    gm_host_options options = {
        .capacity = capacity, .paging = true, .shared_name = share_name};
    return open_host(&options);
}

static bool
share_file_exists(void)
{
    char path[128];
    snprintf(path, sizeof(path), "/dev/shm/gpumem-%lu-%s", (unsigned long)getuid(),
             share_name);
    return access(path, F_OK) == 0;
}

/* A child takes its part, says so, and waits to be ended. */
static pid_t
start_member(int taken[2], int leave[2], size_t bytes)
{
    CHECK_EQ(pipe(taken), 0);
    CHECK_EQ(pipe(leave), 0);
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char byte = 0;
        gm_devptr segment;
        close(leave[1]);
        gm_device *device = open_share(64 * MIB);
        CHECK_OK(device->ops->segment_create(device, bytes, &segment));
        CHECK_EQ(write(taken[1], &byte, 1), 1);
        (void)!read(leave[0], &byte, 1);
        gm_device_release(device);
        _exit(0);
    }
    char byte;
    CHECK_EQ(read(taken[0], &byte, 1), 1);
    return child;
}

static void
close_pipes(int taken[2], int leave[2])
{
    for (int i = 0; i < 2; i++) {
        close(taken[i]);
        close(leave[i]);
    }
}

static void
test_processes_share_capacity(void)
{
    int taken[2], leave[2], status;
    gm_devptr segment;
    gm_device *device = open_share(64 * MIB);
    CHECK(share_file_exists());
    pid_t child = start_member(taken, leave, 40 * MIB);
    CHECK_EQ(free_of(device), 24 * MIB);
    CHECK_EQ(counters_of(device).memory_now, 0);
    CHECK_STATUS(device->ops->segment_create(device, 25 * MIB, &segment),
                 GM_OUT_OF_MEMORY);
    CHECK_STATUS(gm_host_occupy(device, 25 * MIB), GM_OUT_OF_MEMORY);
    CHECK_OK(device->ops->segment_create(device, 24 * MIB, &segment));
    CHECK_EQ(free_of(device), 0);
    /* It leaves in good order. */
    CHECK_EQ(write(leave[1], "", 1), 1);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK_EQ(free_of(device), 40 * MIB);
    CHECK(share_file_exists());
    gm_device_release(device);
    CHECK(!share_file_exists());
    close_pipes(taken, leave);
}

static void
test_dead_process_gives_back(void)
{
    int taken[2], leave[2], status;
    gm_page page;
    gm_device *device = open_share(64 * MIB);
    pid_t child = start_member(taken, leave, 64 * MIB);
    CHECK_STATUS(device->ops->page_create(device, &page), GM_OUT_OF_MEMORY);
    kill(child, SIGKILL);
    /* A zombie is dead, too: it is not waited for yet. */
    siginfo_t info;
    CHECK_EQ(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
    CHECK_OK(device->ops->page_create(device, &page));
    CHECK_EQ(free_of(device), 62 * MIB);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_EQ(free_of(device), 62 * MIB);
    gm_device_release(device);
    CHECK(!share_file_exists());
    close_pipes(taken, leave);
}

static void
test_devices_of_one_process_share(void)
{
    gm_device *first = open_share(64 * MIB);
    gm_device *second = open_share(64 * MIB);
    gm_device *third = NULL;
    gm_host_options other = {.capacity = 32 * MIB, .shared_name = share_name};
    gm_devptr segment;
    CHECK_STATUS(gm_host_create(&other, &third), GM_INVALID);
    CHECK_OK(first->ops->segment_create(first, 10 * MIB, &segment));
    CHECK_OK(gm_host_occupy(second, 4 * MIB));
    CHECK_EQ(free_of(first), 50 * MIB);
    CHECK_EQ(free_of(second), 50 * MIB);
    gm_device_release(first);
    CHECK_EQ(free_of(second), 60 * MIB);
    gm_device_release(second);
    CHECK(!share_file_exists());
    /* Nobody is left: the next may found it anew with another capacity. */
    gm_device *founded = open_host(&other);
    CHECK_EQ(free_of(founded), 32 * MIB);
    gm_device_release(founded);
}

/* A file that a killed process left is taken over, whatever its capacity was. */
static void
test_stale_share_is_taken_over(void)
{
    int taken[2], leave[2], status;
    pid_t child = start_member(taken, leave, MIB);
    kill(child, SIGKILL);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(share_file_exists());
    gm_device *device = open_share(128 * MIB);
    CHECK_EQ(free_of(device), 128 * MIB);
    gm_device_release(device);
    CHECK(!share_file_exists());
    close_pipes(taken, leave);
}

/* The child ends by exit() without closing its device. */
static void
test_exit_leaves_the_share(void)
{
    int status;
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        static gm_device *volatile device; /* reachable: not a leak */
        gm_devptr segment;
        device = open_share(64 * MIB);
        CHECK_OK(device->ops->segment_create(device, MIB, &segment));
        CHECK(share_file_exists());
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(!share_file_exists());
}

static void
join_and_leave(gm_device *parent)
{
    (void)parent;
    for (int i = 0; i < 200; i++) {
        gm_device *device = open_share(64 * MIB);
        gm_devptr segment;
        CHECK_OK(device->ops->segment_create(device, MIB, &segment));
        CHECK(free_of(device) >= 60 * MIB);
        gm_device_release(device);
    }
}

static void
test_joining_and_leaving_race(void)
{
    pid_t children[3];
    fflush(stdout);
    for (int i = 0; i < 3; i++) {
        children[i] = fork();
        CHECK(children[i] >= 0);
        if (children[i] == 0) {
            join_and_leave(NULL);
            _exit(0);
        }
    }
    for (int i = 0; i < 3; i++) {
        int status;
        CHECK(waitpid(children[i], &status, 0) == children[i]);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    CHECK(!share_file_exists());
}

static const gm_test all_tests[] = {
    {"processes_share_capacity", test_processes_share_capacity},
    {"dead_process_gives_back", test_dead_process_gives_back},
    {"devices_of_one_process_share", test_devices_of_one_process_share},
    {"stale_share_is_taken_over", test_stale_share_is_taken_over},
    {"exit_leaves_the_share", test_exit_leaves_the_share},
    {"joining_and_leaving_race", test_joining_and_leaving_race},
};

int
main(int argc, char **argv)
{
    snprintf(share_name, sizeof(share_name), "test-%ld", (long)getpid());
    return check_run(all_tests, sizeof(all_tests) / sizeof(all_tests[0]), argc, argv);
}
