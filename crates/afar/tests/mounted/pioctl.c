/* A kernel with AFS, for LD_PRELOAD into a program of OpenAFS's: it takes tokens (VIOCSETTOK2, the command C.8) into the file that PIOCTLS
 * names, as they come, and has none. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct request { long param4, param3, param2, param1, call; };
struct arguments { void *in, *out; short in_size, out_size; };

/* The descriptor of the file that the kernel module would have in /proc. */
static int device = -1;

/* Opens the file in place of the kernel's, and whatever else a program wants as NAME of the C library does. */
#define OPEN(NAME)                                                                                                \
    int NAME(const char *path, int flags, ...) {                                                                  \
        va_list list;                                                                                             \
        va_start(list, flags);                                                                                    \
        int mode = va_arg(list, int);                                                                             \
        va_end(list);                                                                                             \
        int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, #NAME);                                            \
        if (!strstr(path, "/proc/fs/openafs/afs_ioctl")) return real(path, flags, mode);                          \
        return device = real(getenv("PIOCTLS"), O_WRONLY | O_CREAT | O_APPEND, 0666);                             \
    }

OPEN(open)
OPEN(open64)

int ioctl(int fd, unsigned long what, ...) {
    va_list list;
    va_start(list, what);
    struct request *request = va_arg(list, struct request *);
    va_end(list);
    if (fd < 0 || fd != device)
        return ((int (*)(int, unsigned long, void *))dlsym(RTLD_NEXT, "ioctl"))(fd, what, request);
    struct arguments *given = (struct arguments *)request->param3;
    int is_set_token = request->call == 20 && (request->param2 & 0xffff) == (('C' << 8) | 8);
    if (is_set_token && write(fd, given->in, given->in_size) == given->in_size) return 0;
    errno = request->call == 20 ? EDOM : EINVAL;
    return -1;
}
