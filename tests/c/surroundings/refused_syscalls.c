/* refused_syscalls: runs a program that some system calls are refused to, as by a container runtime's seccomp profile.
 *
 *   refused_syscalls vm PROGRAM ...         EPERM for process_vm_readv, process_vm_writev
 *   refused_syscalls pidfd PROGRAM ...      EPERM for pidfd_open, and for getsockopt of option 77 (SO_PEERPIDFD)
 *   refused_syscalls steering PROGRAM ...   ENOPROTOOPT for setsockopt of SO_ATTACH_REUSEPORT_CBPF, as under qemu-user
 *   refused_syscalls container PROGRAM ...  also for what runtimes refuse by default without further rights:
 *                                           userfaultfd, io_uring, ptrace, kcmp, bpf, perf_event_open, keys,
 *                                           pidfd_getfd, name spaces, mounts and such; ENOSYS for clone3, whose
 *                                           flags a profile can't see
 */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

/* The option of SOL_SOCKET, which is in no header of Debian 12. */
#define PEERPIDFD 77
#define NR_PIDFD_OPEN 434

/* The first two are all that `vm` refuses. */
static const int refused[] = {
	SYS_process_vm_readv, SYS_process_vm_writev, SYS_ptrace, SYS_kcmp, SYS_userfaultfd, SYS_io_uring_setup,
	SYS_io_uring_enter, SYS_io_uring_register, SYS_bpf, SYS_perf_event_open, SYS_add_key, SYS_request_key,
	SYS_keyctl, SYS_pidfd_getfd, SYS_setns, SYS_unshare, SYS_mount, SYS_umount2, SYS_move_mount, SYS_open_tree,
	SYS_fsopen, SYS_fsmount, SYS_pivot_root, SYS_swapon, SYS_swapoff, SYS_reboot, SYS_kexec_load, SYS_init_module,
	SYS_finit_module, SYS_delete_module, SYS_acct, SYS_settimeofday, SYS_clock_settime, SYS_open_by_handle_at,
	SYS_mbind, SYS_set_mempolicy, SYS_get_mempolicy, SYS_move_pages, SYS_migrate_pages, SYS_quotactl, SYS_syslog,
	SYS_vhangup, SYS_personality,
};
#define REFUSED (sizeof refused / sizeof refused[0])

static int install(struct sock_filter *filter, size_t count)
{
	struct sock_fprog program = {.len = (unsigned short)count, .filter = filter};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
		perror("deny: the filter can't be installed");
		return 2;
	}
	return 0;
}

static int start(char **argv)
{
	execvp(argv[0], argv);
	perror(argv[0]);
	return 2;
}

static int without_process_descriptors(char **argv)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, NR_PIDFD_OPEN, 3, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getsockopt, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PEERPIDFD, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	int status = install(filter, sizeof filter / sizeof filter[0]);

	if (!status && (syscall(NR_PIDFD_OPEN, getpid(), 0) >= 0 || errno != EPERM ||
			getsockopt(0, SOL_SOCKET, PEERPIDFD, NULL, NULL) == 0 || errno != EPERM)) {
		fprintf(stderr, "deny: process descriptors aren't refused\n");
		return 2;
	}
	return status ? status : start(argv);
}

static int without_steering(char **argv)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_setsockopt, 0, 5),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SOL_SOCKET, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SO_ATTACH_REUSEPORT_CBPF, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOPROTOOPT),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	int status = install(filter, sizeof filter / sizeof filter[0]);

	if (!status && (setsockopt(0, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, NULL, 0) == 0 || errno != ENOPROTOOPT)) {
		fprintf(stderr, "deny: steering isn't refused\n");
		return 2;
	}
	return status ? status : start(argv);
}

int main(int argc, char **argv)
{
	struct sock_filter filter[REFUSED + 8];
	size_t count = 0, denied, container;
	int status;

	if (argc < 3 || (strcmp(argv[1], "vm") && strcmp(argv[1], "pidfd") && strcmp(argv[1], "steering") &&
			 strcmp(argv[1], "container"))) {
		fprintf(stderr, "usage: refused_syscalls vm|pidfd|steering|container PROGRAM [ARGUMENTS]\n");
		return 2;
	}
	if (!strcmp(argv[1], "pidfd"))
		return without_process_descriptors(argv + 2);
	if (!strcmp(argv[1], "steering"))
		return without_steering(argv + 2);
	container = !strcmp(argv[1], "container");
	denied = container ? REFUSED : 2;
	filter[count++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
	filter[count++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0);
	filter[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	filter[count++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (size_t i = 0; i < denied; i++)
		filter[count++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned int)refused[i],
							       (unsigned char)(denied - i + 2 * container), 0);
	if (container) {
		filter[count++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1);
		filter[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS);
	}
	filter[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	filter[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);

	status = install(filter, count);
	if (status)
		return status;
	/* A test that refuses nothing would prove nothing. */
	if (syscall(SYS_process_vm_readv, getpid(), NULL, 0, NULL, 0, 0) == 0 || errno != EPERM) {
		fprintf(stderr, "deny: process_vm_readv isn't refused\n");
		return 2;
	}
	return start(argv + 2);
}
