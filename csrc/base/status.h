/* status.h - the one list of results that a fallible function can have.
 *
 * Every function below Python that can fail returns a gm_status and writes its
 * results through trailing out-parameters, which stay untouched on failure. The
 * list is an X-macro so that the enum, the names and the texts cannot drift apart;
 * csrc/python/errors.c is the only place that turns one into a Python exception.
 *
 * Thread-safety: pure functions and constants.
 */
#ifndef GM_BASE_STATUS_H
#define GM_BASE_STATUS_H

/* X(constant, name, one sentence that a person can act on) */
#define GM_STATUS_MAP(X)                                                          \
    X(GM_OK, "ok", "success")                                                     \
    X(GM_MISS, "miss", "the fast path cannot serve this request")                 \
    X(GM_BUSY, "busy", "another thread holds the lock")                           \
    X(GM_NOT_READY, "not ready", "the work recorded there has not finished")      \
    X(GM_OUT_OF_MEMORY, "out of memory", "the device has no memory left")         \
    X(GM_NO_ADDRESS, "no address space", "no address range of this size is left") \
    X(GM_NO_MAPPING, "no mapping", "the system's limit of mappings is reached")   \
    X(GM_NO_HOST_MEMORY, "no host memory", "the process is out of host memory")   \
    X(GM_INVALID, "invalid argument", "an argument is outside its range")         \
    X(GM_UNKNOWN_ADDRESS, "unknown address", "this address is not a live block")  \
    X(GM_UNSUPPORTED, "unsupported", "the device does not offer this call")       \
    X(GM_CAPTURING, "capturing", "forbidden while a stream captures a graph")     \
    X(GM_CLOSED, "closed", "the pool or device was closed")                       \
    X(GM_FORKED, "forked", "this object belongs to the parent process")           \
    X(GM_EXITING, "exiting", "the process is exiting")                            \
    X(GM_DEVICE_LOST, "device lost", "the device does not answer any more")       \
    X(GM_DEVICE_ERROR, "device error", "the device reported an error")

typedef enum gm_status {
#define GM_STATUS_ENUM(constant, name, text) constant,
    GM_STATUS_MAP(GM_STATUS_ENUM)
#undef GM_STATUS_ENUM
    GM_STATUS_COUNT
} gm_status;

#if defined(__GNUC__)
#define GM_NODISCARD __attribute__((warn_unused_result))
#else
#define GM_NODISCARD
#endif

/* The short name of `status` ("out of memory"); never NULL. */
const char *
gm_status_name(gm_status status);

/* A sentence that says what `status` means; never NULL. */
const char *
gm_status_text(gm_status status);

/* Returns early with a failed status; only where nothing needs undoing. */
#define GM_TRY(expression)                \
    do {                                  \
        gm_status gm_try_ = (expression); \
        if (gm_try_ != GM_OK) {           \
            return gm_try_;               \
        }                                 \
    } while (0)

#endif
