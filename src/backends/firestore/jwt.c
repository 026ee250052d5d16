/* Assertions by RFC 7523 with RS256. No state; the key's PEM text belongs to the caller. */
#include "token.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <string.h>

#include "syncguard/sys/alloc.h"
#include "text.h"

#define SCOPE "https://www.googleapis.com/auth/datastore"
#define LIFETIME_S 3600

/* base64url without padding; NULL without memory. */
static char *jwt_encode_base64url(const void *data, size_t length)
{
    char *text = syncguard_malloc((length + 2) / 3 * 4 + 1);
    if (text == NULL)
        return NULL;
    (void)EVP_EncodeBlock((unsigned char *)text, data, (int)length);
    for (char *at = text; *at != 0; at++)
        *at = *at == '+' ? '-' : *at == '/' ? '_' : *at;
    text[strcspn(text, "=")] = '\0';
    return text;
}

/* Takes ownership of json. */
static char *jwt_encode_json(json_t *json)
{
    char *text = sg_firestore_json_text(json);
    char *encoded = text != NULL ? jwt_encode_base64url(text, strlen(text)) : NULL;
    json_decref(json);
    syncguard_free(text);
    return encoded;
}

/* "HEADER.CLAIMS", the text that is signed; NULL without memory. */
static char *jwt_make_content(const char *client_email, const char *key_id, const char *audience,
                              int64_t now_s)
{
    json_t *head = json_pack("{s:s,s:s,s:s*}", "alg", "RS256", "typ", "JWT", "kid", key_id);
    char *head_text = jwt_encode_json(head);
    char *claims_text = jwt_encode_json(
        json_pack("{s:s,s:s,s:s,s:I,s:I}", "iss", client_email, "scope", SCOPE, "aud", audience,
                  "iat", (json_int_t)now_s, "exp", (json_int_t)now_s + LIFETIME_S));
    char *content = head_text != NULL && claims_text != NULL
                        ? sg_firestore_format("%s.%s", head_text, claims_text)
                        : NULL;
    syncguard_free(head_text);
    syncguard_free(claims_text);
    return content;
}

/* No user is there to type a passphrase: an encrypted key is refused, without a prompt. */
static int jwt_refuse_passphrase(char *buffer, int size, int writing, void *context)
{
    (void)buffer;
    (void)size;
    (void)writing;
    (void)context;
    return -1;
}

static EVP_PKEY *jwt_load_key(const char *pem)
{
    BIO *bio = BIO_new_mem_buf(pem, -1);
    EVP_PKEY *key =
        bio != NULL ? PEM_read_bio_PrivateKey(bio, NULL, jwt_refuse_passphrase, NULL) : NULL;
    BIO_free(bio);
    if (key != NULL && EVP_PKEY_base_id(key) != EVP_PKEY_RSA) {
        EVP_PKEY_free(key);
        key = NULL;
    }
    return key;
}

/* The signature as base64url. */
static syncguard_status jwt_sign_content(EVP_PKEY *key, const char *content, char **out,
                                         syncguard_error *err)
{
    const unsigned char *data = (const unsigned char *)content;
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    size_t length = (size_t)EVP_PKEY_size(key);
    unsigned char *signature = syncguard_malloc(length);
    bool made = context != NULL && signature != NULL &&
                EVP_DigestSignInit(context, NULL, EVP_sha256(), NULL, key) == 1 &&
                EVP_DigestSign(context, signature, &length, data, strlen(content)) == 1;
    *out = made ? jwt_encode_base64url(signature, length) : NULL;
    syncguard_status status = SYNCGUARD_OK;
    if (context == NULL || signature == NULL || (made && *out == NULL))
        status = syncguard_fail_memory(err);
    else if (!made)
        status = syncguard_fail(err, SYNCGUARD_E_AUTH_FAILED, NULL,
                                "signing with the service account's key failed");
    syncguard_free(signature);
    EVP_MD_CTX_free(context);
    return status;
}

syncguard_status sg_firestore_jwt(const char *client_email, const char *key_id,
                                  const char *private_key, const char *audience, int64_t now_s,
                                  char **out, syncguard_error *err)
{
    char *content = jwt_make_content(client_email, key_id, audience, now_s);
    EVP_PKEY *key = jwt_load_key(private_key);
    *out = NULL;
    char *signature = NULL;
    syncguard_status status = SYNCGUARD_OK;
    if (content == NULL)
        status = syncguard_fail_memory(err);
    else if (key == NULL)
        status = syncguard_fail(err, SYNCGUARD_E_AUTH_FAILED, NULL,
                                "the private key of the service account cannot be used");
    else
        status = jwt_sign_content(key, content, &signature, err);
    if (status == SYNCGUARD_OK && (*out = sg_firestore_format("%s.%s", content, signature)) == NULL)
        status = syncguard_fail_memory(err);
    syncguard_free_secret(signature);
    EVP_PKEY_free(key);
    syncguard_free(content);
    return status;
}
