// A slow disk: each write to a file, and each sync, takes as many milliseconds as the file SLOW_DISK says at that
// moment. Loaded before the C library (LD_PRELOAD) into a process whose disk is to be slow; one that is made fast again goes on at
// once.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static long stated_ms(void) {
    const char *name = getenv("SLOW_DISK");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    char text[16] = {0};
    if (file < 0)
        return 0;
    if (read(file, text, sizeof text - 1) < 0)
        text[0] = 0;
    close(file);
    return strtol(text, NULL, 10);
}

static void hesitate(void) {
    const struct timespec step = {0, 10 * 1000 * 1000};
    for (long waited = 0; waited < stated_ms(); waited += 10)
        nanosleep(&step, NULL);
}

int fsync(int file) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    hesitate();
    return real(file);
}

int fdatasync(int file) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    hesitate();
    return real(file);
}

// Of files alone: a socket or a pipe is no disk, and what is logged to a file is not what is slow.
ssize_t write(int file, const void *bytes, size_t count) {
    ssize_t (*real)(int, const void *, size_t) = (ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    struct stat found;
    if (file > 2 && fstat(file, &found) == 0 && S_ISREG(found.st_mode))
        hesitate();
    return real(file, bytes, count);
}

ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t at) {
    ssize_t (*real)(int, const void *, size_t, off64_t) =
        (ssize_t(*)(int, const void *, size_t, off64_t))dlsym(RTLD_NEXT, "pwrite64");
    hesitate();
    return real(file, bytes, count, at);
}
