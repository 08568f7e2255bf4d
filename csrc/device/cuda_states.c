/* cuda_states.c - the names of the states that CUDA can be in. */
#include "device/cuda.h"

static const char *const names[] = {
#define GM_CUDA_STATE_NAME(constant, name, who) name,
    GM_CUDA_STATE_MAP(GM_CUDA_STATE_NAME)
#undef GM_CUDA_STATE_NAME
};

static const char *const whos[] = {
#define GM_CUDA_STATE_WHO(constant, name, who) who,
    GM_CUDA_STATE_MAP(GM_CUDA_STATE_WHO)
#undef GM_CUDA_STATE_WHO
};

_Static_assert(sizeof(names) / sizeof(names[0]) == GM_CUDA_STATE_COUNT,
               "one name for each state");

const char *
gm_cuda_state_name(gm_cuda_state state)
{
    return (unsigned)state < GM_CUDA_STATE_COUNT ? names[state] : "unknown";
}

const char *
gm_cuda_state_who(gm_cuda_state state)
{
    return (unsigned)state < GM_CUDA_STATE_COUNT ? whos[state] : "nobody";
}
