/* registry.c - the process's open pools, in order of creation. */
#include "pool/internal.h"

static gm_mutex registry_lock = {.rank = GM_RANK_REGISTRY};
static gm_list registry = {&registry, &registry};
static uint64_t last_id;
static uint32_t registry_generation;

/* In the child of a fork the list holds the parent's pools; begin anew. */
static void
check_generation_locked(void)
{
    uint32_t now = gm_process_generation();
    if (registry_generation != now) {
        registry_generation = now;
        gm_list_init(&registry);
        gm_address_map_reset_after_fork();
    }
}

uint64_t
gm_registry_add(gm_pool *pool)
{
    gm_mutex_lock(&registry_lock);
    check_generation_locked();
    gm_list_push_back(&registry, &pool->link);
    uint64_t id = ++last_id;
    gm_mutex_unlock(&registry_lock);
    return id;
}

void
gm_registry_remove(gm_pool *pool)
{
    gm_mutex_lock(&registry_lock);
    check_generation_locked();
    if (pool->generation == registry_generation) {
        gm_list_remove(&pool->link);
    }
    gm_mutex_unlock(&registry_lock);
}

/* The first pool with an id above `id`, retained, or NULL. */
static gm_pool *
next_pool(uint64_t id)
{
    gm_pool *found = NULL;
    gm_mutex_lock(&registry_lock);
    check_generation_locked();
    GM_LIST_FOREACH(link, &registry) {
        gm_pool *pool = GM_CONTAINER_OF(link, gm_pool, link);
        uint32_t references = atomic_load(&pool->references);
        while (pool->id > id && found == NULL && references != 0) {
            if (atomic_compare_exchange_weak(&pool->references, &references,
                                             references + 1)) {
                found = pool;
            }
        }
        if (found != NULL) {
            break;
        }
    }
    gm_mutex_unlock(&registry_lock);
    return found;
}

void
gm_pools_visit(void (*visit)(gm_pool *pool, void *argument), void *argument)
{
    uint64_t id = 0;
    gm_pool *pool;
    while ((pool = next_pool(id)) != NULL) {
        id = pool->id;
        visit(pool, argument);
        gm_pool_release(pool);
    }
}
