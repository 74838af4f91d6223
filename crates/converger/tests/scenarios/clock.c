// The clock of the day, shifted by as many seconds as a file says: for stories in which our own machine sleeps, or somebody sets its
// clock. Only the program of a story is started with it (`clock.rs`). What was waited is counted by another clock, which is left alone.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t which, struct timespec *now) {
    long done = syscall(SYS_clock_gettime, which, now);
    const char *path = getenv("SHIFTED_CLOCK");
    FILE *file = done == 0 && which == CLOCK_REALTIME && path ? fopen(path, "r") : NULL;
    long seconds = 0;
    if (file) {
        if (fscanf(file, "%ld", &seconds) == 1) now->tv_sec += seconds;
        fclose(file);
    }
    return (int)done;
}
