/*
 * Client for the Tallygate agent on this device: access requests and sessions over its Unix socket. POSIX, C11, without
 * dependencies. In one source file, write `#define TALLYGATE_IMPLEMENTATION` before the include. Link with -pthread.
 *
 * A request without a response is repeated under the same number, also after a restart of the agent, so it is charged
 * once. Sessions send their own heartbeats from a thread. Nothing is allocated: all texts have the sizes below.
 */
#ifndef TALLYGATE_H
#define TALLYGATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Items of one request; longest request and longest response, bytes. */
#ifndef TG_ITEMS_MAX
#define TG_ITEMS_MAX 16
#endif
#ifndef TG_BUFFER
#define TG_BUFFER 32768
#endif

/* How long a request is repeated while the agent is down, restarting or busy. Of a client, until it is set otherwise. */
#ifndef TG_PATIENCE_MS
#define TG_PATIENCE_MS 10000
#endif

typedef enum {
  TG_OK,          /* There is an answer; look whether it is granted. */
  TG_UNREACHABLE, /* No response to an attempt until the patience ended, or no permission to connect. The request may have been charged. */
  TG_NEEDS_CLOUD, /* The device must reach the cloud first: it has no usable rules, is not attached, or was locked. */
  TG_LIMIT,       /* The user of this process has used up its limit of requests or tokens. */
  TG_ENDED,       /* The session has ended: stop the work that it paid for. */
  TG_ERROR        /* Any other refusal, see `code`. */
} tg_status;

/* When the same request can succeed: never, at another time, or once the device has reached the cloud. */
typedef enum { TG_RETRY_NO, TG_RETRY_LATER, TG_RETRY_ONLINE } tg_retry;

typedef struct {
  char code[40]; /* See docs/reference/errors.md. */
  char message[400];
  tg_retry retry;
  int retry_after_s; /* Of TG_LIMIT. */
  char state[16];    /* Of TG_ENDED: TERMINATED, LOCKED, FAILED, DISCONNECTED, or UNKNOWN to the agent. */
} tg_error;

typedef struct {
  const char *type, *value;
  const char *dictionary; /* JSON object with properties that rules of access test, or NULL. */
} tg_requester;

typedef struct {
  const char *item;
  const char *version; /* Or NULL. */
  double count;
  const char *variables; /* JSON object with the variables of a rate formula, or NULL. */
  const char *meta_data; /* JSON object that is stored in usage records only, or NULL. */
} tg_item;

typedef struct {
  bool granted;
  char code[8]; /* Four digits; the first is 1 if the item was not refused, and 2 if it was. */
  char description[200];
  char tokens_charged[40]; /* Exact decimal. */
  tg_retry retry;          /* If it was refused. */
} tg_result;

typedef struct {
  bool granted;            /* Every item is granted. */
  char correlation_id[37]; /* For `tallygate explain`. */
  char advice[400];        /* What exists instead of an unknown item, or empty. */
  size_t count;
  tg_result items[TG_ITEMS_MAX];
} tg_answer;

/* One connection, for one thread at a time. */
typedef struct {
  unsigned patience_ms; /* TG_PATIENCE_MS. */
  char socket[109]; /* One more than fits, so that a longer path is noticed. */
  int fd;
  pid_t process; /* Of `fd` and `name`. A forked process inherits both, and must not use them. */
  char name[37]; /* A UUID under which the requests are numbered. */
  unsigned long sent;
  char request[TG_BUFFER], response[TG_BUFFER];
  int status;
  const char *body;
  long heartbeat_ms; /* -1: none are needed. */
  int retry_after_s; /* -1: the agent does not say that the request can be repeated. */
  char advice[400];
  bool is_first, binds, closes;
} tg_client;

/* All threads of the process that opened it can use it. In a forked process, and after a tg_open that failed, requests
 * fail with SESSION_OF_ANOTHER. Its address must not change between tg_open and tg_close_session. */
typedef struct {
  tg_client client;
  char id[37];
  pthread_mutex_t turn;
  pthread_mutex_t mutex;
  pthread_cond_t wake;
  pthread_t heartbeats;
  bool beats, over, ended;
  long every_ms;
  tg_error end;
} tg_session;

/* Sends nothing. Socket NULL: $TALLYGATE_SOCKET, or /run/tallygate/agent.sock. */
void tg_connect(tg_client *client, const char *socket);
void tg_disconnect(tg_client *client);

/* Each item is granted or refused by itself. */
tg_status tg_access(tg_client *client, const char *instance_id, const tg_requester *requester, const tg_item *items,
                    size_t count, tg_answer *answer, tg_error *error);

/* The JSON text of the items that can be requested now, valid until the next call. */
tg_status tg_offers(tg_client *client, const char **json, tg_error *error);

/* `bound`: the session ends with this process, and when the agent restarts. Otherwise: when its heartbeats stop. */
tg_status tg_open(tg_session *session, const char *socket, const char *instance_id, bool bound, tg_error *error);

/* Requests all items or none. Granted items replace the previous ones and are charged for each interval; no items charge
 * nothing. After a refusal the session continues unchanged, unless `rollback_on_deny` is false: then it ends. */
tg_status tg_request(tg_session *session, const tg_requester *requester, const tg_item *items, size_t count,
                     bool rollback_on_deny, tg_answer *answer, tg_error *error);
tg_status tg_session_state(tg_session *session, char state[16], tg_error *error);

/* Whether the session has ended by itself: out of tokens, locked, or timed out. True in a forked process. */
bool tg_has_ended(tg_session *session, tg_error *end);

/* Refunds unused tokens. Closing an ended session is not an error. In a forked process: closes what it has inherited. The
 * session continues. */
tg_status tg_close_session(tg_session *session, tg_error *error);

#endif

#ifdef TALLYGATE_IMPLEMENTATION
#undef TALLYGATE_IMPLEMENTATION

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* A response must be complete within this time. */
enum { TG__RESPONSE_MS = 30000, TG__DEPTH_MAX = 32 };

/* JSON: values are found by their names, in any order. NULL: missing, or not JSON. */

static const char *tg__space(const char *at) { return at + strspn(at, " \t\r\n"); }

/* The end of a value with up to `depth` levels. */
static const char *tg__skip(const char *at, int depth) {
  if (*at == '"') {
    for (at++; *at != '"'; at++) {
      if (*at == '\\') at++;
      if (*at == '\0') return NULL;
    }
    return at + 1;
  }
  if (*at != '{' && *at != '[') {
    size_t length = strspn(at, "+-.0123456789Eaeflnrstu");
    return length == 0 ? NULL : at + length;
  }
  char close = *at == '{' ? '}' : ']';
  if (*(at = tg__space(at + 1)) == close) return at + 1;
  for (; depth > 0; at = tg__space(at + 1)) {
    if (close == '}') {
      if (*at != '"' || (at = tg__skip(at, 0)) == NULL || *(at = tg__space(at)) != ':') return NULL;
      at = tg__space(at + 1);
    }
    if ((at = tg__skip(at, depth - 1)) == NULL) return NULL;
    if (*(at = tg__space(at)) == close) return at + 1;
    if (*at != ',') return NULL;
  }
  return NULL;
}

/* The last member of this name. */
static const char *tg__member(const char *object, const char *name) {
  const char *found = NULL;
  if (object == NULL || *(object = tg__space(object)) != '{') return NULL;
  for (const char *at = tg__space(object + 1); *at == '"'; at = tg__space(at + 1)) {
    const char *end = tg__skip(at, 0);
    if (end == NULL || *tg__space(end) != ':') return NULL;
    const char *value = tg__space(tg__space(end) + 1);
    if ((size_t)(end - at - 2) == strlen(name) && strncmp(at + 1, name, strlen(name)) == 0) found = value;
    if ((at = tg__skip(value, TG__DEPTH_MAX)) == NULL || *(at = tg__space(at)) != ',') break;
  }
  return found;
}

/* The text of a string without its escapes of quotes and backslashes. False: no string, or an empty one. */
static bool tg__text(const char *value, char *into, size_t size) {
  size_t length = 0;
  if (value != NULL && *value == '"') {
    for (value++; *value != '"' && *value != '\0' && length + 1 < size; value++) {
      if (*value == '\\' && (value[1] == '"' || value[1] == '\\')) value++;
      into[length++] = *value;
    }
    /* Without the first bytes of a character of UTF-8 that does not fit. */
    for (; ((unsigned char)*value & 0xc0) == 0x80 && length > 0; value--) length--;
  }
  into[length] = '\0';
  return length > 0;
}

static bool tg__number(const char *value, char *into, size_t size) {
  size_t length = value == NULL ? 0 : strspn(value, "+-.0123456789Ee");
  if (length == 0 || length >= size) return false;
  memcpy(into, value, length);
  into[length] = '\0';
  return true;
}

typedef struct {
  char *text;
  size_t length;
  bool is_full;
} tg__writer;

static void tg__put(tg__writer *to, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(to->text + to->length, TG_BUFFER - to->length, format, arguments);
  va_end(arguments);
  if (length < 0 || to->length + (size_t)length >= TG_BUFFER) to->is_full = true;
  else to->length += (size_t)length;
}

/* NULL, such as a variable that is not set, is empty: the agent names the field. */
static void tg__put_string(tg__writer *to, const char *text) {
  if (text == NULL) text = "";
  tg__put(to, "\"");
  for (; *text != '\0' && !to->is_full; text++) {
    unsigned char byte = (unsigned char)*text;
    if (byte == '"' || byte == '\\') tg__put(to, "\\%c", byte);
    else if (byte < 0x20) tg__put(to, "\\u%04x", byte);
    else tg__put(to, "%c", byte);
  }
  tg__put(to, "\"");
}

/* With a point in every locale. */
static void tg__put_number(tg__writer *to, double number) {
  char text[40];
  snprintf(text, sizeof text, "%.17g", number);
  for (char *at = text; *at != '\0'; at++)
    if (strchr("0123456789+-.eE", *at) == NULL) *at = '.';
  tg__put(to, "%s", text);
}

static tg_status tg__fail(tg_error *error, tg_status status, const char *code, tg_retry retry, const char *message) {
  memset(error, 0, sizeof *error);
  snprintf(error->code, sizeof error->code, "%s", code);
  snprintf(error->message, sizeof error->message, "%s", message);
  error->retry = retry;
  return status;
}

static void tg__renew(tg_client *client) {
  unsigned char b[16];
  int file = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
  if (file < 0 || read(file, b, sizeof b) != (ssize_t)sizeof b) abort();
  close(file);
  b[6] = (b[6] & 0x0f) | 0x40;
  b[8] = (b[8] & 0x3f) | 0x80;
  snprintf(client->name, sizeof client->name, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
           b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
  client->sent = 0;
}

void tg_connect(tg_client *client, const char *socket) {
  memset(client, 0, sizeof *client);
  if (socket == NULL || socket[0] == '\0') socket = getenv("TALLYGATE_SOCKET");
  if (socket == NULL || socket[0] == '\0') socket = "/run/tallygate/agent.sock";
  snprintf(client->socket, sizeof client->socket, "%s", socket);
  client->patience_ms = TG_PATIENCE_MS;
  client->fd = -1;
}

void tg_disconnect(tg_client *client) {
  if (client->fd >= 0) close(client->fd);
  client->fd = -1;
}

/* Also after a month on a machine with 32 bits. */
static int64_t tg__now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Waits until the connection can be read or written. */
static bool tg__wait(tg_client *client, short events, int64_t deadline) {
  struct pollfd waiting = {.fd = client->fd, .events = events};
  int ready;
  do {
    int64_t left = deadline - tg__now_ms();
    ready = left <= 0 ? 0 : poll(&waiting, 1, (int)left);
  } while (ready < 0 && errno == EINTR);
  if (ready == 0) errno = ETIMEDOUT;
  return ready > 0;
}

static bool tg__reach(tg_client *client) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  if (strlen(client->socket) >= sizeof address.sun_path) return errno = ENAMETOOLONG, false;
  memcpy(address.sun_path, client->socket, strlen(client->socket));
  client->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  return client->fd >= 0 && connect(client->fd, (struct sockaddr *)&address, sizeof address) == 0;
}

static int tg__digits(const char *value, int otherwise) {
  size_t length = strspn(value, "0123456789");
  return length > 0 && length < 10 && value[length] == '\r' ? atoi(value) : otherwise;
}

/* Reads the head of the response. Returns the length of the body, -1 for anything but HTTP. */
static long tg__head(tg_client *client, char *head) {
  long length = -2;
  char *line = strstr(head, "\r\n");
  if (strncmp(head, "HTTP/1.", 7) != 0 || line == NULL || line < head + 12) return -1;
  if (strspn(head + 9, "0123456789") != 3 || head[9] == '0') return -1;
  client->status = atoi(head + 9);
  client->heartbeat_ms = client->retry_after_s = -1;
  client->advice[0] = '\0';
  client->closes = false;
  for (char *next; *(line += 2) != '\0' && (next = strstr(line, "\r\n")) != NULL; line = next) {
    const char *value = line + strcspn(line, ": \t\r\n") + 1;
    if (value == line + 1 || value[-1] != ':' || line + strcspn(line, "\r\n") != next) return -1;
    value += strspn(value, " ");
    if (strncasecmp(line, "content-length:", 15) == 0) length = length == -2 ? tg__digits(value, -1) : -1;
    if (strncasecmp(line, "retry-after:", 12) == 0) client->retry_after_s = tg__digits(value, -1);
    if (strncasecmp(line, "x-tallygate-heartbeat-ms:", 25) == 0) client->heartbeat_ms = tg__digits(value, -1);
    if (strncasecmp(line, "connection:", 11) == 0) client->closes = strncasecmp(value, "close", 5) == 0;
    if (strncasecmp(line, "x-tallygate-advice:", 19) == 0)
      snprintf(client->advice, sizeof client->advice, "%.*s", (int)(next - value), value);
  }
  return client->status == 204 ? 0 : length;
}

/* Receives more of the response. False: it does not come; errno says why. */
static bool tg__receive(tg_client *client, size_t *got, int64_t deadline) {
  if (!tg__wait(client, POLLIN, deadline)) return false;
  ssize_t count = recv(client->fd, client->response + *got, TG_BUFFER - 1 - *got, 0);
  if (count < 0 && (errno == EINTR || errno == EAGAIN)) return true;
  if (count == 0) errno = ECONNRESET;
  if (count <= 0) return false;
  *got += (size_t)count;
  client->response[*got] = '\0';
  return true;
}

/* Reads the response after informational ones. False: none; errno says why. */
static bool tg__read(tg_client *client, int64_t deadline) {
  size_t got = 0, start = 0;
  for (;;) {
    char *head = client->response + start, *end = strstr(head, "\r\n\r\n");
    if (end != NULL) {
      end[2] = '\0';
      long length = tg__head(client, head);
      if (length == -1 || client->status == 101) return errno = EPROTO, false;
      start = (size_t)(end + 4 - client->response);
      if (client->status < 200) continue;
      /* The agent always sends a length. Without it, a response that was cut looks complete. */
      if (length == -2 || start + (size_t)length > TG_BUFFER - 1) return errno = EMSGSIZE, false;
      while (got < start + (size_t)length)
        if (!tg__receive(client, &got, deadline)) return false;
      /* What follows belongs to no request. */
      if (got > start + (size_t)length) client->closes = true;
      client->response[start + (size_t)length] = '\0';
      client->body = client->response + start;
      return strlen(client->body) == (size_t)length ? true : (errno = EPROTO, false);
    }
    if (got + 1 == TG_BUFFER) return errno = EPROTO, false;
    if (got == 0) client->response[0] = '\0';
    if (!tg__receive(client, &got, deadline)) return false;
  }
}

/* False: no response; errno says why. */
static bool tg__send(tg_client *client, size_t length) {
  int64_t deadline = tg__now_ms() + TG__RESPONSE_MS;
  struct pollfd silent = {.fd = client->fd, .events = POLLIN};
  /* The agent has closed the connection, or has sent something that answers no request. */
  if (client->fd >= 0 && poll(&silent, 1, 0) != 0) tg_disconnect(client);
  if (client->fd < 0 && !tg__reach(client)) return false;
  for (size_t sent = 0; sent < length;) {
    if (!tg__wait(client, POLLOUT, deadline)) return false;
    ssize_t count = send(client->fd, client->request + sent, length - sent, MSG_NOSIGNAL);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) return false;
    sent += (size_t)count;
  }
  return tg__read(client, deadline);
}

/* The object of the body. NULL: it is not whole. */
static const char *tg__object(const tg_client *client) {
  const char *body = tg__space(client->body), *end = *body == '{' ? tg__skip(body, TG__DEPTH_MAX) : NULL;
  return end != NULL && *tg__space(end) == '\0' ? body : NULL;
}

static tg_status tg__unexpected(const tg_client *client, tg_error *error) {
  char message[400];
  snprintf(message, sizeof message,
           "The response is not from a Tallygate agent (HTTP status %d: %.200s). Check the path of the socket.",
           client->status, client->body);
  return tg__fail(error, TG_ERROR, "ANSWER_UNEXPECTED", TG_RETRY_NO, message);
}

static bool tg__is_decision(const tg_client *client) {
  if (client->status >= 200 && client->status < 300) return true;
  return client->status == 403 && tg__member(tg__object(client), "requestedItems") != NULL;
}

static tg_status tg__refusal(const tg_client *client, tg_error *error) {
  char code[40], message[400];
  static const char *const need_cloud[] = {"DEVICE_LOCKED", "NOT_ATTACHED", "POLICY_MISSING", "POLICY_STALE"};
  const char *body = tg__object(client), *text = tg__member(body, "message");
  tg__text(text, message, sizeof message);
  if (!tg__text(tg__member(body, "code"), code, sizeof code) || text == NULL || *text != '"') return tg__unexpected(client, error);
  if (strcmp(code, "CALLER_LIMITED") == 0) {
    tg__fail(error, TG_LIMIT, code, TG_RETRY_LATER, message);
    error->retry_after_s = client->retry_after_s < 0 ? 1 : client->retry_after_s;
    return TG_LIMIT;
  }
  for (size_t i = 0; i < sizeof need_cloud / sizeof *need_cloud; i++)
    if (strcmp(code, need_cloud[i]) == 0) return tg__fail(error, TG_NEEDS_CLOUD, code, TG_RETRY_ONLINE, message);
  return tg__fail(error, TG_ERROR, code, client->retry_after_s < 0 ? TG_RETRY_NO : TG_RETRY_LATER, message);
}

static tg_status tg__no_response(tg_client *client, tg_error *error) {
  char message[400];
  client->retry_after_s = -1;
  if (errno == EMSGSIZE)
    return tg__fail(error, TG_ERROR, "ANSWER_UNEXPECTED", TG_RETRY_NO,
                    "The response has no length, or is longer than TG_BUFFER: define a larger one. The request may have been charged.");
  if (errno == EACCES) {
    snprintf(message, sizeof message, "This user may not connect to %s. Add this user to the group of the socket, and sign in again.", client->socket);
    return tg__fail(error, TG_UNREACHABLE, "SOCKET_NOT_PERMITTED", TG_RETRY_NO, message);
  }
  const char *advice = "Start the agent. If it runs, close unused connections to it: socket.connections_max limits their number";
  if (errno == ENOENT || errno == ECONNREFUSED) advice = "Start the agent, or set TALLYGATE_SOCKET to the path of its socket";
  if (errno == ENAMETOOLONG) advice = "Set TALLYGATE_SOCKET to a path of at most 107 bytes";
  snprintf(message, sizeof message, "The agent does not respond at %s (%s). %s.", client->socket, strerror(errno), advice);
  return tg__fail(error, TG_UNREACHABLE, "AGENT_UNREACHABLE", TG_RETRY_LATER, message);
}

/* Repeats until there is a decision or the patience ends. */
static tg_status tg__repeat(tg_client *client, size_t length, tg_error *error) {
  int64_t deadline = tg__now_ms() + client->patience_ms;
  long pause_ms = 20;
  bool is_lost = false;
  for (client->is_first = true;; client->is_first = false) {
    tg_status status = TG_OK;
    bool is_permitted = true, has_response = true;
    if (!tg__send(client, length)) {
      /* systemd creates a socket before it sets its group: after another failure, this one may end soon. */
      is_permitted = !client->is_first || errno != EACCES;
      has_response = false;
      status = tg__no_response(client, error);
      tg_disconnect(client);
    } else {
      if (client->closes) tg_disconnect(client);
      if (tg__is_decision(client)) return TG_OK;
      status = tg__refusal(client, error);
    }
    /* The agent says what can be repeated. Limits are left to the application. */
    bool may_repeat = (status == TG_UNREACHABLE && is_permitted) || (client->retry_after_s >= 0 && status != TG_LIMIT);
    if (!may_repeat || tg__now_ms() + pause_ms > deadline) {
      /* An agent that refuses for the moment does not look whether the lost attempt was charged. */
      if (is_lost && error->retry == TG_RETRY_LATER) status = TG_UNREACHABLE;
      return status;
    }
    is_lost = is_lost || !has_response;
    struct timespec pause = {.tv_sec = pause_ms / 1000, .tv_nsec = pause_ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
    if ((pause_ms *= 2) > 1000) pause_ms = 1000;
  }
}

/* Sends a request. Those that change something are numbered, so that they take effect at most once. */
static tg_status tg__call(tg_client *client, const char *method, const char *path, const tg__writer *body, tg_error *error) {
  tg__writer to = {.text = client->request};
  if (client->process != getpid()) {
    tg_disconnect(client);
    tg__renew(client);
    client->process = getpid();
  }
  tg__put(&to, "%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n", method, path);
  bool is_numbered = strcmp(method, "GET") != 0;
  if (is_numbered)
    tg__put(&to, "X-Tallygate-Session: %s\r\nX-Tallygate-Request: %lu\r\n", client->name, ++client->sent);
  if (client->binds) tg__put(&to, "X-Tallygate-Bound: connection\r\n");
  tg__put(&to, "Content-Length: %zu\r\n\r\n%s", body == NULL ? (size_t)0 : body->length, body == NULL ? "" : body->text);
  if (to.is_full || (body != NULL && body->is_full))
    return tg__fail(error, TG_ERROR, "BODY_TOO_LARGE", TG_RETRY_NO, "The request is longer than TG_BUFFER.");
  tg_status status = tg__repeat(client, to.length, error);
  /* The agent may still be deciding this request, and takes no further number until then. */
  if (status == TG_UNREACHABLE && is_numbered) tg__renew(client);
  return status;
}

/* In another process, the mutexes may be locked forever. */
static bool tg__is_foreign(const tg_session *session, tg_error *error) {
  if (session->client.process == getpid()) return false;
  tg__fail(error, TG_ERROR, "SESSION_OF_ANOTHER", TG_RETRY_NO,
           "Another process opened this session. Open a session in this process.");
  return true;
}

static void tg__put_request(tg__writer *to, const tg_requester *requester, const tg_item *items, size_t count) {
  tg__put(to, "{\"requester\":{\"type\":");
  tg__put_string(to, requester->type);
  tg__put(to, ",\"value\":");
  tg__put_string(to, requester->value);
  if (requester->dictionary != NULL) tg__put(to, ",\"dictionary\":%s", requester->dictionary);
  tg__put(to, "},\"requestedItems\":[");
  for (size_t i = 0; i < count; i++) {
    tg__put(to, "%s{\"item\":", i == 0 ? "" : ",");
    tg__put_string(to, items[i].item);
    if (items[i].version != NULL) {
      tg__put(to, ",\"version\":");
      tg__put_string(to, items[i].version);
    }
    tg__put(to, ",\"count\":");
    tg__put_number(to, items[i].count);
    if (items[i].variables != NULL) tg__put(to, ",\"variables\":%s", items[i].variables);
    if (items[i].meta_data != NULL) tg__put(to, ",\"metaData\":%s", items[i].meta_data);
    tg__put(to, "}");
  }
  tg__put(to, "]");
}

static tg_retry tg__item_retry(const char *code) {
  if (strstr("2008 2009 2010", code) != NULL) return TG_RETRY_ONLINE;
  return strstr("2002 2004 2005 2011", code) != NULL ? TG_RETRY_LATER : TG_RETRY_NO;
}

/* False: a field is missing. */
static bool tg__read_item(const char *at, tg_result *item) {
  char name[4];
  const char *status = tg__member(at, "status"), *description = tg__member(status, "description");
  bool has_code = tg__text(tg__member(status, "code"), item->code, sizeof item->code);
  if (!has_code || strspn(item->code, "0123456789") != 4 || item->code[4] != '\0') return false;
  if (description == NULL || *description != '"' || !tg__text(tg__member(at, "item"), name, sizeof name)) return false;
  tg__text(description, item->description, sizeof item->description);
  /* 1002: valid, but not charged because another item of the session request was refused. */
  item->granted = item->code[0] == '1' && strcmp(item->code, "1002") != 0;
  item->retry = tg__item_retry(item->code);
  return tg__number(tg__member(at, "totalTokensCharged"), item->tokens_charged, sizeof item->tokens_charged);
}

static tg_status tg__answer(const tg_client *client, size_t count, tg_answer *answer, tg_error *error) {
  const char *body = tg__object(client), *at = tg__member(body, "requestedItems");
  memset(answer, 0, sizeof *answer);
  bool granted = client->status != 403;
  snprintf(answer->advice, sizeof answer->advice, "%s", client->advice);
  bool has_id = tg__text(tg__member(body, "correlationId"), answer->correlation_id, sizeof answer->correlation_id);
  if (!has_id || at == NULL || *at != '[') return tg__unexpected(client, error);
  for (at = tg__space(at + 1); *at != ']'; at = tg__space(at + (*at == ','))) {
    tg_result *item = &answer->items[answer->count];
    if (answer->count++ == count || !tg__read_item(at, item)) return tg__unexpected(client, error);
    granted = granted && item->granted;
    at = tg__space(tg__skip(at, TG__DEPTH_MAX));
  }
  if (answer->count != count) return tg__unexpected(client, error);
  answer->granted = granted;
  return TG_OK;
}

tg_status tg_access(tg_client *client, const char *instance_id, const tg_requester *requester, const tg_item *items,
                    size_t count, tg_answer *answer, tg_error *error) {
  char path[120], text[TG_BUFFER];
  tg__writer body = {.text = text};
  if (count > TG_ITEMS_MAX) return tg__fail(error, TG_ERROR, "BODY_TOO_LARGE", TG_RETRY_NO, "More than TG_ITEMS_MAX items.");
  tg__put_request(&body, requester, items, count);
  tg__put(&body, "}");
  snprintf(path, sizeof path, "/v1.1/instances/%.64s/access-request", instance_id == NULL ? "" : instance_id);
  tg_status status = tg__call(client, "POST", path, &body, error);
  return status == TG_OK ? tg__answer(client, count, answer, error) : status;
}

tg_status tg_offers(tg_client *client, const char **json, tg_error *error) {
  tg_status status = tg__call(client, "GET", "/tallygate/v1/offers", NULL, error);
  if (status != TG_OK) return status;
  const char *instances = tg__member(*json = tg__object(client), "instances");
  return instances != NULL && *instances == '[' ? TG_OK : tg__unexpected(client, error);
}

/* Turns the agent's errors for ended sessions into TG_ENDED. */
static tg_status tg__session_call(tg_session *session, const char *method, const char *what, const tg__writer *body,
                                  tg_error *error) {
  char path[100];
  snprintf(path, sizeof path, "/v1.1/sessions/%s%s", session->id, what);
  tg_status status = tg__call(&session->client, method, path, body, error);
  bool is_unknown = status == TG_ERROR && strcmp(error->code, "NOT_FOUND") == 0;
  pthread_mutex_lock(&session->mutex);
  if (status == TG_OK && session->client.heartbeat_ms > 0) session->every_ms = session->client.heartbeat_ms;
  if (is_unknown || (status == TG_ERROR && strcmp(error->code, "SESSION_NOT_OPERABLE") == 0)) {
    const char *state = is_unknown ? "UNKNOWN" : strrchr(error->message, ' ');
    snprintf(error->state, sizeof error->state, "%s", state == NULL ? "TERMINATED" : state + (*state == ' '));
    snprintf(error->code, sizeof error->code, "SESSION_ENDED");
    if (!session->over) session->end = *error, session->ended = session->over = true;
    status = TG_ENDED;
  }
  pthread_mutex_unlock(&session->mutex);
  return status;
}

static void *tg__beat(void *argument) {
  tg_session *session = argument;
  tg_error error;
  pthread_mutex_lock(&session->mutex);
  while (!session->over) {
    struct timespec until;
    long every_ms = session->every_ms / 3; /* Two can be lost. */
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += every_ms / 1000;
    until.tv_nsec += every_ms % 1000 * 1000000;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    if (pthread_cond_timedwait(&session->wake, &session->mutex, &until) != ETIMEDOUT) continue;
    pthread_mutex_unlock(&session->mutex);
    pthread_mutex_lock(&session->turn);
    tg__session_call(session, "GET", "/heartbeat", NULL, &error);
    pthread_mutex_unlock(&session->turn);
    pthread_mutex_lock(&session->mutex);
  }
  pthread_mutex_unlock(&session->mutex);
  return NULL;
}

/* Ids become a part of paths. */
static bool tg__read_id(tg_session *session) {
  const char *value = tg__member(tg__object(&session->client), "sessionId");
  if (!tg__text(value, session->id, sizeof session->id)) return false;
  size_t length = strlen(session->id);
  const char *allowed = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz-";
  return strspn(session->id, allowed) == length && value[length + 1] == '"';
}

tg_status tg_open(tg_session *session, const char *socket, const char *instance_id, bool bound, tg_error *error) {
  char text[TG_BUFFER];
  memset(session, 0, sizeof *session);
  tg_connect(&session->client, socket);
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&session->wake, &monotonic);
  pthread_mutex_init(&session->turn, NULL);
  pthread_mutex_init(&session->mutex, NULL);
  int64_t deadline = tg__now_ms() + session->client.patience_ms;
  for (;;) {
    tg__writer body = {.text = text};
    tg__put(&body, "{\"instanceId\":");
    tg__put_string(&body, instance_id);
    tg__put(&body, "}");
    session->client.binds = bound;
    tg_status status = tg__call(&session->client, "POST", "/v1.1/sessions", &body, error);
    session->client.binds = false;
    if (status == TG_OK && !tg__read_id(session)) status = tg__unexpected(&session->client, error);
    session->every_ms = session->client.heartbeat_ms;
    if (status == TG_OK && bound && !session->client.is_first) {
      status = tg__session_call(session, "GET", "/heartbeat", NULL, error);
      session->ended = session->over = false;
      /* If the response was lost, a session bound to that connection has ended: open another. */
      if (status == TG_ENDED && tg__now_ms() < deadline) continue;
    }
    if (status != TG_OK) {
      tg_disconnect(&session->client);
      session->client.process = 0; /* So that tg_has_ended is true, and closing it sends nothing. */
      return status;
    }
    session->beats = session->every_ms > 0 && pthread_create(&session->heartbeats, NULL, tg__beat, session) == 0;
    return TG_OK;
  }
}

tg_status tg_request(tg_session *session, const tg_requester *requester, const tg_item *items, size_t count,
                     bool rollback_on_deny, tg_answer *answer, tg_error *error) {
  char text[TG_BUFFER];
  tg__writer body = {.text = text};
  if (tg__is_foreign(session, error)) return TG_ERROR;
  if (count > TG_ITEMS_MAX) return tg__fail(error, TG_ERROR, "BODY_TOO_LARGE", TG_RETRY_NO, "More than TG_ITEMS_MAX items.");
  tg__put_request(&body, requester, items, count);
  tg__put(&body, ",\"rollbackOnDeny\":%s}", rollback_on_deny ? "true" : "false");
  pthread_mutex_lock(&session->turn);
  tg_status status = tg__session_call(session, "PUT", "", &body, error);
  if (status == TG_OK) status = tg__answer(&session->client, count, answer, error);
  pthread_mutex_unlock(&session->turn);
  return status;
}

tg_status tg_session_state(tg_session *session, char state[16], tg_error *error) {
  if (tg__is_foreign(session, error)) return TG_ERROR;
  pthread_mutex_lock(&session->turn);
  tg_status status = tg__session_call(session, "GET", "", NULL, error);
  if (status == TG_OK && !tg__text(tg__member(tg__object(&session->client), "state"), state, 16))
    status = tg__unexpected(&session->client, error);
  pthread_mutex_unlock(&session->turn);
  return status;
}

bool tg_has_ended(tg_session *session, tg_error *end) {
  tg_error foreign;
  if (tg__is_foreign(session, end != NULL ? end : &foreign)) return true;
  pthread_mutex_lock(&session->mutex);
  bool ended = session->ended;
  if (ended && end != NULL) *end = session->end;
  pthread_mutex_unlock(&session->mutex);
  return ended;
}

tg_status tg_close_session(tg_session *session, tg_error *error) {
  if (tg__is_foreign(session, error)) return tg_disconnect(&session->client), TG_OK;
  pthread_mutex_lock(&session->mutex);
  bool joins = session->beats; /* Only once. */
  session->beats = false;
  session->over = true;
  pthread_cond_signal(&session->wake);
  pthread_mutex_unlock(&session->mutex);
  if (joins) pthread_join(session->heartbeats, NULL);
  pthread_mutex_lock(&session->turn);
  tg_status status = tg__session_call(session, "DELETE", "", NULL, error);
  tg_disconnect(&session->client);
  pthread_mutex_unlock(&session->turn);
  return status == TG_ENDED ? TG_OK : status;
}

#endif
