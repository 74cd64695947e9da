/* The clock of a program, set ahead by AHEAD seconds: for LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

int gettimeofday(struct timeval *t, void *z) {
    int (*real)(struct timeval *, void *) = dlsym(RTLD_NEXT, "gettimeofday");
    int r = real(t, z);
    t->tv_sec += AHEAD;
    return r;
}

time_t time(time_t *t) {
    struct timeval v;
    gettimeofday(&v, 0);
    if (t) *t = v.tv_sec;
    return v.tv_sec;
}

int clock_gettime(clockid_t c, struct timespec *t) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int r = real(c, t);
    if (c == CLOCK_REALTIME) t->tv_sec += AHEAD;
    return r;
}
