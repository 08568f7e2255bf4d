/* registry.c - the process's open pools, in order of creation. */
#include "pool/internal.h"

static gm_mutex registry_lock = {.rank = GM_RANK_REGISTRY};
static gm_list registry = {&registry, &registry};
static uint64_t last_id;

/* The list holds the parent's pools, and may be half changed. */
static void
forget_parent(void)
{
    gm_mutex_init(&registry_lock, GM_RANK_REGISTRY);
    gm_list_init(&registry);
}

GM_IN_FORKED_CHILD(forget_parent);

void
gm_registry_add(gm_pool *pool)
{
    gm_mutex_lock(&registry_lock);
    pool->id = ++last_id;
    gm_list_push_back(&registry, &pool->link);
    gm_mutex_unlock(&registry_lock);
}

void
gm_registry_remove(gm_pool *pool)
{
    gm_mutex_lock(&registry_lock);
    if (!gm_pool_is_forked(pool)) {
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
