/* UTF-8, and text from users and stores made safe for a terminal. */
#ifndef SYNCGUARD_CLI_TEXT_H
#define SYNCGUARD_CLI_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length of the well-formed UTF-8 character at text (NUL-terminated), 0 if there is none. */
size_t cli_utf8_length(const unsigned char *text);
/* The code point of the character of that length. */
uint32_t cli_utf8_decode(const unsigned char *text, size_t length);
/* True for control and format characters: they must not reach a terminal. */
bool cli_is_control(uint32_t point);

/* Makes the functions of the C library treat text as UTF-8, so that they know the width of each
 * character. */
void cli_use_utf8(void);
/* The number of terminal columns that the text takes. A character that the C library does not know
 * counts as one. */
int cli_columns(const char *text);
/* The number of bytes at the beginning of text (which has length bytes) whose characters fit into
 * this number of columns. An unknown character counts as two. */
size_t cli_fitting(const char *text, size_t length, int columns);

/* Escapes control characters and backslashes; cuts at the end of a whole character. */
void cli_escape(const char *text, char *out, size_t size);
/* The same for a message whose parts may be escaped already: backslashes stay. */
void cli_escape_controls(const char *text, char *out, size_t size);

#endif
