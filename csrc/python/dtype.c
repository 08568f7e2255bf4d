/* dtype.c - the element types, by name, and one element from a Python value.
 *
 * The table below is the single list of what a buffer may hold: NumPy's booleans,
 * integers, floats and complex numbers, and the one- and two-byte floats of ml_dtypes.
 * long double is left out: no accelerator has it. Text is understood without NumPy;
 * NumPy's own dtypes and scalar types are asked for their name.
 *
 * Note [Letters of the buffer protocol]
 * The struct module has no letter for bfloat16 and the float8 types. A memoryview of
 * them shows the raw bits as unsigned integers of the same width ('H', 'B'), which
 * keeps every consumer's arithmetic on itemsize right. Buffer.numpy() does not go
 * through the letter and gives the true dtype.
 *
 * Thread-safety: the GIL; the table is constant. Cost: a walk over two dozen rows,
 * none for "uint8" and "float32" as written in a program.
 */
#include "python/python.h"

#include <math.h>
#include <string.h>

#include "python/buffer.h"

static const dtype_info DTYPES[] = {
    /* name, letter, typestr, itemsize, DLPack code and bits, kernel */
    {"bool", "?", "|b1", 1, CODE_BOOL, 8, -1},
    {"int8", "b", "|i1", 1, CODE_INT, 8, -1},
    {"int16", "h", "<i2", 2, CODE_INT, 16, -1},
    {"int32", "i", "<i4", 4, CODE_INT, 32, -1},
    {"int64", "l", "<i8", 8, CODE_INT, 64, -1},
    {"uint8", "B", "|u1", 1, CODE_UINT, 8, -1},
    {"uint16", "H", "<u2", 2, CODE_UINT, 16, -1},
    {"uint32", "I", "<u4", 4, CODE_UINT, 32, -1},
    {"uint64", "L", "<u8", 8, CODE_UINT, 64, -1},
    {"float16", "e", "<f2", 2, CODE_FLOAT, 16, 0},
    {"float32", "f", "<f4", 4, CODE_FLOAT, 32, 2},
    {"float64", "d", "<f8", 8, CODE_FLOAT, 64, 3},
    {"complex64", "Zf", "<c8", 8, CODE_COMPLEX, 64, -1},
    {"complex128", "Zd", "<c16", 16, CODE_COMPLEX, 128, -1},
    {"bfloat16", "H", NULL, 2, CODE_BFLOAT, 16, 1},
    {"float8_e3m4", "B", NULL, 1, 7, 8, -1},
    {"float8_e4m3", "B", NULL, 1, 8, 8, -1},
    {"float8_e4m3b11fnuz", "B", NULL, 1, 9, 8, -1},
    {"float8_e4m3fn", "B", NULL, 1, 10, 8, -1},
    {"float8_e4m3fnuz", "B", NULL, 1, 11, 8, -1},
    {"float8_e5m2", "B", NULL, 1, 12, 8, -1},
    {"float8_e5m2fnuz", "B", NULL, 1, 13, 8, -1},
    {"float8_e8m0fnu", "B", NULL, 1, CODE_FLOAT8_E8M0FNU, 8, -1},
};

#define DTYPE_COUNT (sizeof(DTYPES) / sizeof(DTYPES[0]))

_Static_assert(sizeof(long) == 8, "the letter 'l' stands for 64 bits");

/* Python's and C's words for some of them. */
static const struct {
    const char *alias;
    const char *name;
} ALIASES[] = {
    {"bool_", "bool"},         {"half", "float16"},  {"single", "float32"},
    {"double", "float64"},     {"float", "float64"}, {"int", "int64"},
    {"complex", "complex128"},
};

const dtype_info *
dtype_by_name(const char *name)
{
    for (size_t i = 0; i < DTYPE_COUNT; i++) {
        if (strcmp(DTYPES[i].name, name) == 0) {
            return &DTYPES[i];
        }
    }
    return NULL;
}

/* By the array interface's type string; the mark of byte order may be '<', '=', '|' or
 * missing. */
static const dtype_info *
dtype_by_typestr(const char *text)
{
    if (*text == '<' || *text == '=' || *text == '|') {
        text++;
    }
    for (size_t i = 0; i < DTYPE_COUNT; i++) {
        if (DTYPES[i].typestr != NULL && strcmp(DTYPES[i].typestr + 1, text) == 0) {
            return &DTYPES[i];
        }
    }
    return NULL;
}

static const dtype_info *
dtype_by_text(const char *text)
{
    const dtype_info *row = dtype_by_name(text);
    if (row != NULL) {
        return row;
    }
    for (size_t i = 0; i < sizeof(ALIASES) / sizeof(ALIASES[0]); i++) {
        if (strcmp(ALIASES[i].alias, text) == 0) {
            return dtype_by_name(ALIASES[i].name);
        }
    }
    return dtype_by_typestr(text);
}

/* The DLPack kind that a struct letter stands for; -1 for letters of other things. */
static int
code_of_letter(char letter)
{
    if (letter == '?') {
        return CODE_BOOL;
    }
    if (letter != '\0' && strchr("bhilqn", letter) != NULL) {
        return CODE_INT;
    }
    if (letter != '\0' && strchr("BHILQNc", letter) != NULL) {
        return CODE_UINT;
    }
    if (letter != '\0' && strchr("efd", letter) != NULL) {
        return CODE_FLOAT;
    }
    return -1;
}

const dtype_info *
dtype_by_format(const char *format, Py_ssize_t itemsize)
{
    if (format == NULL) {
        format = "B";
    }
    if (*format == '@' || *format == '=' || *format == '<') {
        format++;
    }
    bool complex = *format == 'Z';
    if (complex) {
        format++;
    }
    if (format[0] == '\0' || format[1] != '\0' || itemsize > DTYPE_MAX_SIZE) {
        return NULL;
    }
    int code = code_of_letter(format[0]);
    if (code < 0 || (complex && code != CODE_FLOAT)) {
        return NULL;
    }
    return dtype_by_dlpack((uint8_t)(complex ? CODE_COMPLEX : code),
                           (uint8_t)(itemsize * 8));
}

const dtype_info *
dtype_by_dlpack(uint8_t code, uint8_t bits)
{
    for (size_t i = 0; i < DTYPE_COUNT; i++) {
        if (DTYPES[i].dlpack_code == code && DTYPES[i].dlpack_bits == bits) {
            return &DTYPES[i];
        }
    }
    return NULL;
}

/* The place of a kind in the order of dtype_can_convert. */
static int
kind_rank(const dtype_info *dtype)
{
    switch (dtype->dlpack_code) {
        case CODE_BOOL:
            return 0;
        case CODE_UINT:
            return 1;
        case CODE_INT:
            return 2;
        case CODE_COMPLEX:
            return 4;
        default:
            return 3;
    }
}

bool
dtype_can_convert(const dtype_info *from, const dtype_info *to)
{
    return kind_rank(from) <= kind_rank(to);
}

/* ---- from Python ----------------------------------------------------------------- */

static const dtype_info *
reject_dtype(PyObject *value)
{
    PyErr_Format(
        PyExc_TypeError,
        "dtype must name one of bool, int8 to int64, uint8 to uint64, float16, "
        "float32, float64, complex64, complex128, bfloat16 or a float8 type, "
        "in the byte order of this machine, not %R",
        value);
    return NULL;
}

/* float, int, bool, complex: Python's own types. NULL for all others. */
static const dtype_info *
dtype_of_python_type(PyObject *value)
{
    if (value == (PyObject *)&PyFloat_Type) {
        return dtype_by_name("float64");
    }
    if (value == (PyObject *)&PyLong_Type) {
        return dtype_by_name("int64");
    }
    if (value == (PyObject *)&PyBool_Type) {
        return dtype_by_name("bool");
    }
    if (value == (PyObject *)&PyComplex_Type) {
        return dtype_by_name("complex128");
    }
    return NULL;
}

const dtype_info *
dtype_parse(core_state *state, PyObject *value)
{
    if (value == state->str_uint8) {
        return &DTYPES[5];
    }
    if (value == state->str_float32) {
        return &DTYPES[10];
    }
    const dtype_info *row = NULL;
    if (PyUnicode_Check(value)) {
        const char *text = PyUnicode_AsUTF8(value);
        if (text == NULL) {
            return NULL;
        }
        row = dtype_by_text(text);
        return row != NULL ? row : reject_dtype(value);
    }
    row = dtype_of_python_type(value);
    if (row != NULL) {
        return row;
    }
    PyObject *name = numpy_dtype_name(state, value);
    if (name == NULL) {
        return PyErr_Occurred() ? NULL : reject_dtype(value);
    }
    const char *text = PyUnicode_AsUTF8(name);
    row = text != NULL ? dtype_by_name(text) : NULL;
    Py_DECREF(name);
    if (row == NULL && text != NULL) {
        return reject_dtype(value);
    }
    return row;
}

/* ---- one element ----------------------------------------------------------------- */

static int
reject_range(const dtype_info *dtype, PyObject *value)
{
    PyErr_Format(PyExc_ValueError, "%R is outside the range of %s", value, dtype->name);
    return -1;
}

static int
reject_kind(const dtype_info *dtype, PyObject *value)
{
    PyErr_Format(PyExc_TypeError, "%s elements cannot take the %s %R", dtype->name,
                 Py_TYPE(value)->tp_name, value);
    return -1;
}

static int
pack_integer(const dtype_info *dtype, PyObject *value, unsigned char *out)
{
    if (!PyLong_Check(value)) {
        return reject_kind(dtype, value);
    }
    unsigned bits = dtype->dlpack_code == CODE_BOOL ? 1u : dtype->dlpack_bits;
    int overflow = 0;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (number == -1 && PyErr_Occurred()) {
        return -1;
    }
    unsigned long long raw = (unsigned long long)number;
    if (dtype->dlpack_code == CODE_INT) {
        long long limit = bits == 64 ? 0 : 1LL << (bits - 1);
        if (overflow != 0 || (bits < 64 && (number < -limit || number >= limit))) {
            return reject_range(dtype, value);
        }
    }
    else {
        if (overflow > 0 && bits == 64) {
            raw = PyLong_AsUnsignedLongLong(value);
            if (raw == (unsigned long long)-1 && PyErr_Occurred()) {
                PyErr_Clear();
                return reject_range(dtype, value);
            }
        }
        else if (overflow != 0 || number < 0 || (bits < 64 && (raw >> bits) != 0)) {
            return reject_range(dtype, value);
        }
    }
    memcpy(out, &raw, dtype->itemsize); /* little endian, see setup */
    return 0;
}

/* bfloat16: the upper half of a float32, rounded to nearest even. */
static uint16_t
bfloat16_bits(float number)
{
    uint32_t bits;
    memcpy(&bits, &number, sizeof(bits));
    if (isnan(number)) {
        return (uint16_t)((bits >> 16) | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static int
pack_bfloat16(const dtype_info *dtype, PyObject *value, double number,
              unsigned char *out)
{
    uint16_t bits = bfloat16_bits((float)number);
    if (isfinite(number) && (bits & 0x7fffu) == 0x7f80u) {
        return reject_range(dtype, value);
    }
    memcpy(out, &bits, sizeof(bits));
    return 0;
}

static int
pack_float16(const dtype_info *dtype, PyObject *value, double number,
             unsigned char *out)
{
    if (PyFloat_Pack2(number, (char *)out, 1) == 0) {
        return 0;
    }
    if (!PyErr_ExceptionMatches(PyExc_OverflowError)) {
        return -1;
    }
    PyErr_Clear();
    return reject_range(dtype, value);
}

static int
pack_float(const dtype_info *dtype, PyObject *value, unsigned char *out)
{
    if (PyComplex_Check(value)) {
        return reject_kind(dtype, value);
    }
    double number = PyFloat_AsDouble(value);
    if (number == -1.0 && PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError)) {
            return -1;
        }
        PyErr_Clear();
        return reject_range(dtype, value);
    }
    if (dtype->dlpack_code == CODE_BFLOAT) {
        return pack_bfloat16(dtype, value, number, out);
    }
    if (dtype->itemsize == 2) {
        return pack_float16(dtype, value, number, out);
    }
    if (dtype->itemsize == 4) {
        float narrow = (float)number;
        if (isinf(narrow) && !isinf(number)) {
            return reject_range(dtype, value);
        }
        memcpy(out, &narrow, sizeof(narrow));
        return 0;
    }
    memcpy(out, &number, sizeof(number));
    return 0;
}

static int
pack_complex(const dtype_info *dtype, PyObject *value, unsigned char *out)
{
    Py_complex number = PyComplex_AsCComplex(value);
    if (number.real == -1.0 && PyErr_Occurred()) {
        return -1;
    }
    if (dtype->itemsize == 16) {
        memcpy(out, &number.real, sizeof(double));
        memcpy(out + sizeof(double), &number.imag, sizeof(double));
        return 0;
    }
    float parts[2] = {(float)number.real, (float)number.imag};
    if ((isinf(parts[0]) && !isinf(number.real)) ||
        (isinf(parts[1]) && !isinf(number.imag))) {
        return reject_range(dtype, value);
    }
    memcpy(out, parts, sizeof(parts));
    return 0;
}

/* A value that only NumPy understands (its scalars, the float8 types): a 0-d array of
 * it, converted within its kind. */
static int
pack_by_numpy(core_state *state, const dtype_info *dtype, PyObject *value,
              unsigned char *out)
{
    array_layout layout = {(gm_devptr)(uintptr_t)out, 0, NULL, NULL, dtype->itemsize};
    host_array described;
    PyObject *target = NULL;
    PyObject *source = numpy_asarray(state, value);
    int result = source != NULL ? numpy_describe(state, source, &described) : -1;
    if (result == 0) {
        if (described.ndim != 0 || !dtype_can_convert(described.dtype, dtype)) {
            result = reject_kind(dtype, value);
        }
        host_array_release(&described);
    }
    if (result == 0) {
        target = numpy_wrap(state, &layout, dtype, NULL, true);
        result = target != NULL ? numpy_copy(state, target, source) : -1;
    }
    Py_XDECREF(target);
    Py_XDECREF(source);
    return result;
}

/* Values that are neither int, float nor complex. An integer of NumPy counts as an int
 * for integer elements, so that its width does not matter. */
static int
pack_other(core_state *state, const dtype_info *dtype, PyObject *value,
           unsigned char *out)
{
    int rank = kind_rank(dtype);
    if (rank == 1 || rank == 2) {
        PyObject *number = PyIndex_Check(value) ? PyNumber_Index(value) : NULL;
        if (number != NULL) {
            int result = pack_integer(dtype, number, out);
            Py_DECREF(number);
            return result;
        }
        PyErr_Clear();
    }
    return pack_by_numpy(state, dtype, value, out);
}

int
dtype_pack(core_state *state, const dtype_info *dtype, PyObject *value,
           unsigned char out[DTYPE_MAX_SIZE])
{
    if (!PyLong_Check(value) && !PyFloat_Check(value) && !PyComplex_Check(value)) {
        return pack_other(state, dtype, value, out);
    }
    switch (dtype->dlpack_code) {
        case CODE_BOOL:
        case CODE_INT:
        case CODE_UINT:
            return pack_integer(dtype, value, out);
        case CODE_FLOAT:
        case CODE_BFLOAT:
            return pack_float(dtype, value, out);
        case CODE_COMPLEX:
            return pack_complex(dtype, value, out);
        default:
            break;
    }
    if (PyLong_Check(value) && dtype->dlpack_code != CODE_FLOAT8_E8M0FNU) {
        int overflow;
        if (PyLong_AsLongAndOverflow(value, &overflow) == 0) {
            out[0] = 0; /* zero is all bits clear; no need for ml_dtypes */
            return 0;
        }
    }
    return pack_by_numpy(state, dtype, value, out);
}
