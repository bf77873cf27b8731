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
 * Vector registers of aarch64. CRIU saves 128 bits of each, and its code in a saved process makes the
 * kernel forget the rest: longer registers and predicates (SVE). A program that has something there
 * would go on with wrong values, also one that is left running. So the dump fails before CRIU runs
 * code in it. During a system call nothing is there.
 *
 * Halted sessions. A frozen control group must be thawed for the dump, once all processes are
 * seized. HOLDFAST_FREEZERS has the descriptors of the files `cgroup.freeze`, one character for
 * each. The groups are frozen again before CRIU detaches from a process: so no process runs an
 * instruction in between, also if the dump fails.
 *
 * Stopped processes. After a dump CRIU sends a stop signal to a process that was stopped before.
 * The kernel keeps such a process stopped without that, and the signal would stay pending: the next
 * dump would wait for it, or fail. So it is not sent in frozen groups, and with HOLDFAST_NO_STOPS in
 * plain sessions. Process 1 of a contained session copes with the signal. A process whose stop
 * signal was still pending at the seizure gets it in any case: CRIU has taken that signal away.
 * CRIU gives up at a job that SIGTTIN or SIGTTOU has stopped: it is told SIGSTOP instead.
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
 * Mapped files without a name. Only the machine's root may open an entry of /proc/PID/map_files.
 * HOLDFAST_OPENER has a socket to a process with that right (mapped_files.py): CRIU sends the
 * directory and the name of the entry, and gets the file, if it is a deleted one. Other files are
 * found by their names.
 *
 * Orphans. CRIU makes hf-root a subreaper at the end of a restore. Processes whose session leader
 * has ended lose their first parent before that, and process 1 would adopt them: the next
 * checkpoint would not find them. With HOLDFAST_ROOT this process is a subreaper from its start.
 *
 * The terminal. A process gets its controlling terminal from its parent, and only a session leader
 * can take one. CRIU takes the terminal in the leader when it has forked all processes: too late
 * for the children. With HOLDFAST_TERMINAL the restored leader, process HOLDFAST_PROGRAM, takes it
 * within setsid. The value is the lowest number for the descriptor of the master, which is kept
 * until CRIU has opened the master: CRIU gets this one. Children close it. HOLDFAST_FOREGROUND is
 * the group in the foreground, which CRIU forgets if the image has several descriptions of the
 * terminal. The leader makes the terminal.
 *
 * Terminals of the machine. Other programs open terminals at any time, and CRIU opens masters until
 * one has the wanted index. So process HOLDFAST_STARTER has opened all masters of the session.
 * HOLDFAST_MASTERS has its descriptors, one character for each, in the order of their indexes: CRIU
 * gets these in turn. HOLDFAST_MASTER is the descriptor of the leader's own.
 */
#if defined(__x86_64__)
enum { PTRACE = 101, WRITE = 1, DUP = 32, PIPE2 = 293, KILL = 62, POLL = 7 };
enum { OPENAT = 257, CLOSE = 3, FCNTL = 72, IOCTL = 16, GETPID = 39, SETSID = 112, KCMP = 312 };
enum { SENDMSG = 46, RECVMSG = 47, PRCTL = 157 };
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
enum { SENDMSG = 211, RECVMSG = 212, PRCTL = 167 };
enum { SVE = 0x405, SVE_IN_USE = 1, EBUSY = 16 };
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
enum { GETSIGINFO = 0x4202, EVENT_STOP = 128 };
enum { FIRST_STOP = 19, LAST_STOP = 22, SIGSTOP = 19, SIGTTIN = 21, PIDS = 1 << 22 };
enum { EPERM = 1, ENOENT = 2, EACCES = 13, ERESTARTNOHAND = 514, ERESTART_RESTARTBLOCK = 516 };

enum { SETFL = 4, SETPIPE_SZ = 1031, GETPIPE_SZ = 1032, DUPFD_CLOEXEC = 1030, KCMP_FILES = 2 };
enum { SPGRP = 0x5410, GPTN = 0x80045430, GPTPEER = 0x5441, SPTLCK = 0x40045431 };
enum { PIDFD_OPEN = 434, PIDFD_GETFD = 438, OPENS = -5000 };
enum { CWD = -100, RDWR = 2, NOCTTY = 0400, TRUNC = 01000 };
enum { SOCKET = 1, RIGHTS = 1, CMSG_CLOEXEC = 0x40000000, SUBREAPER = 36 };

extern int *__errno_location(void);
extern char *getenv(const char *name);

static int seized;
static unsigned char stopped[PIDS / 8]; /* one bit for each process that was stopped before */

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
static int given;       /* masters given to CRIU, which opens them until one has the wanted index */

static long number_in(const char *name)
{
    const char *digit = getenv(name);
    long number = 0;

    while (digit && *digit)
        number = number * 10 + *digit++ - '0';
    return number;
}

static long fetched(long starter, long descriptor)
{
    long process = call(PIDFD_OPEN, starter, 0, 0, 0), made;

    if (process < 0)
        return process;
    made = call(PIDFD_GETFD, process, descriptor, 0, 0);
    call(CLOSE, process, 0, 0, 0);
    return made;
}

static long own_master(void)
{
    long starter = number_in("HOLDFAST_STARTER");

    if (starter)
        return fetched(starter, number_in("HOLDFAST_MASTER"));
    return call(OPENAT, CWD, (long)"/dev/pts/ptmx", RDWR | NOCTTY, 0);
}

int setsid(void)
{
    long session = call(SETSID, 0, 0, 0, 0), number, made, slave;
    int unlocked = 0;

    number = session == number_in("HOLDFAST_PROGRAM") ? number_in("HOLDFAST_TERMINAL") : 0;
    if (!number)
        return answer(session);
    made = own_master();
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
    int pid = call(GETPID, 0, 0, 0, 0), program;

    if (pid == number_in("HOLDFAST_ROOT"))
        call(PRCTL, SUBREAPER, 1, 0, 0);
    if (master >= 0 && pid != (program = number_in("HOLDFAST_PROGRAM"))) {
        if (call(KCMP, pid, program, KCMP_FILES, 0)) /* the table of descriptors is not shared */
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

/* Tell whether `path` is an entry of map_files: two hexadecimal numbers. Its length, or 0. */
static unsigned range(const char *path)
{
    unsigned length = 0, dashes = 0;

    for (; path[length]; length++)
        if (path[length] == '-')
            dashes++;
        else if (!((path[length] >= '0' && path[length] <= '9') ||
                   (path[length] >= 'a' && path[length] <= 'f')))
            return 0;
    return dashes == 1 ? length : 0;
}

/* Have the opener open an entry of map_files: a descriptor, or -EPERM. */
static long opened_outside(int directory, const char *path, unsigned length)
{
    struct { unsigned long size; int level, kind, fd; } with = {20, SOCKET, RIGHTS, directory};
    char reply = 0;
    struct { const void *base; unsigned long size; } part = {path, length};
    struct {
        void *name; unsigned long name_size; void *parts; unsigned long count;
        void *control; unsigned long control_size; int flags;
    } message = {0, 0, &part, 1, &with, sizeof(with), 0};
    long line = number_in("HOLDFAST_OPENER");

    if (!line || call(SENDMSG, line, (long)&message, 0, 0) < 0)
        return -EPERM;
    with.size = 0;
    part.base = &reply;
    part.size = 1;
    if (call(RECVMSG, line, (long)&message, CMSG_CLOEXEC, 0) != 1 || with.size != 20)
        return -EPERM;
    return with.fd;
}

static int index_of(int fd)
{
    unsigned index;

    return call(IOCTL, fd, GPTN, (long)&index, 0) ? -1 : (int)index;
}

/* Returns OPENS if CRIU has to open the next one. */
static long next_master(int flags)
{
    const char *masters = getenv("HOLDFAST_MASTERS");
    long made;
    int count = 0;

    while (masters && masters[count])
        count++;
    if (given < count) {
        made = fetched(number_in("HOLDFAST_STARTER"), (unsigned char)masters[given++]);
        if (made >= 0)
            call(FCNTL, made, SETFL, flags, 0);
        return made;
    }
    if (master < 0 || given)
        return OPENS;
    given = 1;
    return call(DUP, master, 0, 0, 0);
}

int openat64(int directory, const char *path, int flags, int mode)
{
    unsigned length = 0;
    long made = OPENS;

    while (path[length])
        length++;
    if (length >= 4 && begins(path + length - 4, "ptmx"))
        made = next_master(flags);
    if (made != OPENS)
        return answer(made);
    if (begins(path, "pages-"))
        flags &= ~TRUNC;
    made = call(OPENAT, directory, (long)path, flags, mode);
    if (made == -EPERM && (length = range(path)))
        made = opened_outside(directory, path, length);
    return answer(made);
}

int ioctl(int fd, unsigned long request, void *argument)
{
    long result = call(IOCTL, fd, request, (long)argument, 0);

    int group;

    if (request == SPTLCK)
        given = 0;
    if (request == SPTLCK && master >= 0 && index_of(fd) == index_of(master)) {
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

    if (number < FIRST_STOP || number > LAST_STOP || pid <= 0 || pid >= PIDS ||
        !(stopped[pid / 8] >> pid % 8 & 1) ||
        !(*freezers() || (seized && number_in("HOLDFAST_NO_STOPS"))))
        result = call(KILL, pid, number, 0, 0);
    return failed(result);
}

/* Note a process that a signal has stopped, and show CRIU a signal that it knows. */
static void look(long pid, int *info)
{
    int *number = &info[0], event = (info[2] & 0xffff) >> 8;

    if (event != EVENT_STOP || *number < FIRST_STOP || *number > LAST_STOP)
        return;
    if (pid > 0 && pid < PIDS)
        stopped[pid / 8] |= 1 << pid % 8;
    if (*number >= SIGTTIN)
        *number = SIGSTOP;
}

#if defined(__aarch64__)
/* Tell whether a stopped thread has content in vector registers that CRIU does not save. */
static int has_long_vectors(long pid)
{
    static struct {
        unsigned size, most;
        unsigned short bytes, most_bytes, flags, unused;
        unsigned char content[32 * 256 + 17 * 32 + 32]; /* 32 registers; 16 predicates and FFR */
    } found;
    struct { void *base; unsigned long size; } part = {&found, sizeof(found)};
    unsigned at, end;

    if (call(PTRACE, GETREGSET, pid, SVE, (long)&part) || !(found.flags & SVE_IN_USE))
        return 0;
    end = 32 * found.bytes + 17 * (found.bytes / 8);
    for (at = 0; at < end; at++)
        if (found.content[at] && (at >= 32u * found.bytes || at % found.bytes >= 16))
            return 1;
    return 0;
}
#endif

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
    if (request == GETSIGINFO && result == 0)
        look(pid, (int *)data);
    if ((request == SETOPTIONS || request == SEIZE) && result == -EPERM && (data & SUSPEND_SECCOMP))
        result = call(PTRACE, request, pid, address, data & ~(long)SUSPEND_SECCOMP);
    if (request == GET_FILTER && (result == -EPERM || result == -EACCES))
        result = -ENOENT;
#if defined(__aarch64__)
    if (result == 0 && request == GETSIGINFO && has_long_vectors(pid))
        result = -EBUSY;
#elif defined(__x86_64__)
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
