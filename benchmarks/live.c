/* live.c - what one allocation and its free cost while many other blocks are alive.
 *
 *     live gpumem|malloc newest|holes|random LIVE PAIRS
 *
 * Fills up with LIVE blocks, then measures PAIRS pairs: `newest` allocates 16 more and
 * frees them, newest first, again and again; `holes` does the same after as many
 * replacements as there are blocks, so that a fit is found among scattered holes;
 * `random`, after as many replacements, frees a block chosen at random and allocates
 * another one. Sizes are log-uniform, 512 bytes to 512 KiB for gpumem (on the sim
 * device, which has no memory) and a 32nd of that for malloc, whose granule is 16
 * bytes: the same number of granules.
 *
 * Prints nanoseconds of the thread per pair. Everything measured is in measured(), so
 * that an instruction counter can be told to count only that.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/sim.h"
#include "pool/pool.h"

#define BURST 16
#define MALLOC_SCALE 32

typedef struct step {
    uint32_t index; /* of the block to replace */
    uint32_t size;  /* bytes */
} step;

typedef struct bench {
    gm_pool *pool; /* NULL: malloc */
    void **blocks; /* LIVE blocks and BURST more */
    step *steps;
    size_t live;
    size_t pairs;
} bench;

static uint64_t random_state = 0x9E3779B97F4A7C15u;

static uint64_t
next_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* 512 bytes to 512 KiB, each power of two as likely as any other. */
static uint32_t
random_size(void)
{
    uint64_t number = next_random();
    uint32_t power = 9 + (uint32_t)(number % 10);
    return (1u << power) + ((uint32_t)(number >> 32) & ((1u << power) - 1));
}

static void
fail(const char *what)
{
    fprintf(stderr, "live: %s failed\n", what);
    exit(1);
}

static inline void *
take(const bench *self, size_t size)
{
    if (self->pool == NULL) {
        return malloc(size / MALLOC_SCALE);
    }
    gm_request request = {.size = size};
    gm_block *block = NULL;
    gm_status status = gm_pool_try_alloc(self->pool, &request, &block);
    if (status != GM_OK) {
        status = gm_pool_alloc(self->pool, &request, &block, NULL);
    }
    return status == GM_OK ? block : NULL;
}

static inline void
give(const bench *self, void *block)
{
    if (self->pool == NULL) {
        free(block);
    }
    else {
        gm_pool_free(block);
    }
}

static void
replace_random(const bench *self, size_t pairs)
{
    for (size_t i = 0; i < pairs; i++) {
        const step *now = &self->steps[i];
        give(self, self->blocks[now->index]);
        self->blocks[now->index] = take(self, now->size);
    }
}

static void
newest_first(const bench *self, size_t pairs)
{
    void **top = self->blocks + self->live;
    for (size_t i = 0; i + BURST <= pairs; i += BURST) {
        for (size_t k = 0; k < BURST; k++) {
            top[k] = take(self, self->steps[i + k].size);
        }
        for (size_t k = BURST; k-- > 0;) {
            give(self, top[k]);
        }
    }
}

__attribute__((noinline)) void
measured(const bench *self, int random);

__attribute__((noinline)) void
measured(const bench *self, int random)
{
    if (random) {
        replace_random(self, self->pairs);
    }
    else {
        newest_first(self, self->pairs);
    }
}

static double
seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void
draw_steps(bench *self, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        self->steps[i].index = (uint32_t)(next_random() % self->live);
        self->steps[i].size = random_size();
    }
}

static gm_pool *
open_pool(void)
{
    gm_device *device;
    gm_pool *pool;
    gm_sim_options options = {.capacity = SIZE_MAX, .paging = true};
    gm_pool_options pool_options;
    gm_pool_options_init(&pool_options);
    if (gm_sim_create(&options, &device) != GM_OK ||
        gm_pool_create(device, &pool_options, &pool) != GM_OK) {
        fail("opening a pool");
    }
    return pool;
}

int
main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: live gpumem|malloc newest|holes|random LIVE PAIRS\n");
        return 2;
    }
    bench self = {.live = strtoull(argv[3], NULL, 10),
                  .pairs = strtoull(argv[4], NULL, 10)};
    int random = strcmp(argv[2], "random") == 0;
    if (strcmp(argv[1], "gpumem") == 0) {
        self.pool = open_pool();
    }
    size_t steps = self.live > self.pairs ? self.live : self.pairs;
    self.blocks = calloc(self.live + BURST, sizeof(*self.blocks));
    self.steps = calloc(steps, sizeof(*self.steps));
    if (self.live == 0 || self.blocks == NULL || self.steps == NULL) {
        fail("setting up");
    }
    for (size_t i = 0; i < self.live; i++) {
        self.blocks[i] = take(&self, random_size());
        if (self.blocks[i] == NULL) {
            fail("filling up");
        }
    }
    if (strcmp(argv[2], "newest") != 0) { /* holes are where a long run has them */
        draw_steps(&self, self.live);
        replace_random(&self, self.live);
    }
    draw_steps(&self, self.pairs);
    if (!random) {
        newest_first(&self, self.pairs); /* what it needs is cached then */
    }
    double start = seconds();
    measured(&self, random);
    printf("%.2f\n", (seconds() - start) * 1e9 / (double)self.pairs);
    return 0;
}
