/* syncguard doctor: findings about the store. Exit code: the worst of them, fine 0, warn 1,
 * block 2. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "commands.h"
#include "exitcode.h"
#include "json.h"
#include "report.h"
#include "store.h"
#include "text.h"

/* A new file and the files beside it need at least this space. */
enum { NEEDED_BYTES = 64 * 1024 };

typedef struct findings {
    bool json;
    size_t count;
    syncguard_severity worst;
} findings;

static void doctor_print_finding_text(const syncguard_finding *finding, const char *word)
{
    char text[1024], why[1024], change[1024];
    cli_escape(finding->text, text, sizeof text);
    cli_escape(finding->why, why, sizeof why);
    cli_escape(finding->change, change, sizeof change);
    printf("%-5s  %s: %s\n", word, finding->topic, text);
    if (finding->severity != SYNCGUARD_FINE)
        printf("         why:    %s\n         change: %s\n", why, change);
}

static void doctor_report_finding(void *context, const syncguard_finding *finding)
{
    static const char *const words[] = {"fine", "warn", "block"};
    findings *f = context;
    const char *word =
        words[finding->severity <= SYNCGUARD_BLOCK ? finding->severity : SYNCGUARD_BLOCK];
    f->count++;
    if (finding->severity > f->worst)
        f->worst = finding->severity;
    if (!f->json) {
        doctor_print_finding_text(finding, word);
        return;
    }
    cli_json json;
    cli_json_begin(&json);
    cli_json_text(&json, "severity", word);
    cli_json_text(&json, "topic", finding->topic);
    cli_json_text(&json, "text", finding->text);
    cli_json_text(&json, "why", finding->why);
    cli_json_text(&json, "change", finding->change);
    cli_json_end(&json);
}

static void doctor_report_missing_file(findings *f, syncguard_severity severity, const char *topic,
                                       const char *text, const char *change)
{
    const syncguard_finding finding = {severity, topic, text,
                                       "nothing can be checked before there is a file", change};
    doctor_report_finding(f, &finding);
}

/* The rest of a quota is not known before there is a file. */
static bool doctor_folder_has_space(const char *folder)
{
    struct statvfs about;
    bool root = geteuid() == 0;
    if (statvfs(folder, &about) != 0 || about.f_blocks == 0)
        return true; /* not known, or without a limit */
    uint64_t blocks = root ? about.f_bfree : about.f_bavail;
    return blocks * about.f_frsize >= NEEDED_BYTES &&
           (about.f_files == 0 || (root ? about.f_ffree : about.f_favail) > 0);
}

/* Whether the first lock could create the file: in its folder, or in the nearest one that exists.
 */
static void doctor_diagnose_missing_file(const cli_options *options, findings *f)
{
    char path[CLI_URL_SIZE], text[CLI_URL_SIZE + 64];
    char *slash = NULL;
    struct stat about;
    if (!cli_store_file(options, path))
        return;
    do {
        slash = strrchr(path, '/');
        if (slash == NULL)
            memcpy(path, ".", 2);
        else
            slash[slash == path ? 1 : 0] = '\0';
    } while (stat(path, &about) != 0 && slash != NULL && slash != path);
    snprintf(text, sizeof text, "does not exist, and this user may not create it in %s", path);
    if (access(path, W_OK | X_OK) != 0)
        doctor_report_missing_file(
            f, SYNCGUARD_BLOCK, "permissions", text,
            "change the owner or the mode of that folder, or name another file");
    else if (!doctor_folder_has_space(path))
        doctor_report_missing_file(
            f, SYNCGUARD_BLOCK, "space",
            "does not exist, and its file system is full or has no inode left",
            "make space, or name a file on another file system");
    else
        doctor_report_missing_file(f, SYNCGUARD_WARN, "file",
                                   "does not exist yet; the first lock creates it",
                                   "nothing if no lock was taken yet; otherwise correct the path");
}

/* An empty output would look as if everything were fine. */
static void doctor_report_no_checks(findings *f)
{
    static const syncguard_finding finding = {
        SYNCGUARD_FINE, "checks", "this store has no checks: nothing was examined", "", ""};
    doctor_report_finding(f, &finding);
}

int cmd_doctor(cli_options *options)
{
    syncguard_backend *backend = NULL;
    syncguard_error err;
    findings f = {options->json, 0, SYNCGUARD_FINE};
    int code = cli_open_existing(options, &backend);
    if (code != CLI_OK)
        return code;
    if (backend == NULL) {
        doctor_diagnose_missing_file(options, &f);
        return (int)f.worst;
    }
    if (syncguard_examine(backend, NULL, doctor_report_finding, &f, &err) != SYNCGUARD_OK) {
        code = cli_failure(&err);
    } else {
        if (f.count == 0)
            doctor_report_no_checks(&f);
        code = (int)f.worst;
    }
    syncguard_close(backend);
    return code;
}
