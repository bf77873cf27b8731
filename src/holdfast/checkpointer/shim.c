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
 */
#if defined(__x86_64__)
enum { PTRACE = 101, POLL = 7, RESULT = 10, NUMBER = 15 }; /* places in user_regs_struct */
static long call(long request, long pid, long address, long data)
{
    long result;
    register long r10 __asm__("r10") = data;
    __asm__ volatile("syscall" : "=a"(result) : "a"((long)PTRACE), "D"(request), "S"(pid), "d"(address),
                     "r"(r10) : "rcx", "r11", "memory");
    return result;
}
#elif defined(__aarch64__)
enum { PTRACE = 117 };
static long call(long request, long pid, long address, long data)
{
    register long x8 __asm__("x8") = PTRACE, x0 __asm__("x0") = request, x1 __asm__("x1") = pid;
    register long x2 __asm__("x2") = address, x3 __asm__("x3") = data;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
    return x0;
}
#endif
enum { PEEK_FIRST = 1, PEEK_LAST = 3, GETREGS = 12, SETOPTIONS = 0x4200, GETREGSET = 0x4204 };
enum { SEIZE = 0x4206, GET_FILTER = 0x420c, PRSTATUS = 1, SUSPEND_SECCOMP = 1 << 21 };
enum { EPERM = 1, ENOENT = 2, EACCES = 13, ERESTARTNOHAND = 514, ERESTART_RESTARTBLOCK = 516 };

extern int *__errno_location(void);

long ptrace(long request, long pid, long address, long data)
{
    int peek = request >= PEEK_FIRST && request <= PEEK_LAST;
    long word = 0, result = call(request, pid, address, peek ? (long)&word : data);

    if ((request == SETOPTIONS || request == SEIZE) && result == -EPERM && (data & SUSPEND_SECCOMP))
        result = call(request, pid, address, data & ~(long)SUSPEND_SECCOMP);
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
