/*
 * An intrusive doubly linked list: what is listed embeds a syncguard_link for each list that it can
 * be in, so adding needs no memory and cannot fail. A list of zeros is empty.
 *
 * Locking is the caller's. A child forked while another thread changes the list may still walk it
 * from first to last: the links in that direction hold after every single step.
 */
#ifndef SYNCGUARD_SYS_LIST_H
#define SYNCGUARD_SYS_LIST_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A place in a list. */
typedef struct syncguard_link {
    struct syncguard_link *next;
    struct syncguard_link *previous;
} syncguard_link;

/* A list: its ends. */
typedef struct syncguard_links {
    syncguard_link *first;
    syncguard_link *last;
} syncguard_links;

static inline void *syncguard_linked(syncguard_link *link, size_t offset)
{
    return link != NULL ? (char *)link - offset : NULL;
}

/* What embeds the link as the given member; NULL for NULL. */
#define SYNCGUARD_LINKED(link, type, member)                                                       \
    ((type *)syncguard_linked((link), offsetof(type, member)))

static inline void syncguard_links_append(syncguard_links *list, syncguard_link *link)
{
    link->next = NULL;
    link->previous = list->last;
    if (list->last != NULL)
        list->last->next = link;
    else
        list->first = link;
    list->last = link;
}

/* The link is in this list. */
static inline void syncguard_links_remove(syncguard_links *list, syncguard_link *link)
{
    if (link->previous != NULL)
        link->previous->next = link->next;
    else
        list->first = link->next;
    if (link->next != NULL)
        link->next->previous = link->previous;
    else
        list->last = link->previous;
}

/* Removes the first link; NULL: the list is empty. */
static inline syncguard_link *syncguard_links_pop(syncguard_links *list)
{
    syncguard_link *link = list->first;
    if (link != NULL)
        syncguard_links_remove(list, link);
    return link;
}

/* For tests: whether both directions agree. */
static inline bool syncguard_links_check(const syncguard_links *list)
{
    const syncguard_link *previous = NULL;
    for (const syncguard_link *link = list->first; link != NULL; link = link->next) {
        if (link->previous != previous)
            return false;
        previous = link;
    }
    return list->last == previous;
}

#ifdef __cplusplus
}
#endif

#endif
