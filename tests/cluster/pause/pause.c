// The first process of every pod: holds its namespaces and reaps what is left over.
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) {
    (void) signal;
    _exit(0);
}

static void reap(int signal) {
    (void) signal;
    while (waitpid(-1, NULL, WNOHANG) > 0) {}
}

int main(void) {
    signal(SIGTERM, end);
    signal(SIGINT, end);
    signal(SIGCHLD, reap);
    for (;;) pause();
}
