// Connections that lead through a proxy: one to a port that the file LINKS names goes to the port beside it, on this machine.
// Loaded before the C library (LD_PRELOAD) into a process whose links a test cuts.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

static in_port_t proxied(in_port_t port) {
    const char *name = getenv("LINKS");
    FILE *links = name ? fopen(name, "re") : NULL;
    unsigned to, by;
    if (!links)
        return port;
    while (fscanf(links, "%u %u", &to, &by) == 2) {
        if (ntohs(port) == to) {
            port = htons((in_port_t)by);
            break;
        }
    }
    fclose(links);
    return port;
}

int connect(int socket, const struct sockaddr *address, socklen_t length) {
    int (*real)(int, const struct sockaddr *, socklen_t) =
        (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "connect");
    if (address->sa_family != AF_INET || length < sizeof(struct sockaddr_in))
        return real(socket, address, length);
    struct sockaddr_in other = *(const struct sockaddr_in *)address;
    other.sin_port = proxied(other.sin_port);
    return real(socket, (const struct sockaddr *)&other, sizeof other);
}
