/* pattern BYTES [FROM]   writes bytes of a pattern in which each 8 bytes tell where they are, as it is from a place on (a multiple of 8). */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    static uint64_t buffer[1 << 17];
    if (argc < 2) return 2;
    uint64_t left = strtoull(argv[1], NULL, 10), word = (argc > 2 ? strtoull(argv[2], NULL, 10) : 0) / 8;
    while (left > 0) {
        size_t bytes = left < sizeof buffer ? (size_t)left : sizeof buffer;
        for (size_t at = 0; at < sizeof buffer / 8; at++, word++) buffer[at] = word * 0x9e3779b97f4a7c15ull ^ word;
        if (fwrite(buffer, 1, bytes, stdout) != bytes) { perror("pattern"); return 1; }
        left -= bytes;
    }
    return fflush(stdout) ? 1 : 0;
}
