/* test_kernels.c - conversions against exact rules, loops against plain sums, and every
 * set of loops against the baseline, bit by bit. */
#include <float.h>
#include <math.h>

#include "check.h"
#include "device/host.h"
#include "kernels/element.h"
#include "kernels/host_kernels.h"

#define COUNT 2000

static uint64_t random_state = 88172645463325252u;

static uint64_t
random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* In [-1, 1). */
static double
random_unit(void)
{
    return (double)(random_bits() >> 11) * 0x1p-52 - 1.0;
}

/* ---- conversions ------------------------------------------------------------------- */

static double
value_of_f16(uint16_t half)
{
    int exponent = half >> 10 & 31, fraction = half & 1023;
    double sign = half >> 15 != 0 ? -1.0 : 1.0;
    if (exponent == 31) {
        return fraction != 0 ? (double)NAN : sign * (double)INFINITY;
    }
    return sign * (exponent == 0 ? ldexp(fraction, -24)
                                 : ldexp(1024 + fraction, exponent - 25));
}

static void
f16_widens_exactly_and_comes_back(void)
{
    for (uint32_t bits = 0; bits <= UINT16_MAX; bits++) {
        uint16_t half = (uint16_t)bits;
        double expected = value_of_f16(half);
        float got = gm_f16_to_f32(half);
        if (isnan(expected)) {
            CHECK(isnan(got));
            CHECK(isnan(gm_f16_to_f32(gm_f32_to_f16(got))));
            continue;
        }
        CHECK((double)got == expected);
        CHECK_EQ(gm_f32_to_f16(got), half);
    }
}

/* Between two neighbours the nearer one wins, and the even one in the middle. */
static void
f32_rounds_to_the_nearest_even_f16(void)
{
    for (uint16_t half = 0; half < 0x7bff; half++) {
        float low = gm_f16_to_f32(half), high = gm_f16_to_f32((uint16_t)(half + 1));
        float middle = (low + high) / 2.0f;
        uint16_t even = (uint16_t)(half + (half & 1));
        CHECK_EQ(gm_f32_to_f16(middle), even);
        CHECK_EQ(gm_f32_to_f16(nextafterf(middle, 0.0f)), half);
        CHECK_EQ(gm_f32_to_f16(nextafterf(middle, high)), half + 1);
        CHECK_EQ(gm_f32_to_f16(-middle), even | 0x8000);
    }
    CHECK_EQ(gm_f32_to_f16(65519.996f), 0x7bff);
    CHECK_EQ(gm_f32_to_f16(65520.0f), 0x7c00);
    CHECK_EQ(gm_f32_to_f16(FLT_MAX), 0x7c00);
    CHECK_EQ(gm_f32_to_f16(-INFINITY), 0xfc00);
    CHECK_EQ(gm_f32_to_f16(0x1p-25f), 0);
    CHECK_EQ(gm_f32_to_f16(0x1.8p-25f), 1);
}

static void
f32_rounds_to_the_nearest_even_bf16(void)
{
    for (uint32_t bits = 0; bits <= UINT16_MAX; bits++) {
        uint16_t half = (uint16_t)bits;
        float value = gm_bf16_to_f32(half);
        if (isnan(value)) {
            CHECK(isnan(gm_bf16_to_f32(gm_f32_to_bf16(value))));
            continue;
        }
        CHECK_EQ(gm_f32_to_bf16(value), half);
        if ((bits & 0x7f80) == 0x7f80) {
            continue;
        }
        uint32_t exact = bits << 16;
        CHECK_EQ(gm_f32_to_bf16(gm_f32_of_bits(exact + 0x7fff)), half);
        CHECK_EQ(gm_f32_to_bf16(gm_f32_of_bits(exact + 0x8000)), half + (half & 1));
        CHECK_EQ(gm_f32_to_bf16(gm_f32_of_bits(exact + 0x8001)), half + 1);
    }
    CHECK_EQ(gm_f32_to_bf16(FLT_MAX), 0x7f80);
    CHECK(isnan(gm_bf16_to_f32(gm_f32_to_bf16(gm_f32_of_bits(0x7f800001u)))));
}

/* ---- loops --------------------------------------------------------------------------- */

static double
read_element(gm_dtype type, const void *array, size_t i)
{
    switch (type) {
        case GM_F16:
            return (double)gm_f16_to_f32(((const uint16_t *)array)[i]);
        case GM_BF16:
            return (double)gm_bf16_to_f32(((const uint16_t *)array)[i]);
        case GM_F64:
            return ((const double *)array)[i];
        default:
            return (double)((const float *)array)[i];
    }
}

static void
write_element(gm_dtype type, void *array, size_t i, double value)
{
    switch (type) {
        case GM_F16:
            ((uint16_t *)array)[i] = gm_f32_to_f16((float)value);
            return;
        case GM_BF16:
            ((uint16_t *)array)[i] = gm_f32_to_bf16((float)value);
            return;
        case GM_F64:
            ((double *)array)[i] = value;
            return;
        default:
            ((float *)array)[i] = (float)value;
            return;
    }
}

static void
fill_random(gm_dtype type, void *array, size_t n, double size)
{
    for (size_t i = 0; i < n; i++) {
        write_element(type, array, i, random_unit() * size);
    }
}

static const size_t LENGTHS[] = {0, 1, 7, 8, 255, 256, 257, 511, 1024, COUNT};
#define LENGTH_COUNT (sizeof(LENGTHS) / sizeof(LENGTHS[0]))

static void
check_accumulate(const gm_host_kernels *kernels, gm_dtype wide, gm_dtype narrow,
                 size_t n, double scale)
{
    double sums[COUNT + 1], before[COUNT + 1], terms[COUNT];
    fill_random(wide, sums, n + 1, 3.0);
    memcpy(before, sums, sizeof(sums));
    fill_random(narrow, terms, n, 3.0);
    kernels->accumulate(wide, sums, narrow, terms, n, scale);
    for (size_t i = 0; i < n; i++) {
        double expected[1];
        write_element(
            wide, expected, 0,
            read_element(wide, before, i) + read_element(narrow, terms, i) * scale);
        CHECK(read_element(wide, sums, i) == read_element(wide, expected, 0));
    }
    CHECK(read_element(wide, sums, n) == read_element(wide, before, n));
}

static void
accumulate_rounds_each_sum_once(void)
{
    for (int wide = 0; wide < GM_DTYPE_COUNT; wide++) {
        for (int narrow = 0; narrow < GM_DTYPE_COUNT; narrow++) {
            for (size_t i = 0; i < LENGTH_COUNT; i++) {
                check_accumulate(gm_host_kernels_chosen(), (gm_dtype)wide,
                                 (gm_dtype)narrow, LENGTHS[i], 1.0);
                check_accumulate(gm_host_kernels_chosen(), (gm_dtype)wide,
                                 (gm_dtype)narrow, LENGTHS[i], 7.5);
            }
        }
    }
}

static void
accumulate_onto_itself_doubles(void)
{
    float values[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        values[i] = (float)i;
    }
    gm_host_kernels_chosen()->accumulate(GM_F32, values, GM_F32, values, COUNT, 1.0);
    for (size_t i = 0; i < COUNT; i++) {
        CHECK(values[i] == 2.0f * (float)i);
    }
}

static void
scale_multiplies_and_stops_at_the_end(void)
{
    for (int type = 0; type < GM_DTYPE_COUNT; type++) {
        for (size_t k = 0; k < LENGTH_COUNT; k++) {
            double values[COUNT + 1], before[COUNT + 1], expected[1];
            size_t n = LENGTHS[k];
            fill_random((gm_dtype)type, values, n + 1, 5.0);
            memcpy(before, values, sizeof(values));
            gm_host_kernels_chosen()->scale((gm_dtype)type, values, n, 1.0 / 3.0);
            for (size_t i = 0; i < n; i++) {
                write_element((gm_dtype)type, expected, 0,
                              read_element((gm_dtype)type, before, i) * (1.0 / 3.0));
                CHECK(read_element((gm_dtype)type, values, i) ==
                      read_element((gm_dtype)type, expected, 0));
            }
            CHECK(read_element((gm_dtype)type, values, n) ==
                  read_element((gm_dtype)type, before, n));
        }
    }
}

static void
divide_rounds_each_quotient_once(void)
{
    static const double divisors[] = {3.0, 49.0, 1e-30, (double)0.1f, 0x1p70};
    for (int type = 0; type < GM_DTYPE_COUNT; type++) {
        for (size_t k = 0; k < LENGTH_COUNT * 5; k++) {
            double values[COUNT + 1], before[COUNT + 1], expected[1];
            double divisor = divisors[k % 5];
            size_t n = LENGTHS[k / 5];
            fill_random((gm_dtype)type, values, n + 1, 5.0);
            memcpy(before, values, sizeof(values));
            gm_host_kernels_chosen()->divide((gm_dtype)type, values, n, divisor);
            for (size_t i = 0; i < n; i++) {
                write_element((gm_dtype)type, expected, 0,
                              read_element((gm_dtype)type, before, i) / divisor);
                CHECK(read_element((gm_dtype)type, values, i) ==
                      read_element((gm_dtype)type, expected, 0));
            }
            CHECK(read_element((gm_dtype)type, values, n) ==
                  read_element((gm_dtype)type, before, n));
        }
    }
    double seven[2] = {5.0, 7.0};
    gm_host_kernels_chosen()->divide(GM_F64, seven, 1, 49.0);
    CHECK(seven[0] == 5.0 / 49.0 && seven[0] != 5.0 * (1.0 / 49.0));
}

/* Quotients that lie beside the middle of two fp32 numbers, nearer than fp64 can tell.
 * The sign of the exact rest says on which side. */
static void
divide_sees_on_which_side_of_a_tie_it_is(void)
{
    size_t seen[2] = {0, 0};
    for (int i = 0; i < 100000; i++) {
        double middle = (double)((random_bits() & 0xffffffu) | 0x1000001u);
        float value = (float)((random_bits() & 0xffffffu) | 1u);
        double divisor = (double)value / middle;
        double rest = fma(-middle, divisor, (double)value);
        if (rest == 0.0) {
            continue;
        }
        float expected = (float)(rest > 0.0 ? middle + 1.0 : middle - 1.0);
        float signs[2] = {value, -value};
        gm_host_kernels_chosen()->divide(GM_F32, signs, 2, divisor);
        CHECK(signs[0] == expected && signs[1] == -expected);
        seen[(float)((double)value / divisor) != expected]++;
    }
    CHECK(seen[0] > 1000 && seen[1] > 1000);
}

static void
max_abs_sees_every_place_and_every_kind(void)
{
    static const double kinds[] = {100.0, -100.0, (double)INFINITY, -(double)INFINITY};
    for (int type = 0; type < GM_DTYPE_COUNT; type++) {
        for (size_t at = 0; at < COUNT; at += 37) {
            double values[COUNT];
            fill_random((gm_dtype)type, values, COUNT, 1.0);
            for (size_t k = 0; k < 4; k++) {
                write_element((gm_dtype)type, values, at, kinds[k]);
                CHECK(gm_host_kernels_chosen()->max_abs((gm_dtype)type, values,
                                                        COUNT) == fabs(kinds[k]));
                CHECK(gm_host_kernels_chosen()->max_abs((gm_dtype)type, values, at) <=
                      1.0);
            }
            write_element((gm_dtype)type, values, at, -(double)NAN);
            CHECK(isnan(
                gm_host_kernels_chosen()->max_abs((gm_dtype)type, values, COUNT)));
        }
    }
    CHECK(gm_host_kernels_chosen()->max_abs(GM_F32, NULL, 0) == 0.0);
}

static void
power_sums_are_pairwise(void)
{
    size_t n = 3000001;
    float *values = malloc(n * sizeof(*values));
    CHECK(values != NULL);
    for (size_t i = 0; i < n; i++) {
        values[i] = 0.1f;
    }
    const gm_host_kernels *kernels = gm_host_kernels_chosen();
    double one = (double)0.1f;
    double plain = kernels->power_sum(GM_F32, values, n, 1.0, 1.0);
    double square = kernels->power_sum(GM_F32, values, n, 2.0, 2.0);
    double cube = kernels->power_sum(GM_F32, values, n, 1.0, 3.0);
    CHECK(fabs(plain / (one * (double)n) - 1.0) < 1e-14);
    CHECK(fabs(square / (one * one / 4.0 * (double)n) - 1.0) < 1e-14);
    CHECK(fabs(cube / (one * one * one * (double)n) - 1.0) < 1e-14);
    CHECK(kernels->power_sum(GM_F32, values, 0, 1.0, 2.0) == 0.0);
    free(values);
}

/* ---- every set against the baseline --------------------------------------------------- */

/* Any pattern of bits, also what is not finite. */
static void
fill_bits(gm_dtype type, void *array, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = random_bits();
        memcpy((char *)array + i * gm_dtype_size(type), &bits, gm_dtype_size(type));
    }
}

static bool
same_bits(double left, double right)
{
    return memcmp(&left, &right, sizeof(left)) == 0;
}

/* All kernels, one after the other, on the same numbers. `wild`: 1 makes the values any
 * pattern, 2 the terms; not both, since it is open which of two NaNs a sum is. */
static void
compare_sets(const gm_host_kernels *left, const gm_host_kernels *right, gm_dtype wide,
             gm_dtype narrow, int wild)
{
    double values[COUNT], copy[COUNT], terms[COUNT];
    fill_random(wide, values, COUNT, 10.0);
    fill_random(narrow, terms, COUNT, 10.0);
    if (wild != 0) {
        fill_bits(wild == 1 ? wide : narrow, wild == 1 ? values : terms, COUNT);
    }
    memcpy(copy, values, sizeof(values));
    size_t n = COUNT - 3, bytes = n * gm_dtype_size(wide);
    left->accumulate(wide, values, narrow, terms, n, 0.37);
    right->accumulate(wide, copy, narrow, terms, n, 0.37);
    CHECK(memcmp(values, copy, bytes) == 0);
    left->scale(wide, values, n, 1e-6);
    right->scale(wide, copy, n, 1e-6);
    CHECK(memcmp(values, copy, bytes) == 0);
    left->divide(wide, values, n, 49.0);
    right->divide(wide, copy, n, 49.0);
    CHECK(memcmp(values, copy, bytes) == 0);
    left->divide(wide, values, n, 1e-7);
    right->divide(wide, copy, n, 1e-7);
    CHECK(memcmp(values, copy, bytes) == 0);
    CHECK(same_bits(left->max_abs(wide, values, n), right->max_abs(wide, values, n)));
    static const double powers[] = {1.0, 2.0, 2.5};
    for (size_t i = 0; i < 3; i++) {
        double one = left->power_sum(wide, values, n, 3.0, powers[i]);
        double other = right->power_sum(wide, values, n, 3.0, powers[i]);
        CHECK(same_bits(one, other) || (isnan(one) && isnan(other)));
    }
}

/* Plain sums of fp32 take a way of their own. */
static void
compare_plain_sums(const gm_host_kernels *left, const gm_host_kernels *right)
{
    float values[COUNT], copy[COUNT], terms[COUNT];
    fill_bits(GM_F32, terms, COUNT);
    fill_random(GM_F32, values, COUNT, 10.0);
    memcpy(copy, values, sizeof(values));
    left->accumulate(GM_F32, values, GM_F32, terms, COUNT, 1.0);
    right->accumulate(GM_F32, copy, GM_F32, terms, COUNT, 1.0);
    CHECK(memcmp(values, copy, sizeof(values)) == 0);
}

/* All fp16 numbers to fp64; to fp16 all numbers of 20 bits, and what lies around them. */
static void
compare_conversions(const gm_host_kernels *left, const gm_host_kernels *right)
{
    for (uint32_t start = 0; start <= UINT16_MAX; start += 1024) {
        uint16_t halves[1024];
        double sums[2][1024] = {{0.0}};
        for (uint32_t i = 0; i < 1024; i++) {
            halves[i] = (uint16_t)(start + i);
        }
        left->accumulate(GM_F64, sums[0], GM_F16, halves, 1024, 1.0);
        right->accumulate(GM_F64, sums[1], GM_F16, halves, 1024, 1.0);
        CHECK(memcmp(sums[0], sums[1], sizeof(sums[0])) == 0);
    }
    for (uint32_t start = 0; start < 1u << 20; start += 1024) {
        float singles[1024];
        uint16_t sums[2][1024] = {{0}};
        uint32_t around = (uint32_t)random_bits() & 0xfffu;
        for (uint32_t i = 0; i < 1024; i++) {
            singles[i] = gm_f32_of_bits((start + i) << 12 | (i % 2 != 0 ? around : 0));
        }
        left->accumulate(GM_F16, sums[0], GM_F32, singles, 1024, 1.0);
        right->accumulate(GM_F16, sums[1], GM_F32, singles, 1024, 1.0);
        CHECK(memcmp(sums[0], sums[1], sizeof(sums[0])) == 0);
    }
}

static void
all_sets_give_the_same_bits(void)
{
    const gm_host_kernels *sets[GM_HOST_KERNELS_LIMIT];
    const gm_host_kernels *baseline = gm_host_kernels_baseline();
    size_t count = gm_host_kernels_list(sets);
    CHECK(sets[count - 1] == baseline);
    CHECK(gm_host_kernels_chosen() == sets[0]);
    for (size_t k = 0; k < count; k++) {
        printf("   %s\n", sets[k]->name);
        for (int kind = 0; kind < GM_DTYPE_COUNT * GM_DTYPE_COUNT * 3; kind++) {
            compare_sets(baseline, sets[k], (gm_dtype)(kind / 3 / GM_DTYPE_COUNT),
                         (gm_dtype)(kind / 3 % GM_DTYPE_COUNT), kind % 3);
        }
        compare_plain_sums(baseline, sets[k]);
        compare_conversions(baseline, sets[k]);
    }
}

/* Runs a test once with each set that this CPU has. */
static void
on_each_set(void (*test)(void))
{
    const gm_host_kernels *sets[GM_HOST_KERNELS_LIMIT];
    size_t count = gm_host_kernels_list(sets);
    for (size_t i = 0; i < count; i++) {
        gm_host_kernels_force(sets[i]);
        CHECK(gm_host_kernels_chosen() == sets[i]);
        test();
    }
    gm_host_kernels_force(NULL);
    CHECK(gm_host_kernels_chosen() == sets[0]);
}

/* ---- through a device ------------------------------------------------------------------ */

static void
kernels_run_as_work_of_a_device(void)
{
    const gm_host_options options = {.capacity = (size_t)64 << 20};
    gm_device *device;
    CHECK_OK(gm_host_create(&options, &device));
    float sums[3] = {1.0f, 2.0f, 3.0f}, terms[1] = {10.0f};
    double wide_terms[2] = {-20.0, 30.0};
    uint64_t mark = 0;
    double maximum = 0.0, sum = 0.5;
    uint32_t flag = 0;
    gm_devptr at = (gm_devptr)(uintptr_t)sums;
    const gm_kernel_part parts[3] = {
        {at, (gm_devptr)(uintptr_t)terms, 1, GM_F32, 0},
        {0, 0, 0, GM_F64, 0},
        {at + 4, (gm_devptr)(uintptr_t)wide_terms, 2, GM_F64, 0},
    };
    gm_devptr list = (gm_devptr)(uintptr_t)parts;
    const gm_kernel_mark at_mark = {(gm_devptr)(uintptr_t)&mark, 7}, no_mark = {0, 0};
    CHECK_OK(gm_kernel_accumulate(device, 0, GM_F32, list, 3, 2.0, at_mark));
    CHECK_EQ(mark, 7);
    CHECK(sums[0] == 21.0f && sums[1] == -38.0f && sums[2] == 63.0f);
    CHECK_OK(gm_kernel_divide(device, 0, GM_F32, at, 3, 2.0));
    CHECK_OK(
        gm_kernel_max_abs(device, 0, GM_F32, at, 3, (gm_devptr)(uintptr_t)&maximum));
    CHECK(maximum == 31.5);
    CHECK_OK(
        gm_kernel_max_abs(device, 0, GM_F32, at, 1, (gm_devptr)(uintptr_t)&maximum));
    CHECK(maximum == 31.5);
    maximum = 1.0;
    CHECK_OK(gm_kernel_max_abs_parts(device, 0, list, 3, (gm_devptr)(uintptr_t)&maximum,
                                     no_mark));
    CHECK(maximum == 30.0);
    CHECK_EQ(mark, 7);
    CHECK_OK(gm_kernel_power_sum(device, 0, GM_F32, at, 3, 10.5, 1.0,
                                 (gm_devptr)(uintptr_t)&sum));
    CHECK(fabs(sum - (0.5 + 61.0 / 10.5)) < 1e-12);
    CHECK_OK(
        gm_kernel_check_finite(device, 0, GM_F32, at, 3, (gm_devptr)(uintptr_t)&flag));
    CHECK_EQ(flag, 0);
    sums[2] = -INFINITY;
    CHECK_OK(
        gm_kernel_check_finite(device, 0, GM_F32, at, 3, (gm_devptr)(uintptr_t)&flag));
    CHECK_EQ(flag, 1);
    CHECK_OK(gm_kernel_scale(device, 0, GM_F32, at, 2, 2.0));
    CHECK(sums[0] == 21.0f && sums[1] == -38.0f);
    CHECK_OK(gm_kernel_scale(device, 0, GM_F32, 0, 0, 2.0));
    gm_device_release(device);
}

#define ON_EACH_SET(test)            \
    static void test##_on_each(void) \
    {                                \
        on_each_set(test);           \
    }
ON_EACH_SET(accumulate_rounds_each_sum_once)
ON_EACH_SET(accumulate_onto_itself_doubles)
ON_EACH_SET(scale_multiplies_and_stops_at_the_end)
ON_EACH_SET(divide_rounds_each_quotient_once)
ON_EACH_SET(divide_sees_on_which_side_of_a_tie_it_is)
ON_EACH_SET(max_abs_sees_every_place_and_every_kind)
ON_EACH_SET(power_sums_are_pairwise)
ON_EACH_SET(kernels_run_as_work_of_a_device)

static const gm_test tests[] = {
    {"f16_widens_exactly_and_comes_back", f16_widens_exactly_and_comes_back},
    {"f32_rounds_to_the_nearest_even_f16", f32_rounds_to_the_nearest_even_f16},
    {"f32_rounds_to_the_nearest_even_bf16", f32_rounds_to_the_nearest_even_bf16},
    {"accumulate_rounds_each_sum_once", accumulate_rounds_each_sum_once_on_each},
    {"accumulate_onto_itself_doubles", accumulate_onto_itself_doubles_on_each},
    {"scale_multiplies_and_stops_at_the_end",
     scale_multiplies_and_stops_at_the_end_on_each},
    {"divide_rounds_each_quotient_once", divide_rounds_each_quotient_once_on_each},
    {"divide_sees_on_which_side_of_a_tie_it_is",
     divide_sees_on_which_side_of_a_tie_it_is_on_each},
    {"max_abs_sees_every_place_and_every_kind",
     max_abs_sees_every_place_and_every_kind_on_each},
    {"power_sums_are_pairwise", power_sums_are_pairwise_on_each},
    {"all_sets_give_the_same_bits", all_sets_give_the_same_bits},
    {"kernels_run_as_work_of_a_device", kernels_run_as_work_of_a_device_on_each},
};

GM_TEST_MAIN(tests)
