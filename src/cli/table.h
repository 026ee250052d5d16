/* The table of locks that people read: key, owner, held for, expires in, fence. */
#ifndef SYNCGUARD_CLI_TABLE_H
#define SYNCGUARD_CLI_TABLE_H

#include <stdio.h>

#include <syncguard.h>

typedef struct cli_table {
    FILE *out;
    bool with_id;
    syncguard_lock_info_raw *rows; /* rows that wait until the widths of the columns are known */
    size_t count;
    size_t total; /* number of all rows that were added */
    int key_width;
    int owner_width;
} cli_table;

/* False if there is no memory. */
bool cli_table_begin(cli_table *table, FILE *out, bool with_id);
/* Rows are printed in batches, so a listing of any length needs only the memory of one batch. */
void cli_table_add(cli_table *table, const syncguard_lock_info_raw *lock);
/* Prints the remaining rows, and frees the memory. A table that fits into one batch is sorted by
 * key. */
void cli_table_end(cli_table *table);

#endif
