#include <stdio.h>

#include "probe.h"

enum {
    DEEPEST = 8
};

static char closers[DEEPEST];
static int depth;
static int first = 1;

static void
begin(const char *key)
{
    printf(first ? "\n%*s" : ",\n%*s", 2 * depth, "");
    if (key != NULL) {
        printf("\"%s\": ", key);
    }
    first = 0;
}

void
json_open(const char *key, char bracket)
{
    if (depth != 0) {
        begin(key);
    }
    putchar(bracket);
    closers[depth++] = bracket == '[' ? ']' : '}';
    first = 1;
}

void
json_close(void)
{
    depth--;
    printf("\n%*s%c", 2 * depth, "", closers[depth]);
    first = 0;
    if (depth == 0) {
        putchar('\n');
    }
}

void
json_integer(const char *key, uint64_t value)
{
    begin(key);
    printf("%llu", (unsigned long long)value);
}

void
json_real(const char *key, double value)
{
    begin(key);
    printf("%.4g", value);
}

void
json_text(const char *key, const char *value)
{
    begin(key);
    putchar('"');
    for (; *value != '\0'; value++) {
        if (*value == '"' || *value == '\\') {
            putchar('\\');
        }
        putchar(*value < ' ' ? ' ' : *value);
    }
    putchar('"');
}

void
json_bool(const char *key, int value)
{
    begin(key);
    printf(value ? "true" : "false");
}
