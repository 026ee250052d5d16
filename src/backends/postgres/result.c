/*
 * Values in a result of the server.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "result.h"

const char *sg_pg_value(const PGresult *result, int row, int column)
{
    return PQgetisnull(result, row, column) != 0 ? "" : PQgetvalue(result, row, column);
}

bool sg_pg_int64(const PGresult *result, int row, int column, int64_t *out)
{
    const char *text = sg_pg_value(result, row, column);
    if (*text == 0)
        return false;
    errno = 0;
    char *end = NULL;
    *out = strtoll(text, &end, 10);
    return errno == 0 && *end == 0;
}

bool sg_pg_expiry(const PGresult *result, int row, int column, int64_t *out)
{
    return sg_pg_int64(result, row, column, out) && *out < INT64_C(1) << 53 &&
           *out > -(INT64_C(1) << 53);
}

bool sg_pg_bool(const PGresult *result, int row, int column)
{
    return sg_pg_value(result, row, column)[0] == 't';
}

bool sg_pg_text(const PGresult *result, int row, int column, char *out, size_t size)
{
    int length = PQgetlength(result, row, column);
    if (PQgetisnull(result, row, column) != 0 || length < 0 || (size_t)length >= size)
        return false;
    memcpy(out, PQgetvalue(result, row, column), (size_t)length);
    out[length] = '\0';
    return true;
}

void sg_pg_format(char out[SG_PG_NUMBER_SIZE], int64_t value)
{
    snprintf(out, SG_PG_NUMBER_SIZE, "%lld", (long long)value);
}
