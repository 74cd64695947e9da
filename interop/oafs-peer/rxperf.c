/*
 * The rxperf throughput service, both ends: how fast does Rx move bytes. What the bytes
 * are is of no interest to it, so neither end checks more than their number and the
 * magic word behind them; for contents see test_service.c.
 */
#include "peer.h"

#include <time.h>

enum { PERF_VERSION = 3, PERF_MAGIC = 0x4711 };
enum { PERF_SEND = 0, PERF_RECV = 1, PERF_RPC = 3, PERF_FILE = 4 };

/* Largest chunk a server lets its client choose for reads and writes. */
enum { MAX_CHUNK = 512 * 1024 };

/* Most words of a FILE list that a server holds. */
enum { MAX_LIST = 1 << 20 };

/* Bytes and calls done so far, for the main thread to sample. */
static atomic_ullong bytes_done, calls_done;
static atomic_int stopping;

struct chunks {
    char *buffer;
    uint32_t read_size, write_size;
};

/*
 * Move `bytes` in chunks. 0, or -1 when the call ended before that. Both stop early
 * (with -1) once the client has measured long enough; a server never sets `stopping`.
 */
static int drain(struct rx_call *call, const struct chunks *c, uint64_t bytes)
{
    while (bytes > 0) {
	size_t part = bytes < c->read_size ? bytes : c->read_size;

	if (atomic_load(&stopping) || read_exactly(call, c->buffer, part) != 0)
	    return -1;
	atomic_fetch_add(&bytes_done, part);
	bytes -= part;
    }
    return 0;
}

static int fill(struct rx_call *call, const struct chunks *c, uint64_t bytes)
{
    while (bytes > 0) {
	size_t part = bytes < c->write_size ? bytes : c->write_size;

	if (atomic_load(&stopping) || write_exactly(call, c->buffer, part) != 0)
	    return -1;
	atomic_fetch_add(&bytes_done, part);
	bytes -= part;
    }
    return 0;
}

/* The FILE command's data as seen by one end: `reading` is that end's first turn. */
static int play_list(struct rx_call *call, const struct chunks *c, const uint32_t *list,
		     uint32_t count, int reading)
{
    uint32_t i;

    for (i = 0; i < count; i++) {
	uint64_t bytes = (uint64_t)list[i] * 4;

	if (bytes == 0)
	    reading = !reading;
	else if ((reading ? drain : fill)(call, c, bytes) != 0)
	    return -1;
    }
    return 0;
}

/* --- Server ------------------------------------------------------------------------- */

static int serve_file(struct rx_call *call, const struct chunks *c)
{
    uint32_t count, i, *list;
    int result = -1;

    if (read_u32(call, &count) != 0 || count > MAX_LIST)
	return -1;
    list = grab(count * sizeof(*list));
    for (i = 0; i < count; i++)
	if (read_u32(call, &list[i]) != 0)
	    goto out;
    result = play_list(call, c, list, count, 1);
out:
    free(list);
    return result;
}

static int serve_command(struct rx_call *call, uint32_t command, const struct chunks *c)
{
    uint32_t in = 0, out = 0;

    switch (command) {
    case PERF_SEND:
	if (read_u32(call, &in) != 0)
	    return -1;
	break;
    case PERF_RECV:
	if (read_u32(call, &out) != 0)
	    return -1;
	break;
    case PERF_RPC:
	if (read_u32(call, &in) != 0 || read_u32(call, &out) != 0)
	    return -1;
	break;
    case PERF_FILE:
	return serve_file(call, c);
    default:
	return -1;
    }
    if (drain(call, c, in) != 0 || fill(call, c, out) != 0)
	return -1;
    return write_u32(call, PERF_MAGIC);
}

static afs_int32 rxperf_call(struct rx_call *call)
{
    struct chunks c;
    uint32_t version, command;
    afs_int32 result = -1;

    if (read_u32(call, &version) != 0 || version != PERF_VERSION
	|| read_u32(call, &command) != 0 || read_u32(call, &c.read_size) != 0
	|| read_u32(call, &c.write_size) != 0)
	return -1;
    if (c.read_size == 0 || c.read_size > MAX_CHUNK || c.write_size == 0
	|| c.write_size > MAX_CHUNK)
	return -1;
    c.buffer = calloc(1, MAX_CHUNK);
    if (c.buffer != NULL)
	result = serve_command(call, command, &c);
    free(c.buffer);
    return result;
}

int rxperf_server(const struct options *opt)
{
    return serve(opt, RXPERF_SERVICE, "oafs-peer rxperf", rxperf_call, !opt->no_check_reach);
}

/* --- Client ------------------------------------------------------------------------- */

struct job {
    const struct options *opt;
    struct rx_connection **conns;
    atomic_long callers; /* started so far, to spread them over the connections */
    uint32_t command, in, out; /* bytes, as the server sees them */
    uint32_t *list, count;
    atomic_int failed;
    atomic_int code; /* of the first call that failed; 0: it was not an abort */
};

/* The first failure is kept, all threads stop. */
static void fail(struct job *job, int code, const char *why)
{
    if (atomic_exchange(&job->failed, 1) == 0) {
	atomic_store(&job->code, code);
	if (code)
	    fprintf(stderr, "oafs-peer: %s: Rx error %d\n", why, code);
	else
	    fprintf(stderr, "oafs-peer: %s\n", why);
    }
    atomic_store(&stopping, 1);
}

static int send_request(struct rx_call *call, const struct job *job, const struct chunks *c)
{
    uint32_t i;

    if (write_u32(call, PERF_VERSION) != 0 || write_u32(call, job->command) != 0
	|| write_u32(call, c->read_size) != 0 || write_u32(call, c->write_size) != 0)
	return -1;
    switch (job->command) {
    case PERF_SEND:
	return write_u32(call, job->in);
    case PERF_RECV:
	return write_u32(call, job->out);
    case PERF_RPC:
	return write_u32(call, job->in) != 0 ? -1 : write_u32(call, job->out);
    default:
	if (write_u32(call, job->count) != 0)
	    return -1;
	for (i = 0; i < job->count; i++)
	    if (write_u32(call, job->list[i]) != 0)
		return -1;
	return 0;
    }
}

/* One call. 0, or -1 when no further ones are to be made. */
static int one_call(struct job *job, struct rx_connection *conn, const struct chunks *c)
{
    struct rx_call *call = rx_NewCall(conn);
    const char *wrong = NULL;
    uint32_t magic = PERF_MAGIC;
    char surplus;
    int code, moved;

    moved = send_request(call, job, c);
    if (moved == 0 && job->command == PERF_FILE)
	moved = play_list(call, c, job->list, job->count, 0);
    else if (moved == 0 && (moved = fill(call, c, job->in)) == 0
	     && (moved = drain(call, c, job->out)) == 0)
	moved = read_u32(call, &magic);
    if (moved == 0 && magic != PERF_MAGIC)
	wrong = "the magic word is wrong";
    else if (moved == 0 && rx_Read(call, &surplus, 1) != 0)
	wrong = "the reply is too long";

    /* Enough measured: give the call up half way. Anything else that went wrong counts. */
    if (moved != 0 && atomic_load(&stopping) && rx_Error(call) == 0) {
	end_call(call, RX_USER_ABORT);
	return -1;
    }
    code = end_call(call, wrong ? RX_PROTOCOL_ERROR : 0);
    if (wrong == NULL && code == 0 && moved != 0)
	wrong = "the reply is too short";
    if (wrong != NULL || code != 0) {
	fail(job, wrong ? 0 : code, wrong ? wrong : "call failed");
	return -1;
    }
    atomic_fetch_add(&calls_done, 1);
    return 0;
}

static void *caller(void *argument)
{
    struct job *job = argument;
    long number = atomic_fetch_add(&job->callers, 1);
    struct rx_connection *conn = job->conns[number % job->opt->connections];
    struct chunks c = { .read_size = job->opt->read_size, .write_size = job->opt->write_size };
    long left = job->opt->times;

    c.buffer = calloc(1, MAX_CHUNK);
    if (c.buffer == NULL)
	die("out of memory");
    while (!atomic_load(&stopping) && (job->opt->seconds || left-- > 0))
	if (one_call(job, conn, &c) != 0)
	    break;
    free(c.buffer);
    return NULL;
}

static void parse_list(struct job *job)
{
    char *copy, *rest, *word;

    if (job->opt->list == NULL)
	die("-c file needs --list N,N,... (words of 4 bytes; 0 switches the direction)");
    copy = rest = strdup(job->opt->list);
    job->list = grab((strlen(copy) + 1) * sizeof(*job->list));
    while ((word = strsep(&rest, ",")) != NULL)
	job->list[job->count++] = number("--list", word, 0, 0x1fffffff);
    free(copy);
}

static void prepare(struct job *job)
{
    const struct options *opt = job->opt;
    const char *command = opt->command ? opt->command : "";
    long bytes = opt->bytes >= 0 ? opt->bytes : 1000000;

    if (strcmp(command, "send") == 0) {
	job->command = PERF_SEND;
	job->in = bytes;
    } else if (strcmp(command, "recv") == 0) {
	job->command = PERF_RECV;
	job->out = bytes;
    } else if (strcmp(command, "rpc") == 0) {
	job->command = PERF_RPC;
	job->in = opt->send_bytes >= 0 ? opt->send_bytes : bytes;
	job->out = opt->recv_bytes >= 0 ? opt->recv_bytes : bytes;
    } else if (strcmp(command, "file") == 0) {
	job->command = PERF_FILE;
	parse_list(job);
    } else {
	die("-c must be send, recv, rpc or file");
    }
    if (opt->omit && !opt->seconds)
	die("--omit needs --seconds");
}

struct sample {
    double time, cpu;
    unsigned long long bytes, calls;
};

static struct sample sample_now(void)
{
    return (struct sample){ seconds_now(), seconds_cpu(), atomic_load(&bytes_done),
			    atomic_load(&calls_done) };
}

/* Sleep for that long, or until a call has failed. */
static void pause_for(double seconds)
{
    double until = seconds_now() + seconds, left;

    while (!atomic_load(&stopping) && (left = until - seconds_now()) > 0) {
	double part = left < 0.05 ? left : 0.05;
	struct timespec t = { 0, (long)(part * 1e9) };

	nanosleep(&t, NULL);
    }
}

int rxperf_client(const struct options *opt)
{
    struct job job = { .opt = opt };
    struct sample from, to = { 0 };
    pthread_t *threads;
    double seconds, mbit;
    long i;

    prepare(&job);
    job.conns = connect_to(opt, RXPERF_SERVICE);
    threads = grab(opt->threads * sizeof(*threads));
    from = sample_now();
    for (i = 0; i < opt->threads; i++)
	if (pthread_create(&threads[i], NULL, caller, &job) != 0)
	    die("cannot make thread %ld", i);
    if (opt->seconds) {
	pause_for(opt->omit);
	from = sample_now();
	pause_for(opt->seconds);
	to = sample_now();
	atomic_store(&stopping, 1);
    }
    for (i = 0; i < opt->threads; i++)
	pthread_join(threads[i], NULL);
    if (!opt->seconds)
	to = sample_now();
    free(threads);
    free(job.list);

    seconds = to.time - from.time;
    mbit = seconds > 0 ? (to.bytes - from.bytes) * 8 / seconds / 1e6 : 0;
    if (!opt->json)
	printf("%s: %llu bytes in %llu calls, %.3f s, %.2f Mbit/s%s\n", opt->command,
	       to.bytes - from.bytes, to.calls - from.calls, seconds, mbit,
	       job.failed ? ", FAILED" : "");
    else if (job.failed)
	printf("{\"error\":%d,\"bytes\":%llu,\"seconds\":%.6f,\"calls\":%llu}\n",
	       atomic_load(&job.code), to.bytes - from.bytes, seconds, to.calls - from.calls);
    else
	printf("{\"bytes\":%llu,\"seconds\":%.6f,\"mbit_per_s\":%.3f,\"calls\":%llu,"
	       "\"cpu_seconds\":%.3f}\n",
	       to.bytes - from.bytes, seconds, mbit, to.calls - from.calls, to.cpu - from.cpu);
    fflush(stdout);
    finish_client(opt, job.conns);
    return job.failed ? 1 : 0;
}
