/*
 * oafs-peer: a stock AFS-3 Rx endpoint to test and measure against. The transport is
 * OpenAFS's own library as Debian ships it; this program is what runs above it.
 * This file has the command line and the way in and out of the library; the services
 * are in rxperf.c and test_service.c. See README.md.
 */
#include "peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static const char usage[] =
    "usage: oafs-peer rxperf-server -p PORT [server options] [tuning]\n"
    "       oafs-peer rxperf-client -c send|recv|rpc|file -s HOST -p PORT [-b BYTES]\n"
    "                 [-S BYTES -R BYTES] [--list N,N,...] [-T times] [-t threads]\n"
    "                 [-r bytes] [-w bytes] [--seconds N [--omit N]] [--json] [tuning]\n"
    "       oafs-peer test-server -p PORT [server options] [tuning]\n"
    "       oafs-peer test-client -s HOST -p PORT [--parallel N] [--times N] [--dead S]\n"
    "                 [--idle S] [--hard S] [--expect ok | --expect abort CODE] [tuning]\n"
    "                 COMMAND [argument...]\n"
    "server options: [--threads N] [--no-check-reach] [--until-eof] [--stats]\n"
    "                [--rxkad LEVEL --key KVNO:ETYPE:HEX [--only NAME.INSTANCE@CELL]]\n"
    "client options: [--connections N] [--stats]\n"
    "                [--rxkad LEVEL --token KVNO:KEY:TICKET]\n"
    "tuning:         [-W packets] [-u udp buffer KiB] [-m bytes] [-j]\n";

void die(const char *format, ...)
{
    va_list args;

    fputs("oafs-peer: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(2);
}

long number(const char *what, const char *text, long low, long high)
{
    char *end;
    long value;

    errno = 0;
    value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < low || value > high)
	die("%s: \"%s\" is not a number from %ld to %ld", what, text, low, high);
    return value;
}

void *grab(size_t size)
{
    void *memory = malloc(size ? size : 1);

    if (memory == NULL)
	die("out of memory (%zu bytes)", size);
    return memory;
}

double seconds_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

double seconds_cpu(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* --- In and out of the library ------------------------------------------------------ */

void start_rx(const struct options *opt, unsigned port)
{
    int code;

    /* All of this is read by rx_Init, so it comes first. */
    if (opt->window) {
	rx_SetMaxReceiveWindow(opt->window);
	rx_SetMaxSendWindow(opt->window);
	/* Packet buffers for a dozen calls with full windows in both directions. */
	rx_extraPackets += 24 * opt->window;
    }
    if (opt->udp_kb)
	rx_UdpBufSize = opt->udp_kb * 1024;
    if (opt->no_jumbo)
	rx_SetNoJumbo();
    code = rx_Init(htons(port));
    if (code)
	die("cannot start Rx on port %u: error %d%s", port, code,
	    code == RX_ADDRINUSE ? " (port in use)" : "");
    if (opt->mtu && rx_SetMaxMTU(opt->mtu) != 0)
	die("-m: the library refuses %ld as its largest packet", opt->mtu);
}

static void *wait_for_eof(void *unused)
{
    char byte;

    (void)unused;
    while (read(STDIN_FILENO, &byte, 1) > 0)
	;
    kill(getpid(), SIGTERM);
    return NULL;
}

int serve(const struct options *opt, unsigned short service, const char *name,
	  service_proc *proc, int check_reach)
{
    static struct rx_securityClass *security[3]; /* by their numbers: rxnull, none, rxkad */
    struct rx_service *offered;
    struct sockaddr_in bound;
    socklen_t size = sizeof(bound);
    pthread_t watcher;
    sigset_t ends;
    int got;

    /* Blocked before the library makes threads, which inherit this: only we wait. */
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);

    start_rx(opt, opt->port);
    security[0] = rxnull_NewServerSecurityObject();
    security[2] = server_rxkad(opt);
    offered = rx_NewService(0, service, (char *)name, security, security[2] ? 3 : 1, proc);
    if (offered == NULL)
	die("cannot register service %d", service);
    rx_SetMinProcs(offered, 2);
    rx_SetMaxProcs(offered, opt->threads);
    rx_SetCheckReach(offered, check_reach);
    rx_StartServer(0); /* 0: this thread stays ours */

    if (getsockname(rx_socket, (struct sockaddr *)&bound, &size) != 0)
	die("cannot learn the port: %s", strerror(errno));
    printf("ready %d\n", ntohs(bound.sin_port));
    fflush(stdout);
    if (opt->until_eof && pthread_create(&watcher, NULL, wait_for_eof, NULL) != 0)
	die("cannot make a thread");
    sigwait(&ends, &got);
    if (opt->stats)
	print_stats(stdout);
    fflush(NULL);
    /* No rx_Finalize: it is for clients, and calls may still be running. */
    _exit(0);
}

struct rx_connection **connect_to(const struct options *opt, unsigned short service)
{
    struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_DGRAM }, *found;
    struct rx_connection **conns = grab(opt->connections * sizeof(*conns));
    struct rx_securityClass *security;
    uint32_t address;
    long i;
    int code;

    code = getaddrinfo(opt->host, NULL, &hints, &found);
    if (code)
	die("%s: %s", opt->host, gai_strerror(code));
    address = ((struct sockaddr_in *)found->ai_addr)->sin_addr.s_addr;
    freeaddrinfo(found);
    start_rx(opt, 0);
    security = client_rxkad(opt);
    for (i = 0; i < opt->connections; i++) {
	conns[i] = rx_NewConnection(address, htons(opt->port), service,
				    security ? security : rxnull_NewClientSecurityObject(),
				    security ? 2 : 0);
	if (conns[i] == NULL)
	    die("cannot make a connection");
	/* In this order: each call raises the later limits to the earlier ones. */
	if (opt->dead)
	    rx_SetConnDeadTime(conns[i], opt->dead);
	if (opt->idle)
	    rx_SetConnIdleDeadTime(conns[i], opt->idle);
	if (opt->hard)
	    rx_SetConnHardDeadTime(conns[i], opt->hard);
    }
    return conns;
}

void finish_client(const struct options *opt, struct rx_connection **conns)
{
    long i;

    if (opt->stats)
	print_stats(stderr);
    for (i = 0; i < opt->connections; i++)
	rx_DestroyConnection(conns[i]);
    free(conns);
    rx_Finalize();
}

void print_stats(FILE *out)
{
    struct rx_statistics *s = rx_GetStatistics();
    double rtt = 0;

    if (s == NULL)
	return;
    if (s->nRttSamples > 0)
	rtt = (s->totalRtt.sec * 1e3 + s->totalRtt.usec / 1e3) / s->nRttSamples;
    fprintf(out,
	    "{\"cpu_seconds\":%.3f,\"data_sent\":%d,\"data_resent\":%d,\"data_pushed\":%d,"
	    "\"data_read\":%d,\"duplicates_read\":%d,\"acks_sent\":%d,\"acks_read\":%d,"
	    "\"pings_sent\":%d,\"aborts_sent\":%d,\"busies_sent\":%d,\"send_failures\":%d,"
	    "\"no_buffer_on_read\":%d,\"rtt_samples\":%d,\"mean_rtt_ms\":%.3f}\n",
	    seconds_cpu(), s->dataPacketsSent, s->dataPacketsReSent, s->dataPacketsPushed,
	    s->dataPacketsRead, s->dupPacketsRead, s->ackPacketsSent, s->ackPacketsRead,
	    s->pingPacketsSent, s->abortPacketsSent, s->busyPacketsSent, s->netSendFailures,
	    s->noPacketBuffersOnRead, s->nRttSamples, rtt);
    fflush(out);
    rx_FreeStatistics(&s);
}

/* --- Calls -------------------------------------------------------------------------- */

int read_exactly(struct rx_call *call, void *buffer, size_t size)
{
    return rx_Read(call, buffer, (int)size) == (int)size ? 0 : -1;
}

int write_exactly(struct rx_call *call, const void *buffer, size_t size)
{
    /* rx_Write does not change the buffer, its prototype just predates const. */
    return rx_Write(call, (char *)buffer, (int)size) == (int)size ? 0 : -1;
}

int read_u32(struct rx_call *call, uint32_t *value)
{
    uint32_t wire;

    if (read_exactly(call, &wire, sizeof(wire)) != 0)
	return -1;
    *value = ntohl(wire);
    return 0;
}

int write_u32(struct rx_call *call, uint32_t value)
{
    uint32_t wire = htonl(value);

    return write_exactly(call, &wire, sizeof(wire));
}

afs_int32 end_call(struct rx_call *call, afs_int32 rc)
{
    afs_int32 before = rx_Error(call);
    afs_int32 code = rx_EndCall(call, rc);

    return before ? before : code;
}

/* --- Command line ------------------------------------------------------------------- */

enum kind { FLAG, NUMBER, TEXT };

struct option_row {
    const char *name, *other; /* either spelling */
    enum kind kind;
    void *into;
    long low, high;
};

/*
 * Options may stand anywhere. A word that begins with "-" and a digit is an argument,
 * since abort codes are often negative; getopt would take it for an option.
 */
static void parse(int argc, char **argv, struct options *opt)
{
    const long int32 = 0x7fffffff;
    const struct option_row rows[] = {
	{ "-s", "--server", TEXT, &opt->host, 0, 0 },
	{ "-p", "--port", NUMBER, &opt->port, 0, 65535 },
	/* 255 is what an ACK's table can describe */
	{ "-W", "--window", NUMBER, &opt->window, 1, RX_MAXACKS },
	{ "-u", "--udp-buffer", NUMBER, &opt->udp_kb, 64, 1 << 20 },
	{ "-m", "--mtu", NUMBER, &opt->mtu, 1, 65535 },
	{ "-j", "--no-jumbo", FLAG, &opt->no_jumbo, 0, 0 },
	{ "--connections", NULL, NUMBER, &opt->connections, 1, 10000 },
	{ "-t", "--threads", NUMBER, &opt->threads, 1, 1000 },
	{ "--no-check-reach", NULL, FLAG, &opt->no_check_reach, 0, 0 },
	{ "--until-eof", NULL, FLAG, &opt->until_eof, 0, 0 },
	{ "--stats", NULL, FLAG, &opt->stats, 0, 0 },
	{ "--rxkad", NULL, TEXT, &opt->rxkad, 0, 0 },
	{ "--key", NULL, TEXT, &opt->key, 0, 0 },
	{ "--only", NULL, TEXT, &opt->only, 0, 0 },
	{ "--token", NULL, TEXT, &opt->token, 0, 0 },
	{ "-c", "--command", TEXT, &opt->command, 0, 0 },
	{ "-b", "--bytes", NUMBER, &opt->bytes, 0, int32 },
	{ "-S", "--send-bytes", NUMBER, &opt->send_bytes, 0, int32 },
	{ "-R", "--recv-bytes", NUMBER, &opt->recv_bytes, 0, int32 },
	{ "-T", "--times", NUMBER, &opt->times, 1, int32 },
	{ "-r", "--read-size", NUMBER, &opt->read_size, 1, 512 * 1024 },
	{ "-w", "--write-size", NUMBER, &opt->write_size, 1, 512 * 1024 },
	{ "--list", NULL, TEXT, &opt->list, 0, 0 },
	{ "--seconds", NULL, NUMBER, &opt->seconds, 1, 86400 },
	{ "--omit", NULL, NUMBER, &opt->omit, 0, 86400 },
	{ "--json", NULL, FLAG, &opt->json, 0, 0 },
	{ "--parallel", NULL, NUMBER, &opt->parallel, 1, 1000 },
	{ "--dead", NULL, NUMBER, &opt->dead, 1, 86400 },
	{ "--idle", NULL, NUMBER, &opt->idle, 1, 86400 },
	{ "--hard", NULL, NUMBER, &opt->hard, 1, 86400 },
    };
    const size_t n_rows = sizeof(rows) / sizeof(rows[0]);
    size_t row;
    int i;

    for (i = 2; i < argc; i++) {
	const char *word = argv[i];

	if (word[0] != '-' || (word[1] >= '0' && word[1] <= '9')) {
	    if (opt->n_words == MAX_WORDS)
		die("too many arguments at \"%s\"", word);
	    opt->words[opt->n_words++] = word;
	    continue;
	}
	if (strcmp(word, "--expect") == 0) {
	    const char *what = i + 1 < argc ? argv[++i] : "";

	    opt->expect_abort = strcmp(what, "abort") == 0;
	    if (opt->expect_abort && i + 1 < argc)
		opt->expect_code = number("--expect abort", argv[++i], INT32_MIN, INT32_MAX);
	    else if (opt->expect_abort || strcmp(what, "ok") != 0)
		die("--expect needs \"ok\" or \"abort CODE\"");
	    continue;
	}
	for (row = 0; row < n_rows; row++)
	    if (strcmp(word, rows[row].name) == 0
		|| (rows[row].other != NULL && strcmp(word, rows[row].other) == 0))
		break;
	if (row == n_rows)
	    die("unknown option \"%s\"\n%s", word, usage);
	if (rows[row].kind == FLAG) {
	    *(int *)rows[row].into = 1;
	    continue;
	}
	if (i + 1 == argc)
	    die("%s needs a value", word);
	i++;
	if (rows[row].kind == TEXT)
	    *(const char **)rows[row].into = argv[i];
	else
	    *(long *)rows[row].into = number(word, argv[i], rows[row].low, rows[row].high);
    }
}

int main(int argc, char **argv)
{
    static const struct {
	const char *name;
	int (*run)(const struct options *opt);
	int is_client;
    } modes[] = {
	{ "rxperf-server", rxperf_server, 0 },
	{ "rxperf-client", rxperf_client, 1 },
	{ "test-server", test_server, 0 },
	{ "test-client", test_client, 1 },
    };
    struct options opt = {
	.port = -1, .bytes = -1, .send_bytes = -1, .recv_bytes = -1, .times = 1,
	.connections = 1, .read_size = 256 * 1024, .write_size = 256 * 1024, .parallel = 1,
    };
    size_t m;

    for (m = 0; m < sizeof(modes) / sizeof(modes[0]); m++) {
	if (argc < 2 || strcmp(argv[1], modes[m].name) != 0)
	    continue;
	parse(argc, argv, &opt);
	if (opt.port < 0 || (modes[m].is_client && opt.port == 0))
	    die("-p PORT is missing");
	if (modes[m].is_client && opt.host == NULL)
	    die("-s HOST is missing");
	if (opt.threads == 0)
	    opt.threads = modes[m].is_client ? 1 : 16;
	if (!modes[m].is_client && opt.threads < 2)
	    die("--threads: a server needs 2 at least");
	if (opt.n_words > 0 && modes[m].run != test_client)
	    die("unexpected argument \"%s\"", opt.words[0]);
	return modes[m].run(&opt);
    }
    fputs(usage, stderr);
    return 2;
}
