/* Stands between a process and the disk: says in which order rows are written, synced and acknowledged, and fails the Nth call.
 *
 * Loaded with LD_PRELOAD. Looks only at files whose name contains "hearth.db", and at answers of 202.
 * SHIM_LOG: a line per event, appended: "write IDS", "sync", "ack IDS"; IDS are the job ids in the bytes.
 * SHIM_CONTROL: a file of four ints, shared with the test: fail_at (0 never; below 0: that call and all after it), error (errno), seen, fired.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

enum { ID_LENGTH = 36, LINE = 1 << 16 };
struct control { volatile int fail_at, error, seen, fired; };

#define REAL(name, type) static type real; if (real == NULL) real = (type)dlsym(RTLD_NEXT, name)

typedef ssize_t (*writer)(int, const void *, size_t, off_t);
typedef int (*syncer)(int);
typedef int (*cutter)(int, off_t);
typedef ssize_t (*sender)(int, const void *, size_t);

static struct control *control;
static int log_fd = -1;

__attribute__((constructor)) static void begin(void) {
    const char *log = getenv("SHIM_LOG"), *shared = getenv("SHIM_CONTROL");
    if (log != NULL) log_fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (shared == NULL) return;
    int fd = open(shared, O_RDWR | O_CLOEXEC);
    void *page = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED) control = page;
    if (fd >= 0) close(fd);
}

static int is_ours(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return strstr(path, "hearth.db") != NULL && strstr(path, ".lock") == NULL && strstr(path, ".reserve") == NULL;
}

static int fails(int fd, int needs_room) {
    if (control == NULL || control->fail_at == 0 || !is_ours(fd)) return 0;
    if (control->error == ENOSPC && !needs_room) return 0; /* a full disk still syncs, and cuts files down */
    int at = control->fail_at, seen = __sync_add_and_fetch(&control->seen, 1);
    if (at < 0 ? seen < -at : seen != at) return 0;
    control->fired = 1;
    errno = control->error;
    return 1;
}

static void note(const char *what, const char *data, size_t size) {
    char line[LINE];
    size_t used = (size_t)snprintf(line, sizeof line, "%s", what);
    for (size_t at = 0; at + ID_LENGTH <= size && used + ID_LENGTH + 2 < sizeof line; at++) {
        if (memcmp(data + at, "job_", 4) != 0) continue;
        size_t end = 4;
        while (end < ID_LENGTH && isxdigit((unsigned char)data[at + end])) end++;
        if (end < ID_LENGTH) continue;
        line[used++] = ' ';
        memcpy(line + used, data + at, ID_LENGTH);
        used += ID_LENGTH;
    }
    line[used++] = '\n';
    REAL("write", sender);
    if (real(log_fd, line, used) < 0) abort();
}

static ssize_t wrote(writer real, int fd, const void *data, size_t size, off_t at) {
    if (fails(fd, 1)) return -1;
    ssize_t done = real(fd, data, size, at);
    if (log_fd >= 0 && is_ours(fd)) note("write", data, size);
    return done;
}

static int synced(syncer real, int fd) {
    if (fails(fd, 0)) return -1;
    int done = real(fd);
    if (log_fd >= 0 && done == 0 && is_ours(fd)) note("sync", "", 0);
    return done;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { REAL("pwrite", writer); return wrote(real, fd, data, size, at); }
ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) { REAL("pwrite64", writer); return wrote(real, fd, data, size, at); }
int fdatasync(int fd) { REAL("fdatasync", syncer); return synced(real, fd); }
int fsync(int fd) { REAL("fsync", syncer); return synced(real, fd); }
int ftruncate(int fd, off_t size) { REAL("ftruncate", cutter); return fails(fd, 0) ? -1 : real(fd, size); }
int ftruncate64(int fd, off_t size) { REAL("ftruncate64", cutter); return fails(fd, 0) ? -1 : real(fd, size); }

ssize_t write(int fd, const void *data, size_t size) {
    REAL("write", sender);
    if (log_fd >= 0 && size > 12 && memcmp(data, "HTTP/1.1 202", 12) == 0) note("ack", data, size);
    return real(fd, data, size);
}
