/* Reports the closes that the library makes by raw system calls to ThreadSanitizer.
 *
 * ThreadSanitizer sees a descriptor come (dup, open) and go (close) by the C library's functions, and takes two makings of
 * one number by two threads for a race when nothing has closed the number in between. The library closes by syscall(2),
 * since close(2) is a cancellation point. The linker (--wrap=syscall) has the library's calls come here.
 */
#include <sys/syscall.h>

/* The runtime's; its header comes with clang. */
void __sanitizer_syscall_pre_impl_close(long fd);

long __real_syscall(long number, long a, long b, long c, long d, long e, long f);
long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f);

long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f)
{
	if (number == SYS_close)
		__sanitizer_syscall_pre_impl_close(a);
	return __real_syscall(number, a, b, c, d, e, f);
}
