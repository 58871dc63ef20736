/* Does what the lines of its standard input say, with the client for C. See ../driver.ts. */
#define TALLYGATE_IMPLEMENTATION
#define TG_PATIENCE_MS ((unsigned)atoi(getenv("PATIENCE_MS")))
#include "tallygate.h"
#include <sys/wait.h>

static const char *instance;
static tg_client agent;
static tg_session session;
static tg_error error;

static tg_status say_answer(tg_status status, const tg_answer *answer) {
  static const char *const retries[] = {"no", "later", "online"};
  if (status != TG_OK) return status;
  const tg_result *item = &answer->items[0];
  const char *retry = item->code[0] == '1' ? "-" : retries[item->retry];
  const char *verdict = answer->granted ? "granted" : "refused";
  printf("%s %s %s %s %s\n", verdict, item->code, item->tokens_charged, retry, answer->advice);
  return TG_OK;
}

static void say_error(tg_status status) {
  static const char *const kinds[] = {
      [TG_UNREACHABLE] = "AgentUnreachable", [TG_NEEDS_CLOUD] = "NeedsCloud", [TG_LIMIT] = "LimitReached",
      [TG_ENDED] = "SessionEnded",           [TG_ERROR] = "TallygateError",
  };
  static const char *const retries[] = {"no", "later", "online"};
  const char *connections = strstr(error.message, "connections") != NULL ? " connections" : "";
  const char *variable = strstr(error.message, "TALLYGATE_SOCKET") != NULL ? " TALLYGATE_SOCKET" : "";
  const char *group = strstr(error.message, "sign in") != NULL ? " sign in" : "";
  printf("error %s %s %s%s%s%s\n", kinds[status], error.code, retries[error.retry], connections, variable, group);
}

static tg_status say_offers(void) {
  const char *json, *at;
  tg_status status = tg_offers(&agent, &json, &error);
  if (status != TG_OK) return status;
  char instance_name[64];
  tg__text(tg__member(tg__member(json, "instances") + 1, "name"), instance_name, sizeof instance_name);
  at = tg__member(tg__member(json, "instances") + 1, "items");
  for (at = tg__space(at + 1); *at == '{'; at = tg__space(at + (*at == ','))) {
    char name[64], version[64], rate[64];
    tg__text(tg__member(at, "item"), name, sizeof name);
    tg__text(tg__member(at, "version"), version, sizeof version);
    tg__number(tg__member(tg__member(at, "lineItems") + 1, "rate"), rate, sizeof rate);
    printf("offer %s %s %s %s\n", name, version, rate, instance_name);
    at = tg__space(tg__skip(at, TG__DEPTH_MAX));
  }
  return TG_OK;
}

static void *close_too(void *argument) {
  tg_error failure;
  (void)argument;
  tg_close_session(&session, &failure);
  return NULL;
}

static void run(char **words, int count);

static tg_status act(char **words, int count) {
  tg_answer answer;
  tg_requester requester = {.type = "user", .value = words[1]};
  tg_status status = TG_OK;
  if (strcmp(words[0], "access") == 0) {
    tg_item item = {.item = "LaserCut", .version = words[2], .count = atof(words[3])};
    for (int n = atoi(words[4]); n > 0 && status == TG_OK; n--)
      status = say_answer(tg_access(&agent, instance, &requester, &item, 1, &answer, &error), &answer);
  } else if (strcmp(words[0], "offers") == 0) {
    status = say_offers();
  } else if (strcmp(words[0], "open") == 0) {
    status = tg_open(&session, NULL, instance, count > 1, &error);
    if (status == TG_OK) printf("opened %s\n", session.id);
  } else if (strcmp(words[0], "request") == 0) {
    tg_item item = {.item = "LaserCut", .version = "1.0", .count = atof(words[2])};
    status = say_answer(tg_request(&session, &requester, &item, 1, true, &answer, &error), &answer);
  } else if (strcmp(words[0], "state") == 0) {
    char state[16];
    status = tg_session_state(&session, state, &error);
    if (status == TG_OK) printf("state %s\n", state);
  } else if (strcmp(words[0], "wait") == 0) {
    while (!tg_has_ended(&session, &error)) usleep(10000);
    printf("ended %s\n", error.state);
  } else if (strcmp(words[0], "close") == 0) {
    pthread_t other;
    if (count > 1) pthread_create(&other, NULL, close_too, NULL);
    status = tg_close_session(&session, &error);
    if (count > 1) pthread_join(other, NULL);
    if (status == TG_OK) puts("closed");
  } else if (strcmp(words[0], "end") == 0) {
    printf("end %s\n", tg_has_ended(&session, &error) ? error.state : "-");
  } else if (strcmp(words[0], "fork") == 0) {
    pid_t child = fork();
    if (child == 0) run(words + 1, count - 1), _exit(0);
    waitpid(child, NULL, 0);
  }
  return status;
}

static void run(char **words, int count) {
  tg_status status = act(words, count);
  if (status != TG_OK) say_error(status);
}

int main(void) {
  char line[256];
  setvbuf(stdout, NULL, _IOLBF, 0);
  instance = getenv("INSTANCE");
  tg_connect(&agent, NULL);
  while (fgets(line, sizeof line, stdin) != NULL) {
    char *words[8] = {NULL};
    int count = 0;
    for (char *word = strtok(line, " \n"); word != NULL && count < 8; word = strtok(NULL, " \n")) words[count++] = word;
    run(words, count);
    puts("done");
  }
  return 0;
}
