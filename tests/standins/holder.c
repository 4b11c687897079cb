/* gpu-holder: a process that holds GPU device nodes, and is as awkward about it as its options say.
 * It waits in sigtimedwait(): every signal that can be caught is seen, with its sender, and none but SIGTERM ends it.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX 64
#define STORM 24

static struct {
    int gpus[MAX], gpu_count, memory_gpus[MAX], memory_count;
    unsigned long long memory[MAX];
    int ctl, uvm, setsid, daemonize, ignore_term, leader_exits, fork_storm, port;
    long term_delay_ms;
    double seconds;
    const char *map, *title, *signals, *pidfile;
} wanted;

static int signals_fd = -1;

static void die(const char *what)
{
    fprintf(stderr, "gpu-holder: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static int hold(const char *path)
{
    int fd = open(path, O_RDWR | O_NOCTTY);
    if (fd < 0)
        die(path);
    return fd;
}

/* A whole file in one step, so that nobody reads half of it. */
static void put(const char *path, const char *format, ...)
{
    char scratch[4096];
    snprintf(scratch, sizeof scratch, "%s.%d", path, (int)getpid());
    FILE *file = fopen(scratch, "we");
    if (!file)
        die(scratch);
    va_list arguments;
    va_start(arguments, format);
    vfprintf(file, format, arguments);
    va_end(arguments);
    if (fclose(file) || rename(scratch, path))
        die(path);
}

static unsigned long long start_ticks(void)
{
    char text[1024];
    unsigned long long ticks = 0;
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    text[length > 0 ? length : 0] = 0;
    char *rest = strrchr(text, ')');
    if (!rest || sscanf(rest + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                        &ticks) != 1)
        die("/proc/self/stat");
    return ticks;
}

static void record_memory(void)
{
    char path[512], text[MAX * 48] = "";
    const char *folder = getenv("NVML_STANDIN_DIR");
    if (!wanted.memory_count)
        return;
    for (int i = 0; i < wanted.memory_count; i++)
        sprintf(text + strlen(text), "%d %llu\n", wanted.memory_gpus[i], wanted.memory[i]);
    snprintf(path, sizeof path, "%s/alloc/%d.%llu", folder && *folder ? folder : "/var/lib/nvml-standin",
             (int)getpid(), start_ticks());
    put(path, "%s", text);
}

static void open_nodes(void)
{
    char path[64];
    for (int i = 0; i < wanted.gpu_count; i++) {
        snprintf(path, sizeof path, "/dev/nvidia%d", wanted.gpus[i]);
        hold(path);
    }
    if (wanted.ctl)
        hold("/dev/nvidiactl");
    if (wanted.uvm)
        hold("/dev/nvidia-uvm");
    if (wanted.map) {
        int fd = hold(wanted.map);
        if (mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0) == MAP_FAILED)
            die(wanted.map);
        close(fd);
    }
}

static void set_title(int argc, char **argv)
{
    if (!wanted.title)
        return;
    char *title = strdup(wanted.title), *start = argv[0];
    size_t room = (size_t)(argv[argc - 1] + strlen(argv[argc - 1]) - start);
    prctl(PR_SET_NAME, title);
    memset(start, 0, room);
    strncpy(start, title, room);
    free(title);
}

static void daemonize(void)
{
    if (fork())
        _exit(0);
    setsid();
    if (fork())
        _exit(0);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd < 3; fd++)
        dup2(null, fd);
    close(null);
}

/* Answer every request "ok" for as long as the process lives. */
static void *serve(void *argument)
{
    static const char reply[] = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n";
    int listener = *(int *)argument;
    char request[4096];
    for (;;) {
        int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (client < 0)
            continue;
        if (read(client, request, sizeof request) > 0 && send(client, reply, sizeof reply - 1, MSG_NOSIGNAL) < 0) {
            /* a client that is gone */
        }
        close(client);
    }
    return NULL;
}

static void listen_on(int port)
{
    static int listener;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    pthread_t thread;
    int yes = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 64))
        die("listen");
    pthread_create(&thread, NULL, serve, &listener);
}

static void note(const siginfo_t *info)
{
    if (signals_fd >= 0)
        dprintf(signals_fd, "%d %d\n", info->si_signo, (int)info->si_pid);
}

static void block_signals(void)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
}

/* True when it is time to go: SIGTERM (now or after its delay) or the end of --seconds; false when a child died. */
static int time_to_go(double end)
{
    sigset_t all;
    siginfo_t info;
    sigfillset(&all);
    for (;;) {
        double left = end > 0 ? end - now() : 3600;
        if (left <= 0)
            return 1;
        struct timespec time = {(time_t)left, (long)((left - (double)(time_t)left) * 1e9)};
        if (sigtimedwait(&all, &info, &time) < 0)
            continue;
        if (info.si_signo == SIGCHLD)
            return 0;
        note(&info);
        if (info.si_signo != SIGTERM || wanted.ignore_term)
            continue;
        if (!wanted.term_delay_ms)
            return 1;
        end = now() + (double)wanted.term_delay_ms / 1000;
    }
}

static int born(void)
{
    pid_t child = fork();
    if (child)
        return child > 0;
    while (!time_to_go(0)) { }
    _exit(0);
}

/* Keeps a crowd of children: for each one that is killed there is soon another. */
static void storm(double end)
{
    for (int alive = 0;;) {
        while (alive < STORM && born())
            alive++;
        if (time_to_go(end))
            return;
        while (waitpid(-1, NULL, WNOHANG) > 0)
            alive--;
    }
}

static void *stay(void *argument)
{
    double end = *(double *)argument;
    if (wanted.fork_storm)
        storm(end);
    else
        while (!time_to_go(end)) { }
    exit(0);
}

static void add_memory(const char *text)
{
    int i = wanted.memory_count++;
    if (i >= MAX || sscanf(text, "%d=%llu", &wanted.memory_gpus[i], &wanted.memory[i]) != 2) {
        fprintf(stderr, "gpu-holder: --memory wants GPU=BYTES\n");
        exit(2);
    }
}

static const struct option OPTIONS[] = {
    {"gpu", 1, 0, 'g'}, {"ctl", 0, &wanted.ctl, 1}, {"uvm", 0, &wanted.uvm, 1}, {"memory", 1, 0, 'm'},
    {"map", 1, 0, 'M'}, {"setsid", 0, &wanted.setsid, 1}, {"daemonize", 0, &wanted.daemonize, 1},
    {"title", 1, 0, 't'}, {"ignore-term", 0, &wanted.ignore_term, 1}, {"term-delay", 1, 0, 'd'},
    {"signals", 1, 0, 's'}, {"pidfile", 1, 0, 'p'}, {"leader-exits", 0, &wanted.leader_exits, 1},
    {"fork-storm", 0, &wanted.fork_storm, 1}, {"listen", 1, 0, 'l'}, {"seconds", 1, 0, 'S'}, {0, 0, 0, 0}};

static void read_option(int option)
{
    switch (option) {
    case 0: break;
    case 'g': wanted.gpus[wanted.gpu_count++ % MAX] = atoi(optarg); break;
    case 'm': add_memory(optarg); break;
    case 'M': wanted.map = strdup(optarg); break;
    case 't': wanted.title = strdup(optarg); break;
    case 'd': wanted.term_delay_ms = atol(optarg); break;
    case 's': wanted.signals = strdup(optarg); break;
    case 'p': wanted.pidfile = strdup(optarg); break;
    case 'l': wanted.port = atoi(optarg); break;
    case 'S': wanted.seconds = atof(optarg); break;
    default: exit(2);
    }
}

int main(int argc, char **argv)
{
    static double end;
    for (int option; (option = getopt_long(argc, argv, "", OPTIONS, NULL)) != -1;)
        read_option(option);
    if (wanted.setsid)
        setsid();
    if (wanted.daemonize)
        daemonize();
    block_signals();
    open_nodes();
    if (wanted.signals && (signals_fd = open(wanted.signals, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) < 0)
        die(wanted.signals);
    set_title(argc, argv);
    record_memory();
    if (wanted.port)
        listen_on(wanted.port);
    if (wanted.pidfile)
        put(wanted.pidfile, "%d\n", (int)getpid());
    end = wanted.seconds > 0 ? now() + wanted.seconds : 0;
    if (wanted.leader_exits) {
        pthread_t thread;
        pthread_create(&thread, NULL, stay, &end);
        pthread_exit(NULL);
    }
    stay(&end);
}
