/* Gets a ticket for a service into the credential cache, and says how long it is in bytes:
 *
 *     ticket SERVICE BYTES [OWNER]
 *
 * with so many bytes of authorization data more than usual. With OWNER it is the only ticket in the cache, which says of itself and of it that they
 * are that principal's, whoever it was made for.
 *
 * It is linked with MIT's library without its headers, which Debian has in another package: the structures are part of its interface. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { int magic; unsigned length; char *data; } data;
typedef struct { int magic, type; unsigned length; unsigned char *data; } block;
typedef struct {
    int magic;
    void *client, *server;
    block key;
    int times[4];
    unsigned is_skey;
    int flags;
    void *addresses;
    data ticket, second;
    block **authdata;
} creds;

int krb5_init_context(void **);
int krb5_cc_default(void *, void **);
int krb5_cc_get_principal(void *, void *, void **);
int krb5_parse_name(void *, const char *, void **);
int krb5_cc_initialize(void *, void *, void *);
int krb5_cc_store_cred(void *, void *, creds *);
int krb5_get_credentials(void *, int, void *, creds *, creds **);

int main(int argc, char **argv) {
    void *context, *cache;
    creds in, *out;
    block one, *all[2];
    int code;
    memset(&in, 0, sizeof in);
    memset(&one, 0, sizeof one);
    one.type = 1;
    one.length = atoi(argv[2]);
    one.data = calloc(1, one.length + 1);
    all[0] = &one;
    all[1] = 0;
    if (krb5_init_context(&context) || krb5_cc_default(context, &cache)) return 2;
    if (krb5_cc_get_principal(context, cache, &in.client)) return 3;
    if (krb5_parse_name(context, argv[1], &in.server)) return 4;
    if (one.length) in.authdata = all;
    code = krb5_get_credentials(context, 0, cache, &in, &out);
    if (code) {
        fprintf(stderr, "code %d\n", code);
        return 5;
    }
    /* As what nobody has asked for in particular: only so another program is given it. */
    out->authdata = 0;
    if (argc > 3 && krb5_parse_name(context, argv[3], &out->client)) return 6;
    if (argc > 3 && krb5_cc_initialize(context, cache, out->client)) return 7;
    if (krb5_cc_store_cred(context, cache, out)) return 8;
    printf("%u\n", out->ticket.length);
    return 0;
}
