/* Loaded in front of the C library (LD_PRELOAD): a slow disk, a file system without locks, a wrong clock. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long of(const char *name) {
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

int fsync(int file) {
    usleep(1000 * of("SLOW_FSYNC_MS"));
    return syscall(SYS_fsync, file);
}

int fcntl64(int file, int command, ...) {
    va_list rest;
    va_start(rest, command);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    if ((command == F_SETLK || command == F_SETLKW) && of("NO_LOCKS")) {
        errno = ENOLCK;
        return -1;
    }
    return syscall(SYS_fcntl, file, command, argument);
}

int fcntl(int file, int command, ...) {
    va_list rest;
    va_start(rest, command);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    return fcntl64(file, command, argument);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int code = syscall(SYS_clock_gettime, clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += of("CLOCK_SKEW_S");
    return code;
}
