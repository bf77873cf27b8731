/* A wall clock that a test can set: preloaded, it adds the seconds in the file $WALL_CLOCK. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long step(void)
{
    static volatile long *seconds;

    if (!seconds) {
        const char *name = getenv("WALL_CLOCK");
        int fd = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
        void *found = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, fd, 0);

        close(fd);
        if (found == MAP_FAILED)
            return 0;
        seconds = found;
    }
    return *seconds;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = syscall(SYS_clock_gettime, clock, now);

    if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += step();
    return result;
}

int gettimeofday(struct timeval *now, void *zone)
{
    int result = syscall(SYS_gettimeofday, now, zone);

    if (!result && now)
        now->tv_sec += step();
    return result;
}

time_t time(time_t *now)
{
    struct timespec found;

    clock_gettime(CLOCK_REALTIME, &found);
    if (now)
        *now = found.tv_sec;
    return found.tv_sec;
}
