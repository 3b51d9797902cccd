/* A small Internet in one process: hosts with access lines of a given rate, delay and queue, joined in the middle.
 *
 *   emulator QUEUE_MS  UP_MBIT DOWN_MBIT DELAY_MS  [UP_MBIT DOWN_MBIT DELAY_MS ...]
 *
 * Each host is a network namespace of its own without a name, with loopback and one TUN device `wan0`; host K (from 0)
 * has the address 10.77.0.(K+1). A packet waits in the queue of the sender's line (and is dropped if it would wait
 * longer than QUEUE_MS), passes it at its rate, travels for half the sum of both hosts' DELAY_MS, and does the same on
 * the receiver's line. A rate of 0 is unlimited.
 *
 * First it prints one line with the file descriptor of each namespace, to be entered through /proc/PID/fd. Then it
 * answers each line of standard input by one line:
 *
 *   bytes      the bytes of IP packets that each host has sent, received, and lost, three numbers for each
 *   cut K      nothing passes host K's line any more, as if it were unplugged; what is queued there is lost
 *   restore K  it does again
 *
 * It ends when standard input closes. Namespaces and devices have no other owner, so nothing is left behind.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_HOSTS 64
#define NETWORK 0x0a4d0000u /* 10.77.0.0 */
#define HEADER ((int)sizeof(struct virtio_net_hdr))
#define SEGMENT_HEADERS 52 /* IPv4 and TCP with timestamps: what each segment of a large packet repeats */
#define MILLISECOND 1000000LL
#define PATIENCE MILLISECOND /* wakes at most once in a millisecond: what is due together goes together */
#define BATCH 64

struct packet {
    struct packet *next;
    int64_t due;
    int receiver, wire_bytes, length;
    unsigned char data[];
};

struct queue { struct packet *first, *last; };

struct line {
    double nanoseconds_per_byte;
    int64_t free_at;
    struct queue packets; /* on the line or on their way behind it, in the order of `due` */
};

struct host {
    int device, namespace;
    struct line up, down;
    int64_t half_delay;
    uint64_t sent, received, lost;
    int is_cut;
};

static struct host hosts[MAX_HOSTS];
static int host_count;
static int64_t longest_wait;

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static void bring_up(int control, struct ifreq *request) {
    int known = ioctl(control, SIOCGIFFLAGS, request);
    request->ifr_flags |= IFF_UP;
    if (known < 0 || ioctl(control, SIOCSIFFLAGS, request) < 0) fail("bringing a device up");
}

static void set_address(int control, struct ifreq *request, unsigned long what, uint32_t address) {
    struct sockaddr_in value = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(address)};
    memcpy(&request->ifr_addr, &value, sizeof value);
    if (ioctl(control, what, request) < 0) fail("setting the address of wan0");
}

/* The TUN device takes and gives whole TCP bursts (up to 64 KB) with checksums left open: a tenth of the work. */
static int open_device(int control, uint32_t address) {
    int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (device < 0) fail("/dev/net/tun");
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR};
    strcpy(request.ifr_name, "wan0");
    if (ioctl(device, TUNSETIFF, &request) < 0) fail("TUNSETIFF");
    int header = HEADER;
    if (ioctl(device, TUNSETVNETHDRSZ, &header) < 0 || ioctl(device, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4) < 0)
        fail("TUNSETOFFLOAD");
    set_address(control, &request, SIOCSIFADDR, address);
    set_address(control, &request, SIOCSIFNETMASK, 0xffffff00u);
    request.ifr_qlen = 1000;
    if (ioctl(control, SIOCSIFTXQLEN, &request) < 0) fail("SIOCSIFTXQLEN");
    bring_up(control, &request);
    return device;
}

static void make_host(struct host *host, uint32_t address) {
    if (unshare(CLONE_NEWNET) < 0) fail("a new network namespace");
    host->namespace = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    int control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (host->namespace < 0 || control < 0) fail("a new network namespace");
    struct ifreq loopback = {.ifr_name = "lo"};
    bring_up(control, &loopback);
    host->device = open_device(control, address);
    close(control);
}

static void append(struct queue *queue, struct packet *packet) {
    packet->next = NULL;
    if (queue->last) queue->last->next = packet;
    else queue->first = packet;
    queue->last = packet;
}

static struct packet *take_first(struct queue *queue) {
    struct packet *packet = queue->first;
    queue->first = packet->next;
    if (!queue->first) queue->last = NULL;
    return packet;
}

static void lose(struct packet *packet, struct host *host) {
    host->lost += packet->wire_bytes;
    free(packet);
}

/* When a packet that comes to a line at `arrival` has passed it; -1 if its queue is full. */
static int64_t pass(struct line *line, int64_t arrival, int bytes) {
    if (line->nanoseconds_per_byte == 0) return arrival;
    int64_t begin = line->free_at > arrival ? line->free_at : arrival;
    if (begin - arrival > longest_wait) return -1;
    line->free_at = begin + (int64_t)(line->nanoseconds_per_byte * bytes);
    return line->free_at;
}

/* One packet from a host onto its line; 0 if there is none. */
static int take_in(struct host *host) {
    static unsigned char data[HEADER + 65536];
    int length = read(host->device, data, sizeof data);
    if (length <= 0) return 0;
    if (length < HEADER + 20 || data[HEADER] >> 4 != 4) return 1; /* not IPv4 */
    struct virtio_net_hdr header;
    uint32_t address;
    memcpy(&header, data, HEADER);
    memcpy(&address, data + HEADER + 16, 4);
    int64_t receiver = (int64_t)ntohl(address) - NETWORK - 1;
    if (receiver < 0 || receiver >= host_count) return 1;
    int bytes = length - HEADER;
    if (header.gso_type != VIRTIO_NET_HDR_GSO_NONE && header.gso_size)
        bytes += (bytes - 1) / header.gso_size * SEGMENT_HEADERS;
    int64_t passed = host->is_cut ? -1 : pass(&host->up, now(), bytes);
    if (passed < 0) {
        host->lost += bytes;
        return 1;
    }
    struct packet *packet = malloc(sizeof *packet + length);
    if (!packet) fail("memory for a packet");
    packet->due = passed + host->half_delay;
    packet->receiver = receiver;
    packet->wire_bytes = bytes;
    packet->length = length;
    memcpy(packet->data, data, length);
    append(&host->up.packets, packet);
    host->sent += bytes;
    return 1;
}

/* Move what is due on a host's outgoing line to its receiver's. */
static void carry(struct host *host, int64_t time) {
    while (host->up.packets.first && host->up.packets.first->due <= time) {
        struct packet *packet = take_first(&host->up.packets);
        struct host *receiver = &hosts[packet->receiver];
        int64_t arrival = packet->due + receiver->half_delay;
        int64_t passed = receiver->is_cut ? -1 : pass(&receiver->down, arrival, packet->wire_bytes);
        packet->due = passed;
        if (passed < 0) lose(packet, receiver);
        else append(&receiver->down.packets, packet);
    }
}

static void deliver(struct host *host, int64_t time) {
    while (host->down.packets.first && host->down.packets.first->due <= time) {
        struct packet *packet = take_first(&host->down.packets);
        int written = write(host->device, packet->data, packet->length);
        *(written < 0 ? &host->lost : &host->received) += packet->wire_bytes;
        free(packet);
    }
}

static int64_t next_due(void) {
    int64_t next = INT64_MAX;
    for (int i = 0; i < host_count; i++) {
        struct packet *up = hosts[i].up.packets.first, *down = hosts[i].down.packets.first;
        if (up && up->due < next) next = up->due;
        if (down && down->due < next) next = down->due;
    }
    return next;
}

static void cut(struct host *host) {
    host->is_cut = 1;
    while (host->up.packets.first) lose(take_first(&host->up.packets), host);
    while (host->down.packets.first) lose(take_first(&host->down.packets), host);
    host->up.free_at = host->down.free_at = 0;
}

static void answer(const char *command) {
    int number;
    if (strcmp(command, "bytes") == 0) {
        for (struct host *host = hosts; host < hosts + host_count; host++)
            printf("%" PRIu64 " %" PRIu64 " %" PRIu64 " ", host->sent, host->received, host->lost);
        printf("\n");
    } else if (sscanf(command, "cut %d", &number) == 1 && number >= 0 && number < host_count) {
        cut(&hosts[number]);
        printf("ok\n");
    } else if (sscanf(command, "restore %d", &number) == 1 && number >= 0 && number < host_count) {
        hosts[number].is_cut = 0;
        printf("ok\n");
    } else {
        printf("unknown command\n");
    }
    fflush(stdout);
}

/* Answer the whole lines that have come; 0 once standard input is closed. */
static int listen_to_commands(void) {
    static char text[256];
    static size_t length;
    ssize_t added = read(0, text + length, sizeof text - 1 - length);
    if (added <= 0) return 0;
    length += added;
    char *end;
    while ((end = memchr(text, '\n', length))) {
        *end = 0;
        answer(text);
        length -= end + 1 - text;
        memmove(text, end + 1, length);
    }
    return length < sizeof text - 1;
}

int main(int count, char **arguments) {
    if (count < 5 || (count - 2) % 3 || (count - 2) / 3 > MAX_HOSTS) {
        fprintf(stderr, "usage: emulator QUEUE_MS UP_MBIT DOWN_MBIT DELAY_MS [UP_MBIT DOWN_MBIT DELAY_MS ...]\n");
        return 2;
    }
    longest_wait = atof(arguments[1]) * MILLISECOND;
    host_count = (count - 2) / 3;
    for (int i = 0; i < host_count; i++) {
        double up = atof(arguments[2 + 3 * i]), down = atof(arguments[3 + 3 * i]);
        hosts[i].up.nanoseconds_per_byte = up > 0 ? 8000 / up : 0;
        hosts[i].down.nanoseconds_per_byte = down > 0 ? 8000 / down : 0;
        hosts[i].half_delay = atof(arguments[4 + 3 * i]) * MILLISECOND / 2;
        make_host(&hosts[i], NETWORK + 1 + i);
        printf("%d ", hosts[i].namespace);
    }
    /* A busy machine must not slow the network down. Where this is not allowed it works all the same. */
    struct sched_param priority = {.sched_priority = 1};
    sched_setscheduler(0, SCHED_RR, &priority);
    prctl(PR_SET_TIMERSLACK, 1);
    printf("\n");
    fflush(stdout);

    struct pollfd sources[MAX_HOSTS + 1] = {{.fd = 0, .events = POLLIN}};
    for (int i = 0; i < host_count; i++) sources[i + 1] = (struct pollfd){.fd = hosts[i].device, .events = POLLIN};
    for (;;) {
        int64_t time = now();
        for (int i = 0; i < host_count; i++) carry(&hosts[i], time);
        for (int i = 0; i < host_count; i++) deliver(&hosts[i], time);
        int64_t next = next_due(), wait = next - now();
        wait = wait <= 0 ? 0 : wait < PATIENCE ? PATIENCE : wait;
        struct timespec timeout = {wait / 1000000000LL, wait % 1000000000LL};
        if (ppoll(sources, host_count + 1, next == INT64_MAX ? NULL : &timeout, NULL) <= 0) continue;
        if (sources[0].revents && !listen_to_commands()) return 0;
        for (int i = 0; i < host_count; i++)
            for (int k = 0; sources[i + 1].revents & POLLIN && k < BATCH && take_in(&hosts[i]); k++) {}
    }
}
