/*
 * The signed assertion with which a service account asks for an access token (RFC 7523, RS256).
 * No state; the key's PEM text belongs to the caller.
 */
#include <jansson.h>
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <string.h>

#include "internal.h"

#define SCOPE "https://www.googleapis.com/auth/datastore"
#define LIFETIME_S 3600

/* Appends base64url without padding; out has room for 4/3 of length and a NUL. */
static size_t base64url(const unsigned char *data, size_t length, char *out)
{
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    size_t at = 0;

    for (size_t i = 0; i < length; i += 3) {
        size_t left = length - i;
        uint32_t bits = (uint32_t)data[i] << 16;
        bits |= left > 1 ? (uint32_t)data[i + 1] << 8 : 0;
        bits |= left > 2 ? (uint32_t)data[i + 2] : 0;
        out[at++] = alphabet[bits >> 18 & 63];
        out[at++] = alphabet[bits >> 12 & 63];
        if (left > 1)
            out[at++] = alphabet[bits >> 6 & 63];
        if (left > 2)
            out[at++] = alphabet[bits & 63];
    }
    out[at] = '\0';
    return at;
}

/* There is nobody to type a passphrase: an encrypted key is unusable, not a prompt. */
static int no_passphrase(char *buffer, int size, int writing, void *context)
{
    (void)buffer;
    (void)size;
    (void)writing;
    (void)context;
    return -1;
}

static EVP_PKEY *load_key(const char *pem)
{
    BIO *bio = BIO_new_mem_buf(pem, -1);
    EVP_PKEY *key = bio ? PEM_read_bio_PrivateKey(bio, NULL, no_passphrase, NULL) : NULL;

    BIO_free(bio);
    if (key && EVP_PKEY_base_id(key) != EVP_PKEY_RSA) {
        EVP_PKEY_free(key);
        key = NULL;
    }
    return key;
}

static bool sign(EVP_PKEY *key, const char *text, size_t length, unsigned char **signature,
                 size_t *signature_length)
{
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    bool good =
        context && EVP_DigestSignInit(context, NULL, EVP_sha256(), NULL, key) == 1 &&
        EVP_DigestSign(context, NULL, signature_length, (const unsigned char *)text, length) == 1;

    *signature = good ? syncguard_malloc(*signature_length) : NULL;
    good = *signature && EVP_DigestSign(context, *signature, signature_length,
                                        (const unsigned char *)text, length) == 1;
    EVP_MD_CTX_free(context);
    return good;
}

syncguard_status sg_fs_jwt(const char *client_email, const char *key_id, const char *private_key,
                           const char *audience, int64_t now_s, char **out, syncguard_error *err)
{
    json_t *head = json_pack("{s:s,s:s}", "alg", "RS256", "typ", "JWT");
    json_t *claims =
        json_pack("{s:s,s:s,s:s,s:I,s:I}", "iss", client_email, "scope", SCOPE, "aud", audience,
                  "iat", (json_int_t)now_s, "exp", (json_int_t)now_s + LIFETIME_S);
    char *head_text = NULL;
    char *claims_text = NULL;
    char *token = NULL;
    unsigned char *signature = NULL;
    size_t signature_length = 0;
    size_t at;
    EVP_PKEY *key = NULL;
    syncguard_status status;

    *out = NULL;
    if (head && key_id)
        (void)json_object_set_new(head, "kid", json_string(key_id));
    head_text = sg_fs_dump(head);
    claims_text = sg_fs_dump(claims);
    key = load_key(private_key);
    if (!head_text || !claims_text) {
        status = syncguard_fail_memory(err);
        goto out;
    }
    if (!key) {
        status = syncguard_fail(err, SYNCGUARD_E_AUTH_FAILED, NULL,
                                "the private key of the service account cannot be used");
        goto out;
    }
    token = syncguard_malloc((strlen(head_text) + strlen(claims_text)) * 4 / 3 +
                             (size_t)EVP_PKEY_size(key) * 4 / 3 + 16);
    if (!token) {
        status = syncguard_fail_memory(err);
        goto out;
    }
    at = base64url((const unsigned char *)head_text, strlen(head_text), token);
    token[at++] = '.';
    at += base64url((const unsigned char *)claims_text, strlen(claims_text), token + at);
    if (!sign(key, token, at, &signature, &signature_length)) {
        status = syncguard_fail(err, SYNCGUARD_E_AUTH_FAILED, NULL,
                                "signing with the service account's key failed");
        goto out;
    }
    token[at++] = '.';
    (void)base64url(signature, signature_length, token + at);
    *out = token;
    token = NULL;
    status = SYNCGUARD_OK;

out:
    sg_fs_wipe(token);
    syncguard_free(signature);
    EVP_PKEY_free(key);
    syncguard_free(head_text);
    syncguard_free(claims_text);
    json_decref(head);
    json_decref(claims);
    return status;
}
