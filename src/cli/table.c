/*
 * The table of locks. The first batch of rows decides the widths of the columns;
 * a later row that is wider is printed in full and shifts the rest of its line.
 */
#include <stdlib.h>
#include <string.h>

#include "table.h"
#include "text.h"
#include "times.h"

enum { BATCH = 1000, MAX_KEY_WIDTH = 60, MAX_OWNER_WIDTH = 40 };

bool cli_table_begin(cli_table *table, FILE *out, bool with_id)
{
    memset(table, 0, sizeof *table);
    table->out = out;
    table->with_id = with_id;
    table->rows = calloc(BATCH, sizeof *table->rows);
    return table->rows != NULL;
}

static int table_column_width(int width, const char *text, int limit)
{
    int own = cli_columns(text);
    return own > width && own <= limit ? own : width;
}

static void table_print_cell(FILE *out, const char *text, int width)
{
    int own = cli_columns(text);
    fprintf(out, "%s%*s  ", text, width > own ? width - own : 0, "");
}

static void table_print_heading(const cli_table *table)
{
    table_print_cell(table->out, "KEY", table->key_width);
    table_print_cell(table->out, "OWNER", table->owner_width);
    fprintf(table->out, "HELD FOR  EXPIRES IN  FENCE%s\n",
            table->with_id ? "            LOCK ID" : "");
}

static void table_escape_row(const syncguard_lock_info_raw *lock, char key[4 * SYNCGUARD_KEY_SIZE],
                             char owner[4 * SYNCGUARD_OWNER_SIZE])
{
    cli_escape(lock->key, key, 4 * (size_t)SYNCGUARD_KEY_SIZE);
    cli_escape(lock->owner[0] != '\0' ? lock->owner : "-", owner, 4 * (size_t)SYNCGUARD_OWNER_SIZE);
}

static void table_choose_widths(cli_table *table)
{
    char key[4 * SYNCGUARD_KEY_SIZE], owner[4 * SYNCGUARD_OWNER_SIZE];
    table->key_width = (int)strlen("KEY");
    table->owner_width = (int)strlen("OWNER");
    for (size_t i = 0; i < table->count; i++) {
        table_escape_row(&table->rows[i], key, owner);
        table->key_width = table_column_width(table->key_width, key, MAX_KEY_WIDTH);
        table->owner_width = table_column_width(table->owner_width, owner, MAX_OWNER_WIDTH);
    }
}

static void table_print_row(const cli_table *table, const syncguard_lock_info_raw *lock)
{
    char key[4 * SYNCGUARD_KEY_SIZE], owner[4 * SYNCGUARD_OWNER_SIZE], held[24], left[24];
    table_escape_row(lock, key, owner);
    cli_format_duration(lock->info.now_ms - lock->info.acquired_at_ms, held, sizeof held);
    cli_format_duration(lock->info.expires_at_ms - lock->info.now_ms, left, sizeof left);
    table_print_cell(table->out, key, table->key_width);
    table_print_cell(table->out, owner, table->owner_width);
    fprintf(table->out, "%-8s  %-10s  %s%s%s\n", held, left, lock->info.fence,
            table->with_id ? "  " : "", table->with_id ? lock->lock_id : "");
}

static void table_print_batch(cli_table *table)
{
    if (table->key_width == 0 && table->count > 0) {
        table_choose_widths(table);
        table_print_heading(table);
    }
    for (size_t i = 0; i < table->count; i++)
        table_print_row(table, &table->rows[i]);
    fflush(table->out);
    table->count = 0;
}

void cli_table_add(cli_table *table, const syncguard_lock_info_raw *lock)
{
    if (table->count == BATCH)
        table_print_batch(table);
    table->rows[table->count++] = *lock;
    table->total++;
}

static int table_compare_keys(const void *a, const void *b)
{
    return strcmp(((const syncguard_lock_info_raw *)a)->key,
                  ((const syncguard_lock_info_raw *)b)->key);
}

void cli_table_end(cli_table *table)
{
    if (table->count == table->total && table->count > 1)
        qsort(table->rows, table->count, sizeof *table->rows, table_compare_keys);
    table_print_batch(table);
    free(table->rows);
    table->rows = NULL;
}
