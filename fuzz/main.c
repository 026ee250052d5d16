/* Runs a target over the files in some folders: the corpus as a plain test, without libFuzzer. */
#include <dirent.h>
#include <stdio.h>

#include "fuzz.h"

#define MAX_FILE (1 << 20)

static int try_file(const char *path)
{
    static uint8_t buffer[MAX_FILE];
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        return 1;
    }
    size_t size = fread(buffer, 1, sizeof buffer, file);
    fclose(file);
    /* The copy is exactly as long as the input, so that sanitizers see a read past its end. */
    uint8_t *data = malloc(size == 0 ? 1 : size);
    if (data == NULL)
        return 1;
    memcpy(data, buffer, size);
    LLVMFuzzerTestOneInput(data, size);
    free(data);
    return 0;
}

int main(int argc, char **argv)
{
    int tried = 0, failed = 0;
    for (int i = 1; i < argc; i++) {
        DIR *folder = opendir(argv[i]);
        if (folder == NULL) {
            perror(argv[i]);
            return 1;
        }
        for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
            char path[4096];
            if (entry->d_name[0] == '.')
                continue;
            snprintf(path, sizeof path, "%s/%s", argv[i], entry->d_name);
            failed += try_file(path);
            tried++;
        }
        closedir(folder);
    }
    printf("%d inputs\n", tried);
    return failed != 0 || tried == 0;
}
