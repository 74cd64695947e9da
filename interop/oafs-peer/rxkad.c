/*
 * rxkad for either role, with OpenAFS's own class from the same library: a server that is
 * told its keys, and a client that is told its token. Where keys and tickets come from is
 * the caller's matter: afar's tests make them.
 */
#include "peer.h"

#include <rx/rxkad.h>

/* Longest key and longest ticket that fit into a command line's word in hex. */
enum { MAX_KEY = 64, MAX_TICKET = 2048 };

/* The key of --key KVNO:ETYPE:HEX; type 0 is a DES key. */
struct server_key {
    int kvno, type;
    unsigned char bytes[MAX_KEY];
    size_t size;
};

static struct server_key server_key;
static const char *only_caller;

static rxkad_level level_of(const char *name)
{
    static const char *const names[] = { "clear", "auth", "crypt" };
    rxkad_level level;

    for (level = rxkad_clear; level <= rxkad_crypt; level++)
	if (strcmp(name, names[(int)level]) == 0)
	    return level;
    die("--rxkad: \"%s\" is not clear, auth or crypt", name);
}

static size_t unhex(const char *what, const char *text, size_t length, void *out, size_t room)
{
    unsigned char *bytes = out;
    size_t i;

    if (length % 2 || length / 2 > room)
	die("%s: %zu hex digits are too many, or not even", what, length);
    for (i = 0; i < length / 2; i++)
	if (sscanf(text + 2 * i, "%2hhx", &bytes[i]) != 1)
	    die("%s: not in hex", what);
    return length / 2;
}

/* The word up to the next colon, or to the end. Moves on behind it. */
static const char *field(const char *what, const char **text, size_t *length)
{
    const char *start = *text;

    if (start == NULL)
	die("%s: a part is missing", what);
    *length = strcspn(start, ":");
    *text = start[*length] ? start + *length + 1 : NULL;
    return start;
}

static int get_des_key(void *rock, int kvno, struct ktc_encryptionKey *key)
{
    (void)rock;
    if (server_key.type != 0 || server_key.kvno != kvno)
	return RXKADUNKNOWNKEY;
    memcpy(key, server_key.bytes, sizeof(*key));
    return 0;
}

static int get_krb5_key(void *rock, int kvno, int type, void *key, size_t *size)
{
    (void)rock;
    if (server_key.type != type || server_key.kvno != kvno || *size < server_key.size)
	return RXKADUNKNOWNKEY;
    memcpy(key, server_key.bytes, server_key.size);
    *size = server_key.size;
    return 0;
}

/* Called "user_ok" in the library, which takes 0 for yes. */
static int refuses(char *name, char *instance, char *cell, afs_int32 kvno)
{
    char caller[3 * 64 + 3];

    (void)kvno;
    snprintf(caller, sizeof(caller), "%s.%s@%s", name, instance, cell);
    return only_caller != NULL && strcmp(only_caller, caller) != 0;
}

struct rx_securityClass *server_rxkad(const struct options *opt)
{
    const char *rest = opt->key;
    size_t length;

    if (opt->rxkad == NULL)
	return NULL;
    if (rest == NULL)
	die("--rxkad: a server needs --key");
    server_key.kvno = atoi(field("--key", &rest, &length));
    server_key.type = atoi(field("--key", &rest, &length));
    rest = field("--key", &rest, &length);
    server_key.size = unhex("--key", rest, length, server_key.bytes, sizeof(server_key.bytes));
    only_caller = opt->only;
    return rxkad_NewKrb5ServerSecurityObject(level_of(opt->rxkad), NULL, get_des_key,
					     get_krb5_key, refuses);
}

struct rx_securityClass *client_rxkad(const struct options *opt)
{
    struct ktc_encryptionKey key;
    char ticket[MAX_TICKET];
    const char *rest = opt->token, *part;
    size_t length;
    int kvno;

    if (opt->rxkad == NULL)
	return NULL;
    if (rest == NULL)
	die("--rxkad: a client needs --token");
    kvno = atoi(field("--token", &rest, &length));
    part = field("--token", &rest, &length);
    if (unhex("--token", part, length, &key, sizeof(key)) != sizeof(key))
	die("--token: the session key has 8 bytes");
    part = field("--token", &rest, &length);
    length = unhex("--token", part, length, ticket, sizeof(ticket));
    return rxkad_NewClientSecurityObject(level_of(opt->rxkad), &key, kvno, (int)length, ticket);
}
