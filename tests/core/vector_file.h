/* Reading tests/vectors: lines of fields between tabs, '#' begins a comment. */
#ifndef VECTOR_FILE_H
#define VECTOR_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#define VECTOR_FIELDS 10
#define VECTOR_BYTES 8192

typedef struct vector_file {
    FILE *stream;
    char line[32768];
    char *field[VECTOR_FIELDS];
    int fields;
    int run;
    int skipped;
} vector_file;

typedef struct vector_bytes {
    char data[VECTOR_BYTES + 1]; /* with a closing NUL */
    size_t length;
} vector_bytes;

bool vector_open(vector_file *file, const char *folder, const char *name);
/* The next case into file->field; false at the end. */
bool vector_next(vector_file *file);
/* Prints how many cases were run and skipped, and closes the file. */
void vector_close(vector_file *file, const char *name);
/* "61*3.62" into bytes; false if it is malformed. */
bool vector_read(const char *text, vector_bytes *out);

#endif
