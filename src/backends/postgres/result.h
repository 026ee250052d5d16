/*
 * Values in a result of the server, and numbers as text for a statement.
 */
#ifndef SG_PG_RESULT_H
#define SG_PG_RESULT_H

#include <libpq-fe.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A value; empty if it is NULL or missing, as in the reply of a hostile server. */
const char *sg_pg_value(const PGresult *result, int row, int column);
/* Reads a number; false if it is NULL or no number. */
bool sg_pg_int64(const PGresult *result, int row, int column, int64_t *out);
/* Reads an expiry; false if it cannot be read. */
bool sg_pg_expiry(const PGresult *result, int row, int column, int64_t *out);
bool sg_pg_bool(const PGresult *result, int row, int column);
/* Copies a text; false if it is NULL or does not fit. */
bool sg_pg_text(const PGresult *result, int row, int column, char *out, size_t size);

#define SG_PG_NUMBER_SIZE 24
void sg_pg_format(char out[SG_PG_NUMBER_SIZE], int64_t value);

#endif
