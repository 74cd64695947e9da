/* mapped FILE STRIPES BYTES ROUNDS   writers and readers of one file through shared mappings, each a process of its own.
 *
 * The file is stripes of so many bytes. In each round every writer fills its stripe, through its mapping, with what the round and the
 * stripe say, beginning on no page's border, and says so through a pipe; the reader, whose mapping is older than all of that, then finds it
 * in the mapping, and with pread(2) after an msync. In between the file is lengthened and cut off under the mappings. Leaves the file as the
 * last round made it, so that it can be compared. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define HEADER 100 /* so that stripes begin within pages */

static void fail(const char *what) { perror(what); exit(1); }

static unsigned char byte_of(unsigned round, unsigned stripe, size_t at)
{
    unsigned x = round * 2654435761u + stripe * 40503u + (unsigned)at * 2246822519u;
    return (unsigned char)(x >> 24 ^ x >> 11);
}

static void check(const unsigned char *found, unsigned round, unsigned stripe, size_t bytes, const char *how)
{
    for (size_t at = 0; at < bytes; at++)
        if (found[at] != byte_of(round, stripe, at)) {
            fprintf(stderr, "round %u, stripe %u, byte %zu, by %s: %u instead of %u\n", round, stripe, at, how, found[at],
                    byte_of(round, stripe, at));
            exit(1);
        }
}

int main(int argc, char **argv)
{
    if (argc != 5) { fprintf(stderr, "usage: mapped FILE STRIPES BYTES ROUNDS\n"); return 2; }
    const char *file = argv[1];
    unsigned stripes = (unsigned)atoi(argv[2]), rounds = (unsigned)atoi(argv[4]);
    size_t bytes = (size_t)atol(argv[3]), length = HEADER + stripes * bytes;
    unsigned char *copy = malloc(bytes);
    int fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || !copy) fail(file);
    if (ftruncate(fd, (off_t)length)) fail("ftruncate");
    unsigned char *map = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    const unsigned char *readers = mmap(NULL, length, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED || readers == MAP_FAILED) fail("mmap");
    memset(map, 'h', HEADER);
    for (unsigned round = 0; round < rounds; round++) {
        for (unsigned stripe = 0; stripe < stripes; stripe++) {
            pid_t child = fork();
            if (child < 0) fail("fork");
            if (child == 0) {
                unsigned char *own = map;
                /* Every other writer opens and maps for itself. */
                if ((round + stripe) % 2) {
                    int mine = open(file, O_RDWR);
                    if (mine < 0) fail(file);
                    own = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, mine, 0);
                    if (own == MAP_FAILED) fail("mmap in a writer");
                    close(mine);
                }
                for (size_t at = 0; at < bytes; at++) own[HEADER + stripe * bytes + at] = byte_of(round, stripe, at);
                if (own != map && munmap(own, length)) fail("munmap");
                _exit(0);
            }
        }
        for (unsigned stripe = 0; stripe < stripes; stripe++) {
            int status;
            if (wait(&status) < 0 || status) { fprintf(stderr, "a writer failed in round %u\n", round); return 1; }
        }
        for (unsigned stripe = 0; stripe < stripes; stripe++)
            check(readers + HEADER + stripe * bytes, round, stripe, bytes, "an older mapping");
        if (msync(map, length, MS_SYNC)) fail("msync");
        for (unsigned stripe = 0; stripe < stripes; stripe++) {
            if (pread(fd, copy, bytes, (off_t)(HEADER + stripe * bytes)) != (ssize_t)bytes) fail("pread");
            check(copy, round, stripe, bytes, "pread");
        }
        /* Through write(2), and seen in the mapping. */
        memset(copy, 'w', HEADER);
        if (pwrite(fd, copy, HEADER, 0) != HEADER) fail("pwrite");
        if (memcmp(readers, copy, HEADER)) { fprintf(stderr, "a write is not seen in the mapping in round %u\n", round); return 1; }
        memset(map, 'h', HEADER);
        /* Longer and cut off again: what is behind the end is zero the next time. */
        if (ftruncate(fd, (off_t)length + 10000)) fail("ftruncate");
        if (pwrite(fd, "x", 1, (off_t)length + 9999) != 1) fail("pwrite");
        if (ftruncate(fd, (off_t)length)) fail("ftruncate");
        struct stat st;
        if (fstat(fd, &st) || st.st_size != (off_t)length) fail("fstat");
    }
    if (munmap(map, length) || close(fd)) fail("munmap");
    return 0;
}
