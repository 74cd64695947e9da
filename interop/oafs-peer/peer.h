/*
 * Shared by the parts of oafs-peer: the options, the way in and out of Rx, and
 * small helpers for reading and writing a call. Knows no service.
 */
#ifndef OAFS_PEER_H
#define OAFS_PEER_H

/*
 * The installed headers use macros that only OpenAFS's own build defines. They are
 * annotations, so nothing is lost by defining them away. AFS_PTHREAD_ENV (set by the
 * Makefile) is not: without it the headers describe the other, LWP, library.
 */
#define AFS_NORETURN
#define AFS_NONNULL(x)
#define AFS_UNUSED

#include <afs/param.h>
#include <rx/rx.h>
#include <rx/rx_globals.h>
#include <rx/rx_null.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

/* Service numbers: rxperf's is the field's, the test service's is ours. */
enum { RXPERF_SERVICE = 147, TEST_SERVICE = 4321 };

/* Most positional arguments any test command takes, its name included. */
enum { MAX_WORDS = 8 };

struct options {
    const char *host;
    long port;		  /* -1: not given; 0 (servers only): any free port */
    long window;	  /* packets, both directions; 0: the library's own 32 */
    long udp_kb;	  /* socket buffer, KiB; 0: the library's own 64 */
    long mtu;		  /* largest packet in bytes, handed to rx_SetMaxMTU; 0: unset */
    long connections;	  /* client: calls are spread over so many, normally 1 */
    long threads;	  /* server: calls at a time; rxperf-client: calls in parallel */
    int no_jumbo;
    int no_check_reach;
    int stats;
    int until_eof;	  /* server: end when standard input ends, too */
    const char *rxkad;	  /* level, as a name; NULL: rxnull alone */
    const char *key, *only; /* of a server with rxkad */
    const char *token;	  /* of a client with rxkad */
    /* rxperf-client */
    const char *command;
    long bytes, send_bytes, recv_bytes, times, seconds, omit;
    long read_size, write_size; /* bytes per rx_Read and rx_Write */
    const char *list;	  /* of the "file" command: 32-bit words, 0 switches */
    int json;
    /* test-client */
    long parallel, dead, idle, hard; /* the last three in seconds; 0: library default */
    int expect_abort;
    long expect_code;
    const char *words[MAX_WORDS];
    int n_words;
};

typedef afs_int32 service_proc(struct rx_call *call);

/* Print a message and end with status 2: the command line or the set-up is wrong. */
void die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* A decimal number from text within [low, high]; dies naming `what` otherwise. */
long number(const char *what, const char *text, long low, long high);

/* malloc that does not fail. */
void *grab(size_t size);

/* Monotonic seconds, and CPU seconds of this process (user and system). */
double seconds_now(void);
double seconds_cpu(void);

/* Start Rx on a UDP port (host order; 0: any), with the tuning in the options. */
void start_rx(const struct options *opt, unsigned port);

/* Offer one service, say "ready PORT", and wait for the signal to end. */
int serve(const struct options *opt, unsigned short service, const char *name,
	  service_proc *proc, int check_reach);

/*
 * Start Rx and make as many rxnull connections as the options say to the service at their
 * host and port. Connections are the unit of four calls at a time.
 */
struct rx_connection **connect_to(const struct options *opt, unsigned short service);

/* Destroy the connections and end Rx, so that the last ACKs still go out. */
void finish_client(const struct options *opt, struct rx_connection **conns);

/* One JSON object with the library's counters and the CPU time, as one line. */
void print_stats(FILE *out);

/* Read or write exactly that much. 0, or -1 when the call failed or ended early. */
int read_exactly(struct rx_call *call, void *buffer, size_t size);
int write_exactly(struct rx_call *call, const void *buffer, size_t size);
int read_u32(struct rx_call *call, uint32_t *value);
int write_u32(struct rx_call *call, uint32_t value);

/*
 * End a client's call and give its abort code, 0 for success. `rc` as in rx_EndCall.
 * The call's own error is preferred: rx_EndCall turns two of OpenAFS's codes for a
 * full disk into local errno values.
 */
afs_int32 end_call(struct rx_call *call, afs_int32 rc);

/* rxkad.c: the class that the options ask for, or NULL. */
struct rx_securityClass *server_rxkad(const struct options *opt);
struct rx_securityClass *client_rxkad(const struct options *opt);

/* rxperf.c */
int rxperf_server(const struct options *opt);
int rxperf_client(const struct options *opt);

/* test_service.c */
int test_server(const struct options *opt);
int test_client(const struct options *opt);

#endif
