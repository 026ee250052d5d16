/* The store that the options name: its URL, and opening it. */
#ifndef SYNCGUARD_CLI_STORE_H
#define SYNCGUARD_CLI_STORE_H

#include <sys/types.h>

#include "options.h"

#define CLI_URL_SIZE 8193
/* Writes the URL to a buffer of CLI_URL_SIZE bytes. CLI_OK or an exit code. The URL is read only
 * once, because its file may be a pipe. */
int cli_store_url(const cli_options *options, char *buffer);
/* The same; call limits the wait for a pipe. */
int cli_store_url_within(const cli_options *options, const syncguard_call *call, char *buffer);
/* Whether the URL contains a password, or may contain one. */
bool cli_url_has_password(const char *url);
/* False, with the reason in err, if no command could open the URL because of its scheme, its
 * library or its options. Neither sends nor creates anything. */
bool cli_url_valid(const char *url, syncguard_error *err);
/* Reports why the store could not be opened or set up and, if the URL is wrong, where it comes
 * from. Returns the exit code. */
int cli_open_failure(const cli_options *options, const char *url, const syncguard_error *err);
/* Refuses memory: for commands that need a store which outlives them. CLI_OK or an exit code. */
int cli_refuse_memory(const cli_options *options);
/* Writes the URL without user, password and options: safe to print. */
void cli_url_without_secrets(const char *url, char *out, size_t size);
/* Makes all later failures name this store, and names it now with -v. shown: the URL as above. */
void cli_announce_store(const char *url, char *shown, size_t size);
/* The owner label of this command's locks: --owner, or user@host:pid. */
const char *cli_owner(const cli_options *options, pid_t pid, char buffer[SYNCGUARD_OWNER_SIZE]);

/* The name of this user in the user database, else its number. */
void cli_user_name(char *out, size_t size);

/* Called when a server could not be reached. True if the open is to be tried again. */
typedef bool cli_open_again(void *context, const syncguard_error *err);
/* Opens the store. CLI_OK, or an exit code after a message. owner and again may be NULL. */
int cli_open(const cli_options *options, const char *owner, cli_open_again *again, void *context,
             syncguard_backend **out);

/* For commands that change no lock or only existing ones: a file that does not exist is not
 * created. Then the result is CLI_OK and *out NULL, after a message. */
int cli_open_existing(const cli_options *options, syncguard_backend **out);
/* Writes the path of a store that is a file to a buffer of CLI_URL_SIZE bytes. False for other
 * stores. */
bool cli_store_file(const cli_options *options, char *path);

/* The places where the URL may come from, in the order of syncguard_default_url. */
enum { CLI_PLACES = 5, CLI_PLACE_SIZE = 512 };

/* The first place that is set counts; the last one always is. */
typedef struct cli_place {
    char name[CLI_PLACE_SIZE];
    const char *unset; /* NULL: it is set */
} cli_place;

/* Fills in all places and returns the index of the one that counts. */
size_t cli_find_places(const cli_options *options, cli_place places[CLI_PLACES]);

#endif
