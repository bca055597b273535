// Which process has how much of which card: one file for each process in a folder that all of the node's containers share.
//
// A process holds a lock on its file. So whoever reads learns its number as it is in the reader's own PID namespace, as
// NVIDIA's driver tells the host's numbers; and a file that nobody holds any more is that of a process that ended.
#include "pretend.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define ROOM 1024

static struct { char pci[16]; size_t bytes; } own[PRETEND_MAX];
static size_t own_cards;
static int    own_file = -1;

static const char *folder(void) {
    const char *given = getenv("PADDOCK_PRETEND_ACCOUNTS");
    return given && *given ? given : "/run/pretend-accounts";
}

#define OLD 60  // seconds after which a file that nobody holds is that of a process which ended, not of one that starts

static void tidy(void) {
    DIR *opened = opendir(folder());
    for (struct dirent *entry; opened && (entry = readdir(opened));) {
        const int    file = entry->d_name[0] == '.' ? -1 : openat(dirfd(opened), entry->d_name, O_RDONLY | O_CLOEXEC);
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        struct stat  about;
        if (file < 0) continue;
        const bool held = fcntl(file, F_GETLK, &lock) || lock.l_type != F_UNLCK;
        if (!held && !fstat(file, &about) && about.st_mtime + OLD < time(NULL)) unlinkat(dirfd(opened), entry->d_name, 0);
        close(file);
    }
    if (opened) closedir(opened);
}

static int open_own(void) {
    if (own_file >= 0) return own_file;
    tidy();
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    char path[512];
    snprintf(path, sizeof path, "%s/%d-%lx%09lx", folder(), getpid(), (long) now.tv_sec, now.tv_nsec);
    own_file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (own_file >= 0) fcntl(own_file, F_SETLK, &lock);
    return own_file;
}

void pretend_account(const char *pci, size_t bytes) {
    size_t at = 0;
    while (at < own_cards && strcmp(own[at].pci, pci)) at++;
    if (at == own_cards) {
        if (own_cards == PRETEND_MAX) return;
        snprintf(own[own_cards++].pci, sizeof own[at].pci, "%s", pci);
    }
    own[at].bytes = bytes;
    char   text[ROOM];
    size_t used = 0;
    for (size_t i = 0; i < own_cards && used < ROOM; i++)
        used += (size_t) snprintf(text + used, ROOM - used, "%s %zu\n", own[i].pci, own[i].bytes);
    if (used >= ROOM) return;
    memset(text + used, '\n', ROOM - used);
    if (open_own() >= 0 && pwrite(own_file, text, ROOM, 0) < 0) perror("pretend: account");
}

// Tells this process' own file before it is opened: closing it again would give up the lock.
static bool is_own(DIR *opened, const char *name) {
    struct stat a, b;
    return own_file >= 0 && !fstat(own_file, &a) && !fstatat(dirfd(opened), name, &b, 0) && a.st_ino == b.st_ino
        && a.st_dev == b.st_dev;
}

static int read_users(int file, int pid, struct pretend_user *users, int most) {
    char text[ROOM + 1], *next = NULL;
    int  count = 0;
    const ssize_t got = pread(file, text, ROOM, 0);
    if (got <= 0) return 0;
    text[got] = 0;
    for (char *line = strtok_r(text, "\n", &next); line && count < most; line = strtok_r(NULL, "\n", &next)) {
        struct pretend_user *user = &users[count];
        user->pid = pid;
        if (sscanf(line, "%15s %zu", user->pci, &user->bytes) == 2 && user->bytes) count++;
    }
    return count;
}

int pretend_users(struct pretend_user *users, int most) {
    DIR *opened = opendir(folder());
    int  count  = 0;
    for (struct dirent *entry; opened && (entry = readdir(opened));) {
        if (entry->d_name[0] == '.' || is_own(opened, entry->d_name)) continue;
        const int file = openat(dirfd(opened), entry->d_name, O_RDONLY | O_CLOEXEC);
        if (file < 0) continue;
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        if (!fcntl(file, F_GETLK, &lock) && lock.l_type != F_UNLCK)
            count += read_users(file, lock.l_pid, users + count, most - count);
        close(file);
    }
    if (opened) closedir(opened);
    return count;
}

size_t pretend_used_by_others(const char *pci) {
    struct pretend_user users[PRETEND_USERS];
    const int count = pretend_users(users, PRETEND_USERS);
    size_t    sum   = 0;
    for (int i = 0; i < count; i++) sum += strcmp(users[i].pci, pci) ? 0 : users[i].bytes;
    return sum;
}
