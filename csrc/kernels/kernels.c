/* kernels.c - kernels as work of a device: their arguments, their names, and the host's
 * way to run them.
 *
 * A kernel is a name and a host function over one block of arguments. A backend with
 * kernels of its own finds them by the name and reads the same block.
 */
#include "kernels/kernels.h"

#include <math.h>

#include "kernels/host_kernels.h"

/* What every kernel gets; each reads the fields that it needs. */
typedef struct kernel_arguments {
    gm_devptr target;
    gm_devptr source; /* or an array of gm_kernel_part */
    uint64_t n;       /* elements, or parts */
    gm_kernel_mark mark;
    double scale; /* or divisor */
    double power;
    int32_t target_type;
    int32_t source_type;
} kernel_arguments;

_Static_assert(sizeof(kernel_arguments) <= 256, "the limit of launch");
_Static_assert(sizeof(gm_kernel_part) == 32, "as kernels of other devices read it");

size_t
gm_dtype_size(gm_dtype type)
{
    static const uint8_t sizes[] = {2, 2, 4, 8};
    _Static_assert(sizeof(sizes) == GM_DTYPE_COUNT, "one size for each type");
    return sizes[type];
}

/* ---- on the host --------------------------------------------------------------------------- */

/* Whoever sees the mark sees all that the kernel wrote. */
static void
set_mark(const gm_kernel_mark *mark)
{
    if (mark->at != 0) {
        uint64_t *at = gm_device_host_pointer(mark->at);
        __atomic_store_n(at, mark->ticket, __ATOMIC_RELEASE);
    }
}

static void
run_accumulate(const void *block)
{
    const kernel_arguments *arguments = block;
    const gm_kernel_part *parts = gm_device_host_pointer(arguments->source);
    for (uint64_t i = 0; i < arguments->n; i++) {
        gm_host_kernels_chosen()->accumulate(
            (gm_dtype)arguments->target_type,
            gm_device_host_pointer(parts[i].accumulator),
            (gm_dtype)parts[i].source_type, gm_device_host_pointer(parts[i].source),
            (size_t)parts[i].n, arguments->scale);
    }
    set_mark(&arguments->mark);
}

static void
run_scale(const void *block)
{
    const kernel_arguments *arguments = block;
    gm_host_kernels_chosen()->scale((gm_dtype)arguments->target_type,
                                    gm_device_host_pointer(arguments->target),
                                    (size_t)arguments->n, arguments->scale);
}

static void
run_divide(const void *block)
{
    const kernel_arguments *arguments = block;
    gm_host_kernels_chosen()->divide((gm_dtype)arguments->target_type,
                                     gm_device_host_pointer(arguments->target),
                                     (size_t)arguments->n, arguments->scale);
}

static double
highest_magnitude(const kernel_arguments *arguments)
{
    return gm_host_kernels_chosen()->max_abs((gm_dtype)arguments->source_type,
                                             gm_device_host_pointer(arguments->source),
                                             (size_t)arguments->n);
}

static void
run_check_finite(const void *block)
{
    const kernel_arguments *arguments = block;
    uint32_t *flag = gm_device_host_pointer(arguments->target);
    if (!isfinite(highest_magnitude(arguments))) {
        *flag |= 1u;
    }
}

/* A NaN stays. */
static void
raise_maximum(gm_devptr target, double value)
{
    double *maximum = gm_device_host_pointer(target);
    if (value > *maximum || isnan(value)) {
        *maximum = value;
    }
}

static void
run_max_abs(const void *block)
{
    const kernel_arguments *arguments = block;
    raise_maximum(arguments->target, highest_magnitude(arguments));
}

static void
run_max_abs_parts(const void *block)
{
    const kernel_arguments *arguments = block;
    const gm_kernel_part *parts = gm_device_host_pointer(arguments->source);
    for (uint64_t i = 0; i < arguments->n; i++) {
        double value = gm_host_kernels_chosen()->max_abs(
            (gm_dtype)parts[i].source_type, gm_device_host_pointer(parts[i].source),
            (size_t)parts[i].n);
        raise_maximum(arguments->target, value);
    }
    set_mark(&arguments->mark);
}

static void
run_power_sum(const void *block)
{
    const kernel_arguments *arguments = block;
    double *sum = gm_device_host_pointer(arguments->target);
    *sum += gm_host_kernels_chosen()->power_sum(
        (gm_dtype)arguments->source_type, gm_device_host_pointer(arguments->source),
        (size_t)arguments->n, arguments->scale, arguments->power);
}

/* ---- as work of a device --------------------------------------------------------------------- */

static gm_status
launch(gm_device *device, gm_stream stream, const gm_kernel *kernel,
       const kernel_arguments *arguments)
{
    GM_TRY(gm_device_usable(device));
    if (device->ops->launch == NULL) {
        return GM_UNSUPPORTED;
    }
    if (arguments->n == 0) {
        return GM_OK;
    }
    return device->ops->launch(device, kernel, arguments, sizeof(*arguments), stream);
}

gm_status
gm_kernel_accumulate(gm_device *device, gm_stream stream, gm_dtype accumulator_type,
                     gm_devptr parts, size_t count, double scale, gm_kernel_mark mark)
{
    static const gm_kernel kernel = {"gm_accumulate", run_accumulate};
    kernel_arguments arguments = {
        .source = parts,
        .n = count,
        .mark = mark,
        .scale = scale,
        .target_type = (int32_t)accumulator_type,
    };
    return launch(device, stream, &kernel, &arguments);
}

gm_status
gm_kernel_scale(gm_device *device, gm_stream stream, gm_dtype type, gm_devptr values,
                size_t n, double scale)
{
    static const gm_kernel kernel = {"gm_scale", run_scale};
    kernel_arguments arguments = {
        .target = values,
        .n = n,
        .scale = scale,
        .target_type = (int32_t)type,
    };
    return launch(device, stream, &kernel, &arguments);
}

gm_status
gm_kernel_divide(gm_device *device, gm_stream stream, gm_dtype type, gm_devptr values,
                 size_t n, double divisor)
{
    static const gm_kernel kernel = {"gm_divide", run_divide};
    kernel_arguments arguments = {
        .target = values,
        .n = n,
        .scale = divisor,
        .target_type = (int32_t)type,
    };
    return launch(device, stream, &kernel, &arguments);
}

gm_status
gm_kernel_check_finite(gm_device *device, gm_stream stream, gm_dtype type,
                       gm_devptr values, size_t n, gm_devptr flag)
{
    static const gm_kernel kernel = {"gm_check_finite", run_check_finite};
    kernel_arguments arguments = {
        .target = flag,
        .source = values,
        .n = n,
        .source_type = (int32_t)type,
    };
    return launch(device, stream, &kernel, &arguments);
}

gm_status
gm_kernel_max_abs(gm_device *device, gm_stream stream, gm_dtype type, gm_devptr values,
                  size_t n, gm_devptr maximum)
{
    static const gm_kernel kernel = {"gm_max_abs", run_max_abs};
    kernel_arguments arguments = {
        .target = maximum,
        .source = values,
        .n = n,
        .source_type = (int32_t)type,
    };
    return launch(device, stream, &kernel, &arguments);
}

gm_status
gm_kernel_max_abs_parts(gm_device *device, gm_stream stream, gm_devptr parts,
                        size_t count, gm_devptr maximum, gm_kernel_mark mark)
{
    static const gm_kernel kernel = {"gm_max_abs_parts", run_max_abs_parts};
    kernel_arguments arguments = {
        .target = maximum,
        .source = parts,
        .n = count,
        .mark = mark,
    };
    return launch(device, stream, &kernel, &arguments);
}

gm_status
gm_kernel_power_sum(gm_device *device, gm_stream stream, gm_dtype type,
                    gm_devptr values, size_t n, double divisor, double power,
                    gm_devptr sum)
{
    static const gm_kernel kernel = {"gm_power_sum", run_power_sum};
    kernel_arguments arguments = {
        .target = sum,
        .source = values,
        .n = n,
        .scale = divisor,
        .power = power,
        .source_type = (int32_t)type,
    };
    return launch(device, stream, &kernel, &arguments);
}
