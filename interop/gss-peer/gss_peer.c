/*
 * MIT Kerberos's libgssapi_krb5 as a peer of our negotiation of rxgk, in either role: it does what it is told on standard
 * input, a line a step, and answers with a line (README.md). How tokens travel, and what they are for, is the caller's matter.
 */
#include <gssapi/gssapi_krb5.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* What both ends of a negotiation of rxgk want of each other. */
enum { WANTED = GSS_C_MUTUAL_FLAG | GSS_C_CONF_FLAG | GSS_C_INTEG_FLAG };

/* Kerberos, by its OID: 1.2.840.113554.1.2.2. */
static gss_OID_desc kerberos = { 9, "\x2a\x86\x48\x86\xf7\x12\x01\x02\x02" };

static gss_name_t service;
static gss_cred_id_t own = GSS_C_NO_CREDENTIAL; /* an acceptor's keys */
static gss_ctx_id_t context = GSS_C_NO_CONTEXT;

static void die(const char *format, ...)
{
    va_list words;

    va_start(words, format);
    fputs("gss-peer: ", stderr);
    vfprintf(stderr, format, words);
    fputc('\n', stderr);
    exit(2);
}

/* The library's words for a status, on one line. */
static void print_status(OM_uint32 code, int kind)
{
    OM_uint32 minor, more = 0;
    gss_buffer_desc text;
    size_t i;

    if (gss_display_status(&minor, code, kind, &kerberos, &more, &text) != GSS_S_COMPLETE)
        return;
    putchar(' ');
    for (i = 0; i < text.length; i++)
        putchar(((char *)text.value)[i] == '\n' ? ' ' : ((char *)text.value)[i]);
    gss_release_buffer(&minor, &text);
}

/* Answers that it was refused, and why, if it was. */
static int is_refused(OM_uint32 major, OM_uint32 minor)
{
    if (!GSS_ERROR(major))
        return 0;
    printf("no %x", major >> 16);
    print_status(major, GSS_C_GSS_CODE);
    print_status(minor, GSS_C_MECH_CODE);
    return 1;
}

/* The next word of a line in hex; an empty word is no bytes. */
static gss_buffer_desc bytes(char **line)
{
    const char *word = strsep(line, " ");
    gss_buffer_desc out;
    size_t i;

    if (word == NULL || strlen(word) % 2)
        die("a step lacks a word, or it is not in hex");
    out.length = strlen(word) / 2;
    out.value = malloc(out.length + 1);
    if (out.value == NULL)
        die("out of memory");
    for (i = 0; i < out.length; i++)
        if (sscanf(word + 2 * i, "%2hhx", (unsigned char *)out.value + i) != 1)
            die("\"%.20s\" is not in hex", word);
    return out;
}

static void print_bytes(gss_buffer_desc buffer)
{
    size_t i;

    putchar(' ');
    for (i = 0; i < buffer.length; i++)
        printf("%02x", ((unsigned char *)buffer.value)[i]);
}

static void answer(gss_buffer_desc buffer)
{
    printf("ok");
    print_bytes(buffer);
}

/* An initiator's first message, or its last word about the answer. */
static void initiate(gss_buffer_t input)
{
    OM_uint32 major, minor, flags;
    gss_buffer_desc output = GSS_C_EMPTY_BUFFER;

    major = gss_init_sec_context(&minor, GSS_C_NO_CREDENTIAL, &context, service, &kerberos, WANTED, 0,
                                 GSS_C_NO_CHANNEL_BINDINGS, input, NULL, &output, &flags, NULL);
    if (is_refused(major, minor))
        return;
    if ((input == NULL) != (major == GSS_S_CONTINUE_NEEDED))
        printf("no 0 it is not one round trip");
    else if (input != NULL && (flags & WANTED) != WANTED)
        printf("no 0 the context's flags are %x", flags);
    else if (input != NULL)
        printf("ok");
    else
        answer(output);
}

/* Answers with the message for the initiator, its exported name, and its name for people. */
static void accept_one(gss_buffer_t input)
{
    OM_uint32 major, minor, flags;
    gss_buffer_desc output = GSS_C_EMPTY_BUFFER, exported, display;
    gss_name_t who;

    major = gss_accept_sec_context(&minor, &context, own, input, GSS_C_NO_CHANNEL_BINDINGS, &who, NULL,
                                   &output, &flags, NULL, NULL);
    if (is_refused(major, minor))
        return;
    if (major != GSS_S_COMPLETE || (flags & WANTED) != WANTED) {
        printf("no 0 the status is %x, the context's flags are %x", major, flags);
        return;
    }
    if (gss_export_name(&minor, who, &exported) != GSS_S_COMPLETE
        || gss_display_name(&minor, who, &display, NULL) != GSS_S_COMPLETE)
        die("an initiator without a name");
    answer(output);
    print_bytes(exported);
    print_bytes(display);
}

static void seal(gss_buffer_t plain)
{
    OM_uint32 major, minor;
    gss_buffer_desc output;
    int is_sealed;

    major = gss_wrap(&minor, context, 1, GSS_C_QOP_DEFAULT, plain, &is_sealed, &output);
    if (!is_refused(major, minor))
        answer(output);
}

static void open_sealed(gss_buffer_t input)
{
    OM_uint32 major, minor;
    gss_buffer_desc output;
    gss_qop_t quality;
    int is_sealed;

    major = gss_unwrap(&minor, context, input, &output, &is_sealed, &quality);
    if (is_refused(major, minor))
        return;
    if (!is_sealed || quality != GSS_C_QOP_DEFAULT)
        printf("no 0 it was only signed");
    else
        answer(output);
}

static void sign(gss_buffer_t message)
{
    OM_uint32 major, minor;
    gss_buffer_desc output;

    major = gss_get_mic(&minor, context, GSS_C_QOP_DEFAULT, message, &output);
    if (!is_refused(major, minor))
        answer(output);
}

static void verify(gss_buffer_t message, gss_buffer_t signature)
{
    OM_uint32 major, minor;

    major = gss_verify_mic(&minor, context, message, signature, NULL);
    if (!is_refused(major, minor))
        printf("ok");
}

static void pseudo_random(gss_buffer_t seed, const char *length)
{
    OM_uint32 major, minor;
    gss_buffer_desc output;

    if (length == NULL)
        die("random: how many bytes?");
    major = gss_pseudo_random(&minor, context, GSS_C_PRF_KEY_FULL, seed, atoi(length), &output);
    if (!is_refused(major, minor))
        answer(output);
}

static void step(char *line)
{
    const char *verb = strsep(&line, " ");
    gss_buffer_desc first = GSS_C_EMPTY_BUFFER, second;

    if (strcmp(verb, "start") == 0) {
        initiate(NULL);
        return;
    }
    first = bytes(&line);
    if (strcmp(verb, "finish") == 0) {
        initiate(&first);
    } else if (strcmp(verb, "accept") == 0) {
        accept_one(&first);
    } else if (strcmp(verb, "wrap") == 0) {
        seal(&first);
    } else if (strcmp(verb, "unwrap") == 0) {
        open_sealed(&first);
    } else if (strcmp(verb, "sign") == 0) {
        sign(&first);
    } else if (strcmp(verb, "verify") == 0) {
        second = bytes(&line);
        verify(&first, &second);
    } else if (strcmp(verb, "random") == 0) {
        pseudo_random(&first, line);
    } else {
        die("\"%s\" is no step", verb);
    }
}

/* Does a step in a child, so that this process is as before it. */
static void try_step(char *line)
{
    int status;
    pid_t child = fork();

    if (child == 0) {
        step(line);
        putchar('\n');
        fflush(stdout);
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        die("a step in a child did not end well");
}

int main(int argc, char **argv)
{
    OM_uint32 major, minor;
    gss_buffer_desc name;
    char *line = NULL;
    size_t room = 0;
    ssize_t length;

    if (argc != 3 || (strcmp(argv[1], "initiate") != 0 && strcmp(argv[1], "accept") != 0))
        die("usage: gss-peer initiate|accept SERVICE@HOST");
    /* Tests show it a message again on purpose. */
    setenv("KRB5RCACHENAME", "none:", 1);
    name.value = argv[2];
    name.length = strlen(argv[2]);
    major = gss_import_name(&minor, &name, GSS_C_NT_HOSTBASED_SERVICE, &service);
    if (!GSS_ERROR(major) && strcmp(argv[1], "accept") == 0)
        major = gss_acquire_cred(&minor, service, 0, GSS_C_NO_OID_SET, GSS_C_ACCEPT, &own, NULL, NULL);
    if (is_refused(major, minor)) {
        putchar('\n');
        return 1;
    }
    puts("ready");
    fflush(stdout);
    while ((length = getline(&line, &room, stdin)) > 0) {
        if (line[length - 1] == '\n')
            line[length - 1] = '\0';
        if (line[0] == '?') {
            try_step(line + 1);
        } else {
            step(line);
            putchar('\n');
            fflush(stdout);
        }
    }
    return 0;
}
