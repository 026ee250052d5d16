/* See vector_file.h. */
#include "vector_file.h"

#include <stdlib.h>
#include <string.h>

bool vector_open(vector_file *file, const char *folder, const char *name)
{
    memset(file, 0, sizeof *file);
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    file->stream = fopen(path, "r");
    if (file->stream == NULL)
        fprintf(stderr, "cannot open %s\n", path);
    return file->stream != NULL;
}

bool vector_next(vector_file *file)
{
    do {
        if (fgets(file->line, sizeof file->line, file->stream) == NULL)
            return false;
    } while (file->line[0] == '#');
    file->line[strcspn(file->line, "\n")] = '\0';
    file->fields = 0;
    for (char *at = file->line; at != NULL && file->fields < VECTOR_FIELDS;) {
        char *tab = strchr(at, '\t');
        file->field[file->fields++] = at;
        if (tab != NULL)
            *tab++ = '\0';
        at = tab;
    }
    return true;
}

void vector_close(vector_file *file, const char *name)
{
    printf("%s: %d cases run, %d that C cannot have\n", name, file->run, file->skipped);
    fclose(file->stream);
}

static bool read_part(const char *text, size_t digits, size_t times, vector_bytes *out)
{
    if (digits == 0 || (digits % 2) != 0 || out->length + digits / 2 * times > VECTOR_BYTES)
        return false;
    while (times-- > 0) {
        for (size_t i = 0; i < digits; i += 2) {
            char pair[3] = {text[i], text[i + 1], '\0'};
            out->data[out->length++] = (char)strtoul(pair, NULL, 16);
        }
    }
    return true;
}

bool vector_read(const char *text, vector_bytes *out)
{
    out->length = 0;
    while (strcmp(text, "-") != 0 && *text != 0) {
        size_t digits = strspn(text, "0123456789abcdef");
        const char *end = text + digits;
        size_t times = 1;
        if (*end == '*')
            times = (size_t)strtoul(end + 1, (char **)&end, 10);
        if (!read_part(text, digits, times, out))
            return false;
        text = *end == '.' ? end + 1 : end;
    }
    out->data[out->length] = '\0';
    return true;
}
