/* host_share.c - one capacity that several processes share by name.
 *
 * A share is a small file in shared memory: the capacity and a slot for each member
 * with the bytes it has. A member is one device of one process, known by its process id
 * and the time that process was started, since ids are used again. What a dead process
 * had is given back by whoever looks next. Nothing is summed up in the file, so a
 * process that dies at any point leaves nothing wrong in it.
 *
 * Joining and leaving happen under a file lock: the founder sets the file up, the last
 * to leave removes it, and whoever opened a file that was removed before it got the
 * lock opens again. All else happens under a robust mutex in the file.
 *
 * A process that exits without closing its devices leaves its shares in a destructor
 * of the library; one that is killed leaves a file that the next to join takes over.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/process.h"
#include "device/host_internal.h"

#define SHARE_MAGIC UINT64_C(0x676d73686172653f)
#define SHARE_SLOTS 1024
#define NAME_LIMIT 64 /* characters of a name that a person gives */

typedef struct share_slot {
    uint64_t pid;     /* 0: free */
    uint64_t started; /* when that process was started, in the kernel's ticks */
    uint64_t bytes;
} share_slot;

typedef struct share_file {
    uint64_t magic;    /* SHARE_MAGIC once the rest is set up */
    uint64_t capacity; /* bytes */
    uint64_t high;     /* slots from here on were never used */
    pthread_mutex_t mutex;
    share_slot slots[SHARE_SLOTS];
} share_file;

struct host_share {
    char path[NAME_LIMIT + 32]; /* of shm_open */
    int file;                   /* descriptor */
    share_file *shared;
    share_slot *mine;
    gm_list link; /* in `joined` */
};

/* All shares of this process, for the destructor. A child of fork starts anew: those of
 * its parent are none of its business, and the lock may have been held. */
static gm_mutex joined_lock = {.rank = GM_RANK_SHARED};
static gm_list joined = {&joined, &joined};

static void
forget_parent(void)
{
    gm_mutex_init(&joined_lock, GM_RANK_SHARED);
    gm_list_init(&joined);
}

GM_IN_FORKED_CHILD(forget_parent);

/* ---- processes ------------------------------------------------------------------- */

/* When the process was started; 0 when it is gone, a zombie included. */
static uint64_t
process_started(uint64_t pid)
{
    char path[64];
    char text[1024];
    (void)snprintf(path, sizeof(path), "/proc/%llu/stat", (unsigned long long)pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return 0;
    }
    ssize_t length = read(file, text, sizeof(text) - 1);
    (void)close(file);
    if (length <= 0) {
        return 0;
    }
    text[length] = '\0';
    /* The second field is the program's name in parentheses and may hold anything. */
    const char *after = strrchr(text, ')');
    char state;
    unsigned long long started;
    if (after == NULL ||
        sscanf(after + 1,
               " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
               "%*s %*s %llu",
               &state, &started) != 2) {
        return 0;
    }
    return state == 'Z' || state == 'X' ? 0 : started;
}

static bool
is_alive(const share_slot *slot)
{
    return process_started(slot->pid) == slot->started;
}

/* ---- the file -------------------------------------------------------------------- */

static void
lock_shared(share_file *shared)
{
    int result = pthread_mutex_lock(&shared->mutex);
    if (result == EOWNERDEAD) {
        result = pthread_mutex_consistent(&shared->mutex);
    }
    GM_VERIFY(result == 0);
}

static void
unlock_shared(share_file *shared)
{
    int result = pthread_mutex_unlock(&shared->mutex);
    GM_VERIFY(result == 0);
}

/* Frees the slots of dead processes; returns how many members live. */
static size_t
bury_dead_locked(share_file *shared)
{
    size_t living = 0;
    for (uint64_t i = 0; i < shared->high; i++) {
        share_slot *slot = &shared->slots[i];
        if (slot->pid == 0) {
            continue;
        }
        if (is_alive(slot)) {
            living++;
        }
        else {
            slot->bytes = 0;
            slot->pid = 0;
        }
    }
    return living;
}

static uint64_t
sum_locked(const share_file *shared)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < shared->high; i++) {
        if (shared->slots[i].pid != 0) {
            sum += shared->slots[i].bytes;
        }
    }
    return sum;
}

static gm_status
set_up(share_file *shared, size_t capacity)
{
    pthread_mutexattr_t attributes;
    if (pthread_mutexattr_init(&attributes) != 0) {
        return GM_NO_HOST_MEMORY;
    }
    bool made =
        pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0 &&
        pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0 &&
        pthread_mutex_init(&shared->mutex, &attributes) == 0;
    (void)pthread_mutexattr_destroy(&attributes);
    if (!made) {
        return GM_NO_HOST_MEMORY;
    }
    shared->capacity = capacity;
    shared->high = 0;
    shared->magic = SHARE_MAGIC;
    return GM_OK;
}

/* The file of that path, locked against joining and leaving. -1: none to be had. */
static int
open_locked(const char *path)
{
    for (;;) {
        struct stat status;
        int file = shm_open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (file < 0) {
            return -1;
        }
        if (flock(file, LOCK_EX) != 0 || fstat(file, &status) != 0) {
            (void)close(file);
            return -1;
        }
        if (status.st_nlink > 0) {
            return file;
        }
        (void)close(file); /* its last member removed it meanwhile */
    }
}

/* ---- joining and leaving --------------------------------------------------------- */

static gm_status
make_path(const char *name, char *path, size_t size)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyz"
        "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
    size_t length = strlen(name);
    if (length == 0 || length > NAME_LIMIT || strspn(name, allowed) != length) {
        return GM_INVALID;
    }
    (void)snprintf(path, size, "/gpumem-%lu-%s", (unsigned long)getuid(), name);
    return GM_OK;
}

static gm_status
take_slot_locked(share_file *shared, share_slot **out)
{
    for (uint64_t i = 0; i < SHARE_SLOTS; i++) {
        share_slot *slot = &shared->slots[i];
        if (slot->pid == 0) {
            slot->bytes = 0;
            slot->started = process_started((uint64_t)getpid());
            slot->pid = (uint64_t)getpid();
            if (shared->high <= i) {
                shared->high = i + 1;
            }
            *out = slot;
            return GM_OK;
        }
    }
    return GM_NO_HOST_MEMORY;
}

/* Pre: the file is locked. */
static gm_status
join_file(share_file *shared, size_t capacity, share_slot **out)
{
    if (shared->magic != SHARE_MAGIC) {
        GM_TRY(set_up(shared, capacity));
    }
    lock_shared(shared);
    if (bury_dead_locked(shared) == 0) {
        shared->capacity = capacity;
    }
    gm_status status =
        shared->capacity == capacity ? take_slot_locked(shared, out) : GM_INVALID;
    unlock_shared(shared);
    return status;
}

gm_status
gm_host_share_join(const char *name, size_t capacity, host_share **out)
{
    gm_status status = GM_NO_HOST_MEMORY;
    host_share *share = calloc(1, sizeof(*share));
    if (share == NULL) {
        return GM_NO_HOST_MEMORY;
    }
    status = make_path(name, share->path, sizeof(share->path));
    if (status != GM_OK) {
        goto fail_path;
    }
    status = GM_NO_HOST_MEMORY;
    share->file = open_locked(share->path);
    if (share->file < 0) {
        goto fail_path;
    }
    if (ftruncate(share->file, (off_t)sizeof(share_file)) != 0) {
        goto fail_file;
    }
    share->shared = mmap(NULL, sizeof(share_file), PROT_READ | PROT_WRITE, MAP_SHARED,
                         share->file, 0);
    if (share->shared == MAP_FAILED) {
        goto fail_file;
    }
    status = join_file(share->shared, capacity, &share->mine);
    if (status != GM_OK) {
        goto fail_mapping;
    }
    (void)flock(share->file, LOCK_UN);
    gm_mutex_lock(&joined_lock);
    gm_list_push_back(&joined, &share->link);
    gm_mutex_unlock(&joined_lock);
    *out = share;
    return GM_OK;
fail_mapping:
    (void)munmap(share->shared, sizeof(share_file));
fail_file:
    (void)flock(share->file, LOCK_UN);
    (void)close(share->file);
fail_path:
    free(share);
    return status;
}

/* Frees the slot; removes the file when no member lives. */
static void
leave_file(host_share *share)
{
    (void)flock(share->file, LOCK_EX);
    lock_shared(share->shared);
    share->mine->bytes = 0;
    share->mine->pid = 0;
    size_t living = bury_dead_locked(share->shared);
    unlock_shared(share->shared);
    if (living == 0) {
        (void)shm_unlink(share->path);
    }
    (void)flock(share->file, LOCK_UN);
}

void
gm_host_share_leave(host_share *share)
{
    if (share == NULL) {
        return;
    }
    gm_mutex_lock(&joined_lock);
    gm_list_remove(&share->link);
    gm_mutex_unlock(&joined_lock);
    leave_file(share);
    (void)munmap(share->shared, sizeof(share_file));
    (void)close(share->file);
    free(share);
}

/* At exit: other threads may still run, so nothing is unmapped. */
__attribute__((destructor)) static void
leave_all(void)
{
    if (!gm_mutex_try_lock(&joined_lock)) {
        return;
    }
    GM_LIST_FOREACH(link, &joined) {
        leave_file(GM_CONTAINER_OF(link, host_share, link));
    }
    gm_mutex_unlock(&joined_lock);
}

/* ---- amounts --------------------------------------------------------------------- */

static bool
fits_locked(const host_share *share, size_t bytes)
{
    const share_file *shared = share->shared;
    uint64_t others = sum_locked(shared) - share->mine->bytes;
    return others <= shared->capacity && bytes <= shared->capacity - others;
}

gm_status
gm_host_share_set(host_share *share, size_t bytes)
{
    share_file *shared = share->shared;
    gm_status status = GM_OK;
    lock_shared(shared);
    if (bytes > share->mine->bytes && !fits_locked(share, bytes)) {
        (void)bury_dead_locked(shared);
        status = fits_locked(share, bytes) ? GM_OK : GM_OUT_OF_MEMORY;
    }
    if (status == GM_OK) {
        share->mine->bytes = bytes;
    }
    unlock_shared(shared);
    return status;
}

size_t
gm_host_share_free(host_share *share)
{
    share_file *shared = share->shared;
    lock_shared(shared);
    (void)bury_dead_locked(shared);
    uint64_t sum = sum_locked(shared);
    size_t left = sum < shared->capacity ? (size_t)(shared->capacity - sum) : 0;
    unlock_shared(shared);
    return left;
}
