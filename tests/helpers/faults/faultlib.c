/* A small LD_PRELOAD library that makes the n-th change under a watched directory go wrong.
 *
 * A packer must survive a crash at any point, so the tests need every point. Wrapping libc's symbols reaches all the
 * code that changes files in one process, also inside liblmdb and libhdf5, needs no privilege, and costs a readlink
 * per call: hundreds of crashes take seconds. The library does nothing until it is armed through the functions
 * fault_arm() and fault_count(), called with ctypes by harness.py.
 *
 * The wrappers issue system calls themselves instead of asking dlsym(RTLD_NEXT) for libc's version: the many variants
 * of one call then collapse into one (rename is renameat2, writev is pwritev2), and there is nothing to initialise.
 *
 * Not seen: stores through a shared mapping (only their msync is), stdio other than fwrite, posix_fallocate, and
 * callers that go round the symbol (syscall(2), or a handle on libc.so.6 as in ctypes.CDLL("libc.so.6"); CDLL(None) is
 * seen). 64-bit Linux with glibc only.
 */
#define _GNU_SOURCE
#undef _FORTIFY_SOURCE /* its inline versions of open and write would clash with the definitions below */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

_Static_assert(sizeof(long) == 8, "offsets travel in one register");

enum { ROOM = 2 * PATH_MAX + 2 }; /* for any folder, a slash and any name */

/* The same numbers as harness.Action. */
enum action { COUNT, KILL, TEAR, FAIL, FAIL_FROM, SHORT };

static struct {
    enum action action;
    long at; /* the 1-based number of the call that goes wrong */
    int error;
    int log; /* every call is written here as "name<TAB>bytes<TAB>path<TAB>target", before it is carried out; -1: none */
    char directory[ROOM]; /* empty: not armed */
} fault;

/* Shared with processes forked after arming: "the n-th call" then means the n-th of the whole family. */
static atomic_long *calls;

static _Thread_local int torn; /* the call under way is half of a write, after which the process must die */

_Noreturn static void die(void)
{
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

/* ---- which calls count ---- */

static void path_of_fd(int fd, char path[ROOM])
{
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length > 0 ? length : 0] = '\0';
}

/* The absolute path without symbolic links, "." or ".."; empty if the folder is missing. The last component need not
 * exist and is not followed, because rename, link and unlink act on the name itself. */
static void path_of_name(int folder, const char *name, char path[ROOM])
{
    char joined[ROOM] = "", parent[PATH_MAX];
    if (name[0] != '/') {
        if (folder != AT_FDCWD)
            path_of_fd(folder, joined);
        else if (!getcwd(joined, PATH_MAX))
            joined[0] = '\0';
    }
    size_t length = strlen(joined);
    snprintf(joined + length, ROOM - length, "/%s", name);
    for (length = strlen(joined); length > 1 && joined[length - 1] == '/'; length--)
        joined[length - 1] = '\0';

    char *last = strrchr(joined, '/');
    *last = '\0';
    path[0] = '\0';
    if (realpath(last == joined ? "/" : joined, parent))
        snprintf(path, ROOM, "%s/%s", strcmp(parent, "/") ? parent : "", last + 1);
}

static void path_of_mapping(const void *address, char path[ROOM])
{
    char line[PATH_MAX + 128];
    FILE *maps = fopen("/proc/self/maps", "re");
    path[0] = '\0';
    while (maps && fgets(line, sizeof line, maps)) {
        uintptr_t from, to;
        int name = 0;
        sscanf(line, "%lx-%lx %*s %*s %*s %*s %n", &from, &to, &name);
        if (name && from <= (uintptr_t)address && (uintptr_t)address < to)
            snprintf(path, ROOM, "%.*s", (int)strcspn(line + name, "\n"), line + name);
    }
    if (maps)
        fclose(maps);
}

/* The path below the watched directory ("." for the directory itself), or NULL if it lies elsewhere. */
static const char *below(const char *path)
{
    size_t length = strlen(fault.directory);
    if (strncmp(path, fault.directory, length) != 0)
        return NULL;
    if (path[length] == '\0')
        return ".";
    return path[length] == '/' ? path + length + 1 : NULL;
}

/* ---- what happens to a call that counts ---- */

/* Count one call; die, or return how many of its bytes to carry out, or -1 with errno set if it is to fail.
 * For calls that write nothing, bytes is 0 and so is the permission. */
static ssize_t permit(const char *name, size_t bytes, const char *path, const char *target)
{
    long n = atomic_fetch_add(calls, 1) + 1;
    if (fault.log >= 0)
        dprintf(fault.log, "%s\t%zu\t%s\t%s\n", name, bytes, path, target);
    /* A full disk stays full, but files can still be taken away from it. */
    int removes = strncmp(name, "unlink", 6) == 0 || strcmp(name, "rmdir") == 0;
    if (fault.action == FAIL_FROM ? n < fault.at || removes : n != fault.at)
        return (ssize_t)bytes;
    switch (fault.action) {
    case KILL:
        die();
    case TEAR:
        if (bytes < 2)
            die();
        torn = 1;
        return (ssize_t)(bytes / 2);
    case SHORT:
        return (ssize_t)(bytes < 2 ? bytes : bytes / 2);
    case FAIL:
    case FAIL_FROM:
        errno = fault.error;
        return -1;
    case COUNT:
        break;
    }
    return (ssize_t)bytes;
}

/* The end of every write: the second half of a torn one never happens. */
static ssize_t settle(ssize_t result)
{
    if (torn)
        die();
    return result;
}

static ssize_t permit_path(const char *name, size_t bytes, const char *path, const char *target)
{
    const char *inner = below(path), *inner_target = below(target);
    if (!inner && !inner_target)
        return (ssize_t)bytes;
    return permit(name, bytes, inner ? inner : path, inner_target ? inner_target : target);
}

static ssize_t permit_fd(const char *name, int fd, size_t bytes)
{
    char path[ROOM];
    int saved = errno; /* a call that succeeds leaves errno alone */
    if (!fault.directory[0])
        return (ssize_t)bytes;
    path_of_fd(fd, path);
    errno = saved;
    return permit_path(name, bytes, path, "");
}

static ssize_t permit_name(const char *name, int folder, const char *file)
{
    char path[ROOM];
    int saved = errno;
    if (!fault.directory[0])
        return 0;
    path_of_name(folder, file, path);
    errno = saved;
    return permit_path(name, 0, path, "");
}

static ssize_t permit_names(const char *name, int folder, const char *file, int target_folder, const char *target)
{
    char path[ROOM], target_path[ROOM];
    int saved = errno;
    if (!fault.directory[0])
        return 0;
    path_of_name(folder, file, path);
    path_of_name(target_folder, target, target_path);
    errno = saved;
    return permit_path(name, 0, path, target_path);
}

/* ---- control, for ctypes ---- */

/* Watch a directory, which need not exist yet but its parent must, and count from 0. Returns 0, or -1 with errno. */
int fault_arm(int action, long at, int error, const char *directory, int log)
{
    fault.directory[0] = '\0';
    if (!calls) {
        void *page = mmap(NULL, sizeof *calls, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED)
            return -1;
        calls = page;
    }
    atomic_store(calls, 0);
    fault.action = (enum action)action;
    fault.at = at;
    fault.error = error;
    fault.log = log;
    path_of_name(AT_FDCWD, directory, fault.directory);
    return fault.directory[0] ? 0 : -1;
}

/* How many calls have counted since the library was armed. */
long fault_count(void)
{
    return calls ? atomic_load(calls) : 0;
}

/* ---- calls that write ---- */

ssize_t write(int fd, const void *data, size_t size)
{
    ssize_t allowed = permit_fd(__func__, fd, size);
    return allowed < 0 ? -1 : settle(syscall(SYS_write, fd, data, (size_t)allowed));
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    ssize_t allowed = permit_fd(__func__, fd, size);
    return allowed < 0 ? -1 : settle(syscall(SYS_pwrite64, fd, data, (size_t)allowed, offset));
}

/* An offset of -1 writes at the current position, so this is writev too. */
static ssize_t write_vector(const char *name, int fd, const struct iovec *parts, int count, off_t offset, int flags)
{
    if (count < 0 || count > IOV_MAX)
        return syscall(SYS_pwritev2, fd, parts, count, offset, 0L, flags);
    struct iovec kept[IOV_MAX];
    size_t size = 0;
    for (int i = 0; i < count; i++)
        size += parts[i].iov_len;
    ssize_t allowed = permit_fd(name, fd, size);
    if (allowed < 0)
        return -1;
    size_t left = (size_t)allowed;
    for (int i = 0; i < count; i++) {
        kept[i] = parts[i];
        if (kept[i].iov_len > left)
            kept[i].iov_len = left;
        left -= kept[i].iov_len;
    }
    return settle(syscall(SYS_pwritev2, fd, kept, count, offset, 0L, flags));
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    return write_vector(__func__, fd, parts, count, -1, 0);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset)
{
    return write_vector(__func__, fd, parts, count, offset, 0);
}

ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags)
{
    return write_vector(__func__, fd, parts, count, offset, flags);
}

/* numpy's tofile() and save() write through stdio. libc's own write cannot be wrapped, so a watched fwrite is made one
 * write by flushing at once. fwrite_unlocked is libc's fwrite under a name that is not wrapped. */
size_t fwrite(const void *data, size_t size, size_t count, FILE *file)
{
    int watched = fault.directory[0] != '\0';
    ssize_t allowed = watched ? permit_fd(__func__, fileno(file), size * count) : (ssize_t)(size * count);
    if (allowed < 0 || size == 0)
        return 0;
    flockfile(file);
    size_t done = fwrite_unlocked(data, 1, (size_t)allowed, file);
    if (watched && fflush_unlocked(file) != 0)
        done = 0;
    funlockfile(file);
    return (size_t)settle((ssize_t)(done / size));
}

/* Callers ask for far more than the source holds ("copy it all"); half of that would often be all of it.
 * Files of size 0 are left alone: those of /proc have content all the same. */
static size_t copyable(int source, const off_t *offset, size_t size)
{
    struct stat status;
    int saved = errno;
    off_t from = offset ? *offset : lseek(source, 0, SEEK_CUR);
    if (fstat(source, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0 && from >= 0) {
        size_t left = status.st_size > from ? (size_t)(status.st_size - from) : 0;
        if (left < size)
            size = left;
    }
    errno = saved;
    return size;
}

ssize_t sendfile(int fd, int source, off_t *offset, size_t size)
{
    ssize_t allowed = permit_fd(__func__, fd, copyable(source, offset, size));
    return allowed < 0 ? -1 : settle(syscall(SYS_sendfile, fd, source, offset, (size_t)allowed));
}

ssize_t copy_file_range(int source, off_t *offset, int fd, off_t *target, size_t size, unsigned flags)
{
    ssize_t allowed = permit_fd(__func__, fd, copyable(source, offset, size));
    return allowed < 0 ? -1
                       : settle(syscall(SYS_copy_file_range, source, offset, fd, target, (size_t)allowed, flags));
}

/* ---- calls on an open file that write nothing ---- */

int ftruncate(int fd, off_t size)
{
    return permit_fd(__func__, fd, 0) < 0 ? -1 : (int)syscall(SYS_ftruncate, fd, size);
}

int fsync(int fd)
{
    return permit_fd(__func__, fd, 0) < 0 ? -1 : (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd)
{
    return permit_fd(__func__, fd, 0) < 0 ? -1 : (int)syscall(SYS_fdatasync, fd);
}

int msync(void *address, size_t size, int flags)
{
    char path[ROOM];
    int saved = errno;
    if (fault.directory[0]) {
        path_of_mapping(address, path);
        errno = saved;
        if (permit_path(__func__, 0, path, "") < 0)
            return -1;
    }
    return (int)syscall(SYS_msync, address, size, flags);
}

/* ---- calls that change names ---- */

/* Only an open that may create or empty a file changes anything. */
static int open_name(const char *name, int folder, const char *file, int flags, mode_t mode)
{
    if ((flags & (O_CREAT | O_TRUNC) || (flags & O_TMPFILE) == O_TMPFILE) && permit_name(name, folder, file) < 0)
        return -1;
    return (int)syscall(SYS_openat, folder, file, flags, mode);
}

static int takes_mode(int flags)
{
    return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE;
}

int open(const char *file, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    mode_t mode = takes_mode(flags) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return open_name(__func__, AT_FDCWD, file, flags, mode);
}

int openat(int folder, const char *file, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    mode_t mode = takes_mode(flags) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return open_name(__func__, folder, file, flags, mode);
}

static int rename_name(const char *name, int folder, const char *from, int target, const char *to, unsigned flags)
{
    return permit_names(name, folder, from, target, to) < 0
               ? -1
               : (int)syscall(SYS_renameat2, folder, from, target, to, flags);
}

int rename(const char *from, const char *to)
{
    return rename_name(__func__, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat(int folder, const char *from, int target, const char *to)
{
    return rename_name(__func__, folder, from, target, to, 0);
}

int renameat2(int folder, const char *from, int target, const char *to, unsigned flags)
{
    return rename_name(__func__, folder, from, target, to, flags);
}

static int link_name(const char *name, int folder, const char *from, int target, const char *to, int flags)
{
    return permit_names(name, folder, from, target, to) < 0
               ? -1
               : (int)syscall(SYS_linkat, folder, from, target, to, flags);
}

int link(const char *from, const char *to)
{
    return link_name(__func__, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int linkat(int folder, const char *from, int target, const char *to, int flags)
{
    return link_name(__func__, folder, from, target, to, flags);
}

static int unlink_name(const char *name, int folder, const char *file, int flags)
{
    return permit_name(name, folder, file) < 0 ? -1 : (int)syscall(SYS_unlinkat, folder, file, flags);
}

int unlink(const char *file)
{
    return unlink_name(__func__, AT_FDCWD, file, 0);
}

int unlinkat(int folder, const char *file, int flags)
{
    return unlink_name(__func__, folder, file, flags);
}

int rmdir(const char *file)
{
    return unlink_name(__func__, AT_FDCWD, file, AT_REMOVEDIR);
}

static int mkdir_name(const char *name, int folder, const char *file, mode_t mode)
{
    return permit_name(name, folder, file) < 0 ? -1 : (int)syscall(SYS_mkdirat, folder, file, mode);
}

int mkdir(const char *file, mode_t mode)
{
    return mkdir_name(__func__, AT_FDCWD, file, mode);
}

int mkdirat(int folder, const char *file, mode_t mode)
{
    return mkdir_name(__func__, folder, file, mode);
}

/* ---- the names of the same calls for programs built with 64-bit offsets, such as CPython and libhdf5 ---- */

#define SAME(name) __attribute__((alias(name)))

SAME("open") int open64(const char *file, int flags, ...);
SAME("openat") int openat64(int folder, const char *file, int flags, ...);
SAME("pwrite") ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset);
SAME("pwritev") ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset);
SAME("pwritev2") ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t offset, int flags);
SAME("sendfile") ssize_t sendfile64(int fd, int source, off64_t *offset, size_t size);
SAME("ftruncate") int ftruncate64(int fd, off64_t size);
