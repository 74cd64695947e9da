/*
 * The interop test service, both ends: calls that do one thing of the transport each, and
 * whose bytes are checked. README.md has the table of commands; afar's own tests hold the
 * other implementation of it, so a change here is a change there.
 */
#include "peer.h"

#include <time.h>

enum command {
    ECHO = 1,
    SOURCE = 2,
    SINK = 3,
    ABORT = 4,
    ABORT_MID = 5,
    ABORT_EARLY = 6,
    SLEEP = 7,
    SLOW_READ = 8,
    SLOW_WRITE = 9,
    STATUS = 10,
};

/* What the server aborts with when the client is at fault. */
enum {
    BAD_PATTERN = 9001,
    BAD_COMMAND = 9002,
    TOO_LARGE = 9003,
    TOO_SHORT = 9004,
    TOO_LONG = 9005,
};

/* ECHO holds its whole request in memory. */
enum { MAX_ECHO = 64 << 20 };

/*
 * STATUS: what the server sets as its user status. OpenAFS puts it on ACKs only (its DATA
 * has 0), so it shows while a request is still on its way, and STATUS is a SINK therefore.
 */
enum { STATUS_VALUE = 1 };

/* --- The pattern -------------------------------------------------------------------- */

/* It repeats after 64 KiB, so twice that has any CHUNK of it in one piece. */
enum { PERIOD = 65536, CHUNK = 65536 };
static unsigned char pattern[PERIOD + CHUNK];

static void make_pattern(void)
{
    uint32_t i;

    for (i = 0; i < sizeof(pattern); i++)
	pattern[i] = (i * 7 + (i >> 8)) & 0xff;
}

static void wait_ms(uint32_t ms)
{
    struct timespec t = { ms / 1000, (ms % 1000) * 1000000L };

    nanosleep(&t, NULL);
}

/* Send n bytes of pattern, `step` at a time with `ms` between. 0, or -1 if cut short. */
static int send_pattern(struct rx_call *call, uint64_t n, uint32_t step, uint32_t ms)
{
    uint64_t at = 0;

    while (at < n) {
	size_t part = n - at < step ? n - at : step;

	if (write_exactly(call, pattern + at % PERIOD, part) != 0)
	    return -1;
	at += part;
	if (ms)
	    wait_ms(ms);
    }
    return 0;
}

/* Read n bytes of pattern the same way. 0, BAD_PATTERN or TOO_SHORT; *got is the count. */
static int check_pattern(struct rx_call *call, uint64_t n, uint32_t step, uint32_t ms,
			 uint64_t *got)
{
    unsigned char *buffer = grab(step);
    int result = 0;

    *got = 0;
    while (*got < n && result == 0) {
	int part = n - *got < step ? n - *got : step;
	int have = rx_Read(call, (char *)buffer, part);

	if (memcmp(buffer, pattern + *got % PERIOD, have) != 0)
	    result = BAD_PATTERN;
	else if (have != part)
	    result = TOO_SHORT;
	*got += have;
	if (ms && result == 0)
	    wait_ms(ms);
    }
    free(buffer);
    return result;
}

/* The peer's stream has to end here. */
static int at_end(struct rx_call *call)
{
    char surplus;

    return rx_Read(call, &surplus, 1) == 0;
}

/* --- Server ------------------------------------------------------------------------- */

static afs_int32 serve_echo(struct rx_call *call, uint32_t n)
{
    char *buffer;
    uint32_t at, part;
    afs_int32 result = 0;

    if (n > MAX_ECHO)
	return TOO_LARGE;
    buffer = grab(n);
    if (read_exactly(call, buffer, n) != 0)
	result = TOO_SHORT;
    for (at = 0; at < n && result == 0; at += part) {
	part = n - at < CHUNK ? n - at : CHUNK;
	if (memcmp(buffer + at, pattern + at % PERIOD, part) != 0)
	    result = BAD_PATTERN;
    }
    if (result == 0 && !at_end(call))
	result = TOO_LONG;
    if (result == 0)
	write_exactly(call, buffer, n);
    free(buffer);
    return result;
}

static afs_int32 serve_sink(struct rx_call *call, uint32_t n, uint32_t step, uint32_t ms)
{
    uint64_t got;
    afs_int32 result = check_pattern(call, n, step, ms, &got);

    if (result)
	return result;
    if (!at_end(call))
	return TOO_LONG;
    write_u32(call, (uint32_t)got);
    return 0;
}

static uint32_t arguments_of(uint32_t command)
{
    switch (command) {
    case ABORT_MID:
    case ABORT_EARLY:
	return 2;
    case SLOW_READ:
    case SLOW_WRITE:
	return 3;
    default:
	return 1;
    }
}

/*
 * A failed write needs no handling of its own anywhere below: the call is in error then,
 * and stays so whatever is returned.
 */
static afs_int32 test_call(struct rx_call *call)
{
    uint32_t command, i, a[3] = { 0 };
    uint64_t got;

    if (read_u32(call, &command) != 0)
	return TOO_SHORT;
    if (command < ECHO || command > STATUS)
	return BAD_COMMAND;
    for (i = 0; i < arguments_of(command); i++)
	if (read_u32(call, &a[i]) != 0)
	    return TOO_SHORT;

    switch (command) {
    case ECHO:
	return serve_echo(call, a[0]);
    case SOURCE:
	send_pattern(call, a[0], CHUNK, 0);
	return 0;
    case SINK:
	return serve_sink(call, a[0], CHUNK, 0);
    case ABORT:
	return a[0];
    case ABORT_MID:
	send_pattern(call, a[0], CHUNK, 0);
	return a[1];
    case ABORT_EARLY:
	i = check_pattern(call, a[0], CHUNK, 0, &got);
	return i ? i : a[1];
    case SLEEP:
	wait_ms(a[0]);
	write_u32(call, a[0]);
	return 0;
    case SLOW_READ:
    case SLOW_WRITE:
	if (a[1] == 0 || a[1] > CHUNK)
	    return TOO_LARGE;
	if (command == SLOW_READ)
	    return serve_sink(call, a[0], a[1], a[2]);
	send_pattern(call, a[0], a[1], a[2]);
	return 0;
    case STATUS:
	rx_SetLocalStatus(call, STATUS_VALUE);
	return serve_sink(call, a[0], CHUNK, 0);
    }
    return BAD_COMMAND;
}

int test_server(const struct options *opt)
{
    make_pattern();
    return serve(opt, TEST_SERVICE, "oafs-peer test", test_call, !opt->no_check_reach);
}

/* --- Client ------------------------------------------------------------------------- */

struct task {
    const struct options *opt;
    struct rx_connection **conns;
    atomic_long callers; /* started so far, to spread them over the connections */
    uint32_t command, a[3];
    int raw; /* send the command number and nothing else */
    pthread_mutex_t lock; /* guards the results below */
    uint64_t reply_bytes;
    unsigned long ok, aborted, bad;
    afs_int32 first_code;
    char first_bad[80];
};

/* How one call went: a code, or else a complaint, or else success. */
struct outcome {
    afs_int32 code;
    const char *bad;
    uint64_t bytes;
};

static int send_test_request(struct rx_call *call, const struct task *task, int *status_seen)
{
    uint32_t i;

    if (write_u32(call, task->command) != 0)
	return -1;
    if (task->raw)
	return 0;
    for (i = 0; i < arguments_of(task->command); i++)
	if (write_u32(call, task->a[i]) != 0)
	    return -1;
    switch (task->command) {
    case ECHO:
    case SINK:
    case SLOW_READ:
	return send_pattern(call, task->a[0], CHUNK, 0);
    case STATUS:
	for (i = 0; i < task->a[0]; i++) {
	    if (write_exactly(call, pattern + i % PERIOD, 1) != 0)
		return -1;
	    if (rx_GetRemoteStatus(call) == STATUS_VALUE)
		*status_seen = 1;
	}
	return 0;
    case ABORT_EARLY:
	/* Far more than is going to be read, so that the abort arrives in between. */
	return send_pattern(call, task->a[2], CHUNK, 0);
    default:
	return 0;
    }
}

/* A reply of one u32 with a known value. */
static const char *expect_u32(struct rx_call *call, uint32_t wanted, uint64_t *bytes)
{
    uint32_t value;

    if (read_u32(call, &value) != 0)
	return "the reply is too short";
    *bytes = sizeof(value);
    return value == wanted ? NULL : "the reply has the wrong value";
}

static const char *read_test_reply(struct rx_call *call, const struct task *task,
				   uint64_t *bytes)
{
    const char *bad = NULL;
    int result;

    switch (task->raw ? 0 : task->command) {
    case ECHO:
    case SOURCE:
    case ABORT_MID:
    case SLOW_WRITE:
	result = check_pattern(call, task->a[0], CHUNK, 0, bytes);
	if (result)
	    return result == BAD_PATTERN ? "the reply is not the pattern"
					 : "the reply is too short";
	break;
    case SINK:
    case SLOW_READ:
    case SLEEP:
    case STATUS:
	bad = expect_u32(call, task->a[0], bytes);
	break;
    default:
	break;
    }
    if (bad == NULL && !at_end(call))
	bad = "the reply is too long";
    return bad;
}

static struct outcome one_test_call(const struct task *task, struct rx_connection *conn)
{
    struct rx_call *call = rx_NewCall(conn);
    struct outcome o = { 0 };
    int status_seen = 0;

    /* What went short because of an abort is explained by its code, which wins. */
    if (send_test_request(call, task, &status_seen) == 0)
	o.bad = read_test_reply(call, task, &o.bytes);
    else
	o.bad = "the request was cut short";
    if (o.bad == NULL && task->command == STATUS && !task->raw && !status_seen)
	o.bad = "no ACK showed the user status that the peer set";
    o.code = end_call(call, 0);
    return o;
}

static void *test_caller(void *argument)
{
    struct task *task = argument;
    long number = atomic_fetch_add(&task->callers, 1);
    struct rx_connection *conn = task->conns[number % task->opt->connections];
    long i;

    for (i = 0; i < task->opt->times; i++) {
	struct outcome o = one_test_call(task, conn);

	pthread_mutex_lock(&task->lock);
	task->reply_bytes += o.bytes;
	if (o.code) {
	    if (task->aborted++ == 0)
		task->first_code = o.code;
	    else if (task->first_code != o.code && task->bad++ == 0)
		snprintf(task->first_bad, sizeof(task->first_bad),
			 "calls were aborted with %d and with %d", task->first_code, o.code);
	} else if (o.bad) {
	    if (task->bad++ == 0)
		snprintf(task->first_bad, sizeof(task->first_bad), "%s", o.bad);
	} else {
	    task->ok++;
	}
	pthread_mutex_unlock(&task->lock);
    }
    return NULL;
}

static void parse_command(struct task *task)
{
    static const struct {
	const char *name, *arguments;
	enum command command;
	int least, most;
    } table[] = {
	{ "ECHO", "BYTES", ECHO, 1, 1 },
	{ "SOURCE", "BYTES", SOURCE, 1, 1 },
	{ "SINK", "BYTES", SINK, 1, 1 },
	{ "ABORT", "CODE", ABORT, 1, 1 },
	{ "ABORT_MID", "BYTES CODE", ABORT_MID, 2, 2 },
	{ "ABORT_EARLY", "BYTES CODE [TOTAL]", ABORT_EARLY, 2, 3 },
	{ "SLEEP", "MS", SLEEP, 1, 1 },
	{ "SLOW_READ", "BYTES CHUNK MS", SLOW_READ, 3, 3 },
	{ "SLOW_WRITE", "BYTES CHUNK MS", SLOW_WRITE, 3, 3 },
	{ "STATUS", "BYTES", STATUS, 1, 1 },
	{ "RAW", "NUMBER", 0, 1, 1 }, /* any command number, no arguments */
    };
    const struct options *opt = task->opt;
    const char *name = opt->n_words ? opt->words[0] : "";
    size_t row;
    int i, given = opt->n_words - 1;

    for (row = 0; row < sizeof(table) / sizeof(table[0]); row++)
	if (strcmp(name, table[row].name) == 0)
	    break;
    if (row == sizeof(table) / sizeof(table[0])) {
	fprintf(stderr, "oafs-peer: unknown test command \"%s\"; there are\n", name);
	for (row = 0; row < sizeof(table) / sizeof(table[0]); row++)
	    fprintf(stderr, "    %s %s\n", table[row].name, table[row].arguments);
	exit(2);
    }
    if (given < table[row].least || given > table[row].most)
	die("usage: %s %s", name, table[row].arguments);
    task->command = table[row].command;
    for (i = 0; i < given; i++)
	task->a[i] = (uint32_t)number(name, opt->words[i + 1], INT32_MIN, UINT32_MAX);
    if (task->command == 0) {
	task->command = task->a[0];
	task->raw = 1;
    }
    if (task->command == ABORT_EARLY && given < 3)
	task->a[2] = task->a[0] + (8 << 20);
}

int test_client(const struct options *opt)
{
    struct task task = { .opt = opt, .lock = PTHREAD_MUTEX_INITIALIZER };
    pthread_t *threads = grab(opt->parallel * sizeof(*threads));
    int as_expected;
    long i;

    make_pattern();
    parse_command(&task);
    task.conns = connect_to(opt, TEST_SERVICE);
    for (i = 0; i < opt->parallel; i++)
	if (pthread_create(&threads[i], NULL, test_caller, &task) != 0)
	    die("cannot make thread %ld", i);
    for (i = 0; i < opt->parallel; i++)
	pthread_join(threads[i], NULL);
    free(threads);

    if (task.bad == 0 && task.aborted > 0 && task.ok > 0) {
	task.bad = task.aborted;
	snprintf(task.first_bad, sizeof(task.first_bad), "%lu calls ok, %lu aborted, first with %d",
		 task.ok, task.aborted, task.first_code);
    }
    if (task.bad)
	printf("bad %s\n", task.first_bad);
    else if (task.aborted)
	printf("abort %d\n", task.first_code);
    else
	printf("ok %llu bytes\n", (unsigned long long)task.reply_bytes);
    fflush(stdout);
    as_expected = !task.bad
	&& (opt->expect_abort ? task.ok == 0 && task.first_code == opt->expect_code
			      : task.aborted == 0);
    finish_client(opt, task.conns);
    return as_expected ? 0 : 1;
}
