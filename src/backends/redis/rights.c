/*
 * Whether the user may do what the operations need. A script asks the server about each command
 * with the names that it is used with; no command is run. Servers before 7.0 cannot tell.
 */
#include "operations.h"

#include <stdio.h>
#include <string.h>

#include "request.h"

/*
 * For each question the script gets a count and that many words. It returns 1 if the command is
 * permitted. A command that the server does not know is not permitted.
 */
static const char SCRIPT[] = "if not redis.acl_check_cmd then return -1 end\n"
                             "local out, i = {}, 1\n"
                             "while ARGV[i] do\n"
                             "  local last = i + ARGV[i]\n"
                             "  local known, may = pcall(redis.acl_check_cmd,"
                             " unpack(ARGV, i + 1, last))\n"
                             "  out[#out + 1] = known and may and 1 or 0\n"
                             "  i = last + 1\n"
                             "end\n"
                             "return out";

/* What fails without the rights of a group. */
typedef enum right_group { OPERATE, CONFIRM, WAKE, LIST, MOVE, EXAMINE, GREET, GROUPS } right_group;

static const struct {
    syncguard_severity severity;
    const char *why;
} groups[GROUPS] = {
    [OPERATE] = {SYNCGUARD_BLOCK, "acquire, release, extend or status fail with AuthFailed"},
    [CONFIRM] = {SYNCGUARD_BLOCK, "acquire and extend fail, because wait_replicas is set"},
    [WAKE] = {SYNCGUARD_WARN, "waiters are not told of a release: they poll, and start later"},
    [LIST] = {SYNCGUARD_WARN, "list fails, and stored records cannot be checked"},
    [MOVE] = {SYNCGUARD_WARN,
              "operations fail when the hash slot of the locks moves to another node, "
              "or when the nodes of the URL are gone"},
    [EXAMINE] = {SYNCGUARD_WARN, "doctor cannot see how the server keeps its data"},
    [GREET] = {SYNCGUARD_WARN, "each connection is refused one command, which fills the server's "
                               "ACL log"},
};

/* Which name a command is used with. */
typedef enum name_kind { NO_NAME, LOCK, INDEX, COUNTER, NAME_KINDS } name_kind;

/* What a command needs of a pattern (%R~, %W~). INCR needs both, so it distinguishes nothing. */
typedef enum name_access { OTHER, READS, WRITES } name_access;

static const struct {
    right_group group;
    const char *right; /* as in ACL SETUSER */
    const char *words; /* the command, and what comes after a name */
    name_kind name;
    name_access access;
} checks[] = {
    {OPERATE, "+evalsha", "EVALSHA x 0", NO_NAME, OTHER},
    {OPERATE, "+eval", "EVAL x 0", NO_NAME, OTHER},
    {OPERATE, "+script|load", "SCRIPT LOAD x", NO_NAME, OTHER},
    {OPERATE, "+time", "TIME", NO_NAME, OTHER},
    {OPERATE, "+get", "GET", LOCK, READS},
    {OPERATE, "+get", "GET", INDEX, READS},
    {OPERATE, "+get", "GET", COUNTER, READS},
    {OPERATE, "+set", "SET x", LOCK, WRITES},
    {OPERATE, "+set", "SET x", INDEX, WRITES},
    {OPERATE, "+del", "DEL", LOCK, WRITES},
    {OPERATE, "+del", "DEL", INDEX, WRITES},
    {OPERATE, "+pexpire", "PEXPIRE 1", LOCK, WRITES},
    {OPERATE, "+pexpire", "PEXPIRE 1", INDEX, WRITES},
    {OPERATE, "+incr", "INCR", COUNTER, OTHER},
    {CONFIRM, "+wait", "WAIT 0 0", NO_NAME, OTHER},
    {WAKE, "+client|id", "CLIENT ID", NO_NAME, OTHER},
    {WAKE, "+client|tracking", "CLIENT TRACKING ON", NO_NAME, OTHER},
    {WAKE, "+client|caching", "CLIENT CACHING YES", NO_NAME, OTHER},
    {WAKE, "+subscribe &__redis__:invalidate", "SUBSCRIBE __redis__:invalidate", NO_NAME, OTHER},
    {WAKE, "+exists", "EXISTS", LOCK, OTHER},
    {LIST, "+scan", "SCAN 0", NO_NAME, OTHER},
    {LIST, "+getrange", "GETRANGE 0 1", LOCK, OTHER},
    {MOVE, "+cluster|slots", "CLUSTER SLOTS", NO_NAME, OTHER},
    {MOVE, "+cluster|myid", "CLUSTER MYID", NO_NAME, OTHER},
    {MOVE, "+asking", "ASKING", NO_NAME, OTHER},
    {EXAMINE, "+info", "INFO", NO_NAME, OTHER},
    {EXAMINE, "+config|get", "CONFIG GET save", NO_NAME, OTHER},
    {GREET, "+client|setname", "CLIENT SETNAME x", NO_NAME, OTHER},
    {GREET, "+ping", "PING", NO_NAME, OTHER},
};
enum { CHECKS = sizeof checks / sizeof checks[0], MAX_WORDS = 4 };

static bool redis_rights_group_applies(const sg_redis_config *config, right_group group)
{
    if (group == CONFIRM)
        return config->wait_replicas > 0;
    if (group == WAKE)
        return config->tracking;
    return group != MOVE || config->mode == SYNCGUARD_REDIS_CLUSTER;
}

/* Names as an operation would use them. */
static syncguard_status redis_rights_make_names(const sg_redis_config *config,
                                                sg_redis_name names[NAME_KINDS],
                                                syncguard_error *err)
{
    syncguard_status status = sg_redis_name_lock(config, "syncguard-doctor", &names[LOCK], err);
    if (status != SYNCGUARD_OK)
        return status;
    sg_redis_name_index(config, "syncguard-doctor-probe", &names[INDEX]);
    return sg_redis_name_counter(config, &names[LOCK], &names[COUNTER], err);
}

/* Adds one question, as a count and that many words. */
static void redis_rights_add_question(sg_redis_text *args, size_t *count, const char *words,
                                      const sg_redis_name *name)
{
    size_t parts = 1;
    for (const char *at = words; *at != '\0'; at++)
        parts += *at == ' ';
    sg_redis_text_arg_int(args, (int64_t)(parts + (name != NULL ? 1 : 0)));
    for (const char *at = words; at != NULL && *at != '\0';) {
        size_t length = strcspn(at, " ");
        sg_redis_text_arg(args, at, length);
        if (name != NULL && at == words)
            sg_redis_text_arg(args, name->text, name->length);
        at = at[length] == ' ' ? at + length + 1 : NULL;
    }
    *count += 1 + parts + (name != NULL ? 1 : 0);
}

static syncguard_status redis_rights_query(sg_redis_backend *backend,
                                           const sg_redis_name names[NAME_KINDS],
                                           const syncguard_limits *limits, redisReply **reply,
                                           syncguard_error *err)
{
    sg_redis_text args, text;
    size_t count = 0;
    sg_redis_text_init(&args);
    sg_redis_text_init(&text);
    for (size_t i = 0; i < CHECKS; i++) {
        name_kind kind = checks[i].name;
        redis_rights_add_question(&args, &count, checks[i].words,
                                  kind != NO_NAME ? &names[kind] : NULL);
    }
    sg_redis_text_command(&text, 3 + count);
    sg_redis_text_arg_str(&text, "EVAL");
    sg_redis_text_arg_str(&text, SCRIPT);
    sg_redis_text_arg_int(&text, 0);
    sg_redis_text_add(&text, args.data, args.length);
    text.failed |= args.failed;
    syncguard_status status = sg_redis_commands_run(backend, NULL, &text, reply, 1, limits, err);
    sg_redis_text_free(&args);
    sg_redis_text_free(&text);
    return status;
}

static bool redis_rights_is_permitted(const redisReply *reply, size_t i)
{
    return reply->element[i]->type == REDIS_REPLY_INTEGER && reply->element[i]->integer == 1;
}

/* Adds a word to the list, once. */
static void redis_rights_add_word(char *list, size_t size, const char *word)
{
    size_t used = strlen(list), length = strlen(word);
    const char *at = strstr(list, word);
    if (at == NULL || (at[length] != '\0' && at[length] != ' '))
        snprintf(list + used, size - used, "%s%s", used > 0 ? " " : "", word);
}

/* True if no check with this name, or with this right, is permitted: then the name or the right
 * itself is missing. */
static bool redis_rights_none_permitted(const redisReply *reply, name_kind kind, const char *right)
{
    for (size_t i = 0; i < CHECKS; i++) {
        bool same = right != NULL ? strcmp(checks[i].right, right) == 0 : checks[i].name == kind;
        if (same && redis_rights_is_permitted(reply, i))
            return false;
    }
    return true;
}

/* True if a command that is permitted with another name is refused with this one. */
static bool redis_rights_name_is_refused(const redisReply *reply, name_kind kind)
{
    for (size_t i = 0; i < CHECKS; i++) {
        if (checks[i].name == kind && !redis_rights_is_permitted(reply, i) &&
            !redis_rights_none_permitted(reply, NO_NAME, checks[i].right))
            return true;
    }
    return false;
}

static bool redis_rights_any_permitted(const redisReply *reply, name_access access)
{
    for (size_t i = 0; i < CHECKS; i++) {
        if (checks[i].access == access && redis_rights_is_permitted(reply, i))
            return true;
    }
    return false;
}

/* The access that the user has to no name, if it has the other one: a pattern like %R~ refuses the
 * same as missing commands, and the server does not say which. NULL: it has both or neither. */
static const char *redis_rights_refused_access(const redisReply *reply)
{
    bool reads = redis_rights_any_permitted(reply, READS);
    if (reads == redis_rights_any_permitted(reply, WRITES))
        return NULL;
    return reads ? "write to" : "read";
}

static void redis_rights_add_patterns(const sg_redis_config *config, const redisReply *reply,
                                      char *list, size_t size)
{
    static const char *const parts[NAME_KINDS] = {
        [LOCK] = "", [INDEX] = "id:", [COUNTER] = "fence:"};
    for (name_kind kind = LOCK; kind < NAME_KINDS; kind++) {
        char pattern[240];
        snprintf(pattern, sizeof pattern, "~%.200s:%s*", config->prefix, parts[kind]);
        if (redis_rights_none_permitted(reply, kind, NULL) ||
            redis_rights_name_is_refused(reply, kind)) {
            redis_rights_add_word(list, size, pattern);
            if (kind == LOCK)
                return; /* it covers the others */
        }
    }
}

/* The rights of a group that are missing, as arguments of ACL SETUSER. */
static void redis_rights_find_missing(const sg_redis_config *config, const redisReply *reply,
                                      right_group group, char *list, size_t size)
{
    list[0] = '\0';
    for (size_t i = 0; i < CHECKS; i++) {
        if (checks[i].group == group && !redis_rights_is_permitted(reply, i) &&
            redis_rights_none_permitted(reply, NO_NAME, checks[i].right))
            redis_rights_add_word(list, size, checks[i].right);
    }
    if (group == OPERATE)
        redis_rights_add_patterns(config, reply, list, size);
}

static void redis_rights_report_missing(const syncguard_findings *to, right_group group,
                                        const char *list)
{
    char text[600], change[600];
    snprintf(text, sizeof text, "the user lacks %.500s", list);
    snprintf(change, sizeof change, "ACL SETUSER name-of-the-user %.500s", list);
    syncguard_report(to, groups[group].severity, "permissions", text, groups[group].why, change);
}

static void redis_rights_report_access(const syncguard_findings *to, const sg_redis_config *config,
                                       const char *list, const char *access)
{
    char text[900], change[900];
    snprintf(text, sizeof text, "the user lacks %.500s, or may not %s ~%.200s:*", list, access,
             config->prefix);
    snprintf(change, sizeof change, "ACL SETUSER name-of-the-user %.500s ~%.200s:*", list,
             config->prefix);
    syncguard_report(to, groups[OPERATE].severity, "permissions", text, groups[OPERATE].why,
                     change);
}

static void redis_rights_report_all(const syncguard_findings *to, const sg_redis_config *config,
                                    const redisReply *reply)
{
    const char *access = redis_rights_refused_access(reply);
    bool all = true;
    for (right_group group = OPERATE; group < GROUPS; group++) {
        char list[500];
        if (!redis_rights_group_applies(config, group))
            continue;
        redis_rights_find_missing(config, reply, group, list, sizeof list);
        if (list[0] != '\0' && group == OPERATE && access != NULL)
            redis_rights_report_access(to, config, list, access);
        else if (list[0] != '\0')
            redis_rights_report_missing(to, group, list);
        all = all && list[0] == '\0';
    }
    if (all)
        syncguard_report_fine(to, "permissions", "the user may do what the operations need");
}

syncguard_status sg_redis_diagnose_rights(sg_redis_backend *backend, const syncguard_findings *to,
                                          const syncguard_limits *limits, syncguard_error *err)
{
    sg_redis_name names[NAME_KINDS];
    redisReply *reply = NULL;
    syncguard_status status = redis_rights_make_names(&backend->config, names, err);
    if (status == SYNCGUARD_OK)
        status = redis_rights_query(backend, names, limits, &reply, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (reply->type == REDIS_REPLY_ARRAY && reply->elements == CHECKS)
        redis_rights_report_all(to, &backend->config, reply);
    else if (sg_redis_reply_is(reply, "NOPERM"))
        syncguard_report(to, SYNCGUARD_BLOCK, "permissions",
                         "the user lacks +eval, without which the others cannot be checked",
                         groups[OPERATE].why, "ACL SETUSER name-of-the-user +eval");
    else
        syncguard_report(to, SYNCGUARD_WARN, "permissions",
                         "the server cannot tell what the user may do (Redis 7.0 can)",
                         "a missing right shows only when an operation needs it",
                         "compare the user's ACL with the list in the documentation");
    sg_redis_replies_free(&reply, 1);
    return status;
}
