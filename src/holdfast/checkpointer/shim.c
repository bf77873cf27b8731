/* Loaded into CRIU with `ld.so --preload`: a ptrace(2) that works inside a session's namespaces.
 *
 * Seccomp. To suspend or to read a filter, the kernel wants CAP_SYS_ADMIN of the machine, which
 * CRIU does not have in a user namespace. The session's own filter does not hinder CRIU's code in
 * the saved processes, and it is known: so CRIU is told that there is none to suspend or to read.
 * The caller must check that no thread has another filter.
 *
 * poll(2). CRIU saves a process that waits in poll as interrupted (EINTR), even one that is left
 * running: `tail -f` ends by that. With ERESTARTNOHAND the process calls poll again, with its whole
 * timeout. On aarch64 there is no such call.
 *
 * Halted sessions. A frozen control group must be thawed for the dump, once all processes are
 * seized. HOLDFAST_FREEZERS has the descriptors of the files `cgroup.freeze`, one character for
 * each. The groups are frozen again before CRIU detaches from a process: so no process runs an
 * instruction in between, also if the dump fails. CRIU sends a stop signal to a process that was
 * stopped before. The kernel keeps such a process stopped without that. In a frozen group the
 * signal would stay pending, and the next dump would wait for it: so it is not sent.
 *
 * Pipes. CRIU takes memory out of the saved processes by pipes. If the account has about a thousand
 * pipes, the kernel makes only tiny ones for a process without CAP_SYS_RESOURCE of the machine, and
 * the dump takes ten times as long. HOLDFAST_PIPES has large pipes that were made outside, two
 * descriptors for each. CRIU has at most eight in use. At a restore the pipes are the program's.
 * The kernel then refuses to make one as large as it was: the pipe stays small. CRIU puts back the
 * content afterwards, which fails if the content does not fit.
 *
 * Images of memory. The checkpointer has reserved room beyond the end of empty files (room.py). The
 * kernel would release it if CRIU opened them with O_TRUNC.
 *
 * The terminal. A process gets its controlling terminal from its parent, and only a session leader
 * can take one. CRIU takes the terminal in the leader when it has forked all processes: too late
 * for the children. With HOLDFAST_TERMINAL the restored leader, process 3, takes it within setsid.
 * The value is the lowest number for the descriptor of the master, which is kept until CRIU has
 * opened the master: CRIU gets this one. Children close it. HOLDFAST_FOREGROUND is the group in the
 * foreground, which CRIU forgets if the image has several descriptions of the terminal.
 */
#if defined(__x86_64__)
enum { PTRACE = 101, WRITE = 1, DUP = 32, PIPE2 = 293, KILL = 62, POLL = 7 };
enum { OPENAT = 257, CLOSE = 3, FCNTL = 72, IOCTL = 16, GETPID = 39, SETSID = 112, KCMP = 312 };
enum { RESULT = 10, NUMBER = 15 }; /* places in user_regs_struct */
static long call(long number, long request, long pid, long address, long data)
{
    long result;
    register long r10 __asm__("r10") = data;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(request), "S"(pid), "d"(address),
                     "r"(r10) : "rcx", "r11", "memory");
    return result;
}
#elif defined(__aarch64__)
enum { PTRACE = 117, WRITE = 64, DUP = 23, PIPE2 = 59, KILL = 129 };
enum { OPENAT = 56, CLOSE = 57, FCNTL = 25, IOCTL = 29, GETPID = 172, SETSID = 157, KCMP = 272 };
static long call(long number, long request, long pid, long address, long data)
{
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = request, x1 __asm__("x1") = pid;
    register long x2 __asm__("x2") = address, x3 __asm__("x3") = data;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
    return x0;
}
#endif
enum { PEEK_FIRST = 1, PEEK_LAST = 3, GETREGS = 12, DETACH = 17, SETOPTIONS = 0x4200 };
enum { GETREGSET = 0x4204, SEIZE = 0x4206, GET_FILTER = 0x420c, PRSTATUS = 1 };
enum { SUSPEND_SECCOMP = 1 << 21 };
enum { FIRST_STOP = 19, LAST_STOP = 22 };
enum { EPERM = 1, ENOENT = 2, EACCES = 13, ERESTARTNOHAND = 514, ERESTART_RESTARTBLOCK = 516 };

enum { SETPIPE_SZ = 1031, GETPIPE_SZ = 1032, DUPFD_CLOEXEC = 1030, KCMP_FILES = 2 };
enum { SPGRP = 0x5410, GPTN = 0x80045430, GPTPEER = 0x5441, SPTLCK = 0x40045431 };
enum { PROGRAM = 3, CWD = -100, RDWR = 2, NOCTTY = 0400, TRUNC = 01000 };

extern int *__errno_location(void);
extern char *getenv(const char *name);

static int seized;

static const char *freezers(void)
{
    const char *found = seized ? getenv("HOLDFAST_FREEZERS") : 0;

    return found ? found : "";
}

static long answer(long result)
{
    if (result >= 0)
        return result;
    *__errno_location() = -result;
    return -1;
}

static int failed(long result)
{
    return answer(result) < 0 ? -1 : 0;
}

static int master = -1; /* of the terminal, in the restored leader */
static int given;       /* to CRIU, which opens masters until one has the wanted index */

static long number_in(const char *name)
{
    const char *digit = getenv(name);
    long number = 0;

    while (digit && *digit)
        number = number * 10 + *digit++ - '0';
    return number;
}

int setsid(void)
{
    long session = call(SETSID, 0, 0, 0, 0), number, made, slave;
    int unlocked = 0;

    number = session == PROGRAM ? number_in("HOLDFAST_TERMINAL") : 0;
    if (!number)
        return answer(session);
    made = call(OPENAT, CWD, (long)"/dev/pts/ptmx", RDWR | NOCTTY, 0);
    if (made < 0)
        return answer(session);
    master = call(FCNTL, made, DUPFD_CLOEXEC, number, 0);
    call(CLOSE, made, 0, 0, 0);
    if (master < 0)
        return answer(session);
    call(IOCTL, master, SPTLCK, (long)&unlocked, 0);
    slave = call(IOCTL, master, GPTPEER, RDWR, 0); /* takes it as the controlling terminal */
    if (slave >= 0)
        call(CLOSE, slave, 0, 0, 0);
    return answer(session);
}

/* CRIU calls it first in each process that it has forked. */
int getpid(void)
{
    int pid = call(GETPID, 0, 0, 0, 0);

    if (master >= 0 && pid != PROGRAM) {
        if (call(KCMP, pid, PROGRAM, KCMP_FILES, 0)) /* the table of descriptors is not shared */
            call(CLOSE, master, 0, 0, 0);
        master = -1;
    }
    return pid;
}

static int begins(const char *text, const char *with)
{
    while (*with)
        if (*text++ != *with++)
            return 0;
    return 1;
}

int openat64(int directory, const char *path, int flags, int mode)
{
    unsigned length = 0;

    if (master >= 0 && !given) {
        while (path[length])
            length++;
        if (length >= 4 && path[length - 4] == 'p' && path[length - 3] == 't' &&
            path[length - 2] == 'm' && path[length - 1] == 'x') {
            given = 1;
            return answer(call(DUP, master, 0, 0, 0));
        }
    }
    if (begins(path, "pages-"))
        flags &= ~TRUNC;
    return answer(call(OPENAT, directory, (long)path, flags, mode));
}

int ioctl(int fd, unsigned long request, void *argument)
{
    long result = call(IOCTL, fd, request, (long)argument, 0);

    unsigned index;
    int group;

    if (request == SPTLCK)
        given = 0;
    if (request == SPTLCK && master >= 0 && !call(IOCTL, fd, GPTN, (long)&index, 0) && !index) {
        group = number_in("HOLDFAST_FOREGROUND");
        call(IOCTL, fd, SPGRP, (long)&group, 0);
        call(CLOSE, master, 0, 0, 0);
        master = -1;
    }
    return answer(result);
}

int fcntl64(int fd, int command, long argument)
{
    long result = call(FCNTL, fd, command, argument, 0);

    if (command == SETPIPE_SZ && result == -EPERM && !seized)
        result = call(FCNTL, fd, GETPIPE_SZ, 0, 0);
    return answer(result);
}

/* The same functions, as other builds of CRIU call them. */
int openat(int, const char *, int, int) __attribute__((alias("openat64")));
int __openat64_2(int, const char *, int, int) __attribute__((alias("openat64")));
int __openat_2(int, const char *, int, int) __attribute__((alias("openat64")));
int fcntl(int, int, long) __attribute__((alias("fcntl64")));

int pipe(int ends[2])
{
    static unsigned used;
    const char *made = getenv("HOLDFAST_PIPES");
    unsigned length = 0;

    while (made && made[length])
        length++;
    if (length < 2)
        return failed(call(PIPE2, (long)ends, 0, 0, 0));
    for (int end = 0; end < 2; end++)
        ends[end] = call(DUP, (unsigned char)made[used++ % length], 0, 0, 0);
    return failed(ends[0] < 0 ? ends[0] : ends[1]);
}

int kill(int pid, int number)
{
    long result = 0;

    if (number < FIRST_STOP || number > LAST_STOP || !*freezers())
        result = call(KILL, pid, number, 0, 0);
    return failed(result);
}

long ptrace(long request, long pid, long address, long data)
{
    int peek = request >= PEEK_FIRST && request <= PEEK_LAST;
    long word = 0, result;

    if (request == DETACH)
        for (const char *fd = freezers(); *fd; fd++)
            call(WRITE, (unsigned char)*fd, (long)"1", 1, 0);
    result = call(PTRACE, request, pid, address, peek ? (long)&word : data);
    if (request == SEIZE)
        seized = 1;
    if ((request == SETOPTIONS || request == SEIZE) && result == -EPERM && (data & SUSPEND_SECCOMP))
        result = call(PTRACE, request, pid, address, data & ~(long)SUSPEND_SECCOMP);
    if (request == GET_FILTER && (result == -EPERM || result == -EACCES))
        result = -ENOENT;
#if defined(__x86_64__)
    if (result == 0 && (request == GETREGS || (request == GETREGSET && address == PRSTATUS))) {
        long *registers = request == GETREGS ? (long *)data : *(long **)data;
        if (registers[NUMBER] == POLL && registers[RESULT] == -ERESTART_RESTARTBLOCK)
            registers[RESULT] = -ERESTARTNOHAND;
    }
#endif
    if (result < 0) {
        *__errno_location() = -result;
        return -1;
    }
    return peek ? word : result;
}
