/* hf-root: the parent of the program in a contained session (process 2) and a plain one of root.
 *
 *     hf-root PID         PID: the program, a child of this process
 *
 * It adopts and reaps the session's orphans, so that all programs are in one tree below it. When
 * the program ends, it ends the same way: with the same exit code, or by the same signal. In a
 * contained session process 1 then ends too, and the kernel kills what is left. In a plain session
 * the keeper adopts what is left.
 *
 * A program of its own, because a checkpoint cannot save a forked interpreter, which has mapped
 * files of the machine's mount namespace. It holds no descriptor that a program inside could use.
 * It blocks every signal: `kill -TERM -1` inside must not end the session.
 *
 * scripts/build_hf_root compiles it and writes the result to keeper/hf_root.py.
 */
#if defined(__x86_64__)
enum { SIGPROCMASK = 14, GETPID = 39, WAIT4 = 61, KILL = 62, PRCTL = 157, EXIT = 231, RLIMIT = 302 };
static long call(long n, long a, long b, long c, long d)
{
    register long r10 __asm__("r10") = d;
    __asm__ volatile("syscall" : "+a"(n) : "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return n;
}
__asm__(".globl _start\n_start: mov %rsp, %rdi\n and $-16, %rsp\n call begin\n");
#elif defined(__aarch64__)
enum { SIGPROCMASK = 135, GETPID = 172, WAIT4 = 260, KILL = 129, PRCTL = 167, EXIT = 94, RLIMIT = 261 };
static long call(long n, long a, long b, long c, long d)
{
    register long x8 __asm__("x8") = n, x0 __asm__("x0") = a, x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c, x3 __asm__("x3") = d;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
    return x0;
}
__asm__(".globl _start\n_start: mov x0, sp\n b begin\n");
#endif
enum { SIG_SETMASK = 2, SUBREAPER = 36, RLIMIT_CORE = 4, ECHILD = 10, ALL_CHILDREN = 0x40000000 };

__attribute__((used, noreturn)) void begin(long *stack)
{
    unsigned long blocked = ~0ul, no_core[2] = {0, 0};
    const char *digit = stack[0] > 1 ? (const char *)stack[2] : "";
    long program = 0, pid;
    int status;

    while (*digit)
        program = program * 10 + *digit++ - '0';
    call(PRCTL, SUBREAPER, 1, 0, 0);
    call(SIGPROCMASK, SIG_SETMASK, (long)&blocked, 0, 8);
    do
        pid = call(WAIT4, -1, (long)&status, ALL_CHILDREN, 0);
    while (pid != program && pid != -ECHILD);
    if (pid == program && (status & 0x7f)) {
        call(RLIMIT, 0, RLIMIT_CORE, (long)no_core, 0);
        /* No other signal may end it, also if one waits already. */
        blocked &= ~(1ul << ((status & 0x7f) - 1));
        call(SIGPROCMASK, SIG_SETMASK, (long)&blocked, 0, 8);
        call(KILL, call(GETPID, 0, 0, 0, 0), status & 0x7f, 0, 0);
    }
    for (;;)
        call(EXIT, pid == program ? status >> 8 & 0xff : 255, 0, 0, 0);
}
