/* files: each call of the C library that looks at, opens or resolves a path below /sys/class/infiniband or
 * /dev/infiniband, on a device whose netdev is eth0.
 *
 * `files ways DEVICE` tries them all, `files absent` expects that there is nothing.
 */
#define _GNU_SOURCE
#include "entries.h"
#include <dirent.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

static void stats(const char *name)
{
	const char *state = below(device, "ports/1/state"), *link = below(CLASS, name);
	const char *node = "/dev/infiniband/uverbs0", *volatile nowhere = NULL;
	struct stat s;
	struct stat64 s64;
	struct statx sx;
	int fd;

	CHECK(stat(CLASS, &s) == 0 && S_ISDIR(s.st_mode));
	CHECK(stat(state, &s) == 0 && S_ISREG(s.st_mode) && (s.st_mode & 0777) == 0444);
	CHECK(stat64(state, &s64) == 0 && S_ISREG(s64.st_mode) && s64.st_ino == s.st_ino);
	CHECK(lstat(link, &s) == 0 && S_ISLNK(s.st_mode));
	CHECK(lstat64(link, &s64) == 0 && S_ISLNK(s64.st_mode));
	CHECK(stat(link, &s) == 0 && S_ISDIR(s.st_mode));
	CHECK(__xstat(STAT_VERSION, link, &s) == 0 && S_ISDIR(s.st_mode));
	CHECK(__xstat64(STAT_VERSION, link, &s64) == 0 && S_ISDIR(s64.st_mode));
	CHECK(__lxstat(STAT_VERSION, link, &s) == 0 && S_ISLNK(s.st_mode));
	CHECK(__lxstat64(STAT_VERSION, link, &s64) == 0 && S_ISLNK(s64.st_mode));
	CHECK(fstatat(AT_FDCWD, link, &s, 0) == 0 && S_ISDIR(s.st_mode));
	CHECK(fstatat(AT_FDCWD, link, &s, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(s.st_mode));
	CHECK(fstatat64(AT_FDCWD, node, &s64, 0) == 0 && S_ISCHR(s64.st_mode));
	CHECK(__fxstatat(STAT_VERSION, AT_FDCWD, node, &s, 0) == 0 && S_ISCHR(s.st_mode));
	CHECK(__fxstatat64(STAT_VERSION, AT_FDCWD, link, &s64, 0) == 0 && S_ISDIR(s64.st_mode));
	CHECK(statx(AT_FDCWD, state, 0, STATX_BASIC_STATS, &sx) == 0 && S_ISREG(sx.stx_mode));
	CHECK(statx(AT_FDCWD, link, AT_SYMLINK_NOFOLLOW, STATX_TYPE, &sx) == 0 && S_ISLNK(sx.stx_mode));
	CHECK(stat(node, &s) == 0 && S_ISCHR(s.st_mode) && major(s.st_rdev) == 231 && minor(s.st_rdev) == 192);

	/* A descriptor of a directory is one, whichever way it is looked at, and so is a copy of it. */
	CHECK((fd = open(device, O_RDONLY | O_DIRECTORY)) >= 0);
	for (int round = 0; round < 2; round++) {
		CHECK(fstat(fd, &s) == 0 && S_ISDIR(s.st_mode));
		CHECK(fstat64(fd, &s64) == 0 && S_ISDIR(s64.st_mode));
		CHECK(__fxstat(STAT_VERSION, fd, &s) == 0 && S_ISDIR(s.st_mode));
		CHECK(__fxstat64(STAT_VERSION, fd, &s64) == 0 && S_ISDIR(s64.st_mode));
		CHECK(fstatat(fd, "", &s, AT_EMPTY_PATH) == 0 && S_ISDIR(s.st_mode));
		CHECK(statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &sx) == 0 && S_ISDIR(sx.stx_mode));
		int copy = dup(fd);
		close(fd);
		fd = copy;
	}
	close(fd);

	REFUSED(stat(below(CLASS, "no_such_device"), &s), ENOENT);
	REFUSED(stat(below(device, "node_type/x"), &s), ENOTDIR);
	REFUSED(stat("/dev/infiniband/uverbs77", &s), ENOENT);
	REFUSED(stat(nowhere, &s), EFAULT);
}

static void opens(void)
{
	const char *file = below(device, "ports/1/gid_attrs/types/1"), *says = "RoCE v2\n";
	char line[64], *mapped;
	struct stat named, opened;
	FILE *stream;
	int fd;

	READS(open(file, O_RDONLY), says);
	READS(open64(file, O_RDONLY | O_CLOEXEC), says);
	READS(openat(AT_FDCWD, file, O_RDONLY), says);
	READS(openat64(AT_FDCWD, file, O_RDONLY), says);
	READS(__open_2(file, O_RDONLY), says);
	READS(__open64_2(file, O_RDONLY), says);
	READS(__openat_2(AT_FDCWD, file, O_RDONLY), says);
	READS(__openat64_2(AT_FDCWD, file, O_RDONLY), says);
	READS(open(below(device, "ports/1/gid_attrs/ndevs/1"), O_RDONLY), "eth0\n");
	READS(open(below(device, "device/net/eth0/operstate"), O_RDONLY), "up\n");

	CHECK((stream = fopen(file, "r")) && fgets(line, sizeof line, stream) && !strcmp(line, says));
	CHECK((stream = freopen(below(device, "node_type"), "r", stream)));
	CHECK(fgets(line, sizeof line, stream) && !strcmp(line, "1: CA\n") && !fclose(stream));
	CHECK((stream = fopen64(file, "re")) && fcntl(fileno(stream), F_GETFD) == FD_CLOEXEC);
	CHECK((stream = freopen64(file, "r", stream)) && fgets(line, sizeof line, stream) && !fclose(stream));

	/* As any file: the offset, the size, a mapping; and it can't be written. */
	CHECK((fd = open(file, O_RDONLY | O_CLOEXEC)) >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
	CHECK(stat(file, &named) == 0 && fstat(fd, &opened) == 0 && opened.st_size == 8);
	CHECK(named.st_ino == opened.st_ino && named.st_dev == opened.st_dev && named.st_mode == opened.st_mode);
	CHECK(pread(fd, line, 2, 5) == 2 && !memcmp(line, "v2", 2) && lseek(fd, 0, SEEK_END) == 8);
	CHECK((mapped = mmap(NULL, 8, PROT_READ, MAP_PRIVATE, fd, 0)) != MAP_FAILED && !memcmp(mapped, says, 8));
	CHECK(write(fd, "x", 1) == -1);
	close(fd);

	REFUSED(open(file, O_RDWR), EACCES);
	REFUSED(open(file, O_RDONLY | O_CREAT | O_EXCL, 0600), EEXIST);
	REFUSED(open(file, O_RDONLY | O_DIRECTORY), ENOTDIR);
	REFUSED(open(device, O_WRONLY), EISDIR);
	/* An entry without a GID opens; programs (NCCL) go on to the next one when its reading is EINVAL. */
	CHECK((fd = open(below(device, "ports/1/gid_attrs/types/63"), O_RDONLY | O_CLOEXEC)) >= 0);
	CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC);
	REFUSED(read(fd, line, sizeof line), EINVAL);
	close(fd);
	CHECK((stream = fopen(below(device, "ports/1/gid_attrs/ndevs/63"), "r")));
	errno = 0;
	CHECK(!fgets(line, sizeof line, stream) && errno == EINVAL && !fclose(stream));
	errno = 0;
	CHECK(!fopen(below(device, "nothing"), "r") && errno == ENOENT);
	CHECK(!fopen(file, "w") && errno == EACCES);
}

static void nodes(const char *name)
{
	const char *paths[] = {"/dev/infiniband/uverbs0", below("/dev/infiniband", name)};
	struct stat s;
	int fd;

	for (int i = 0; i < 2; i++) {
		CHECK(stat(paths[i], &s) == 0 && S_ISCHR(s.st_mode));
		CHECK(access(paths[i], R_OK | W_OK) == 0);
		CHECK((fd = open(paths[i], O_RDWR | O_CLOEXEC)) >= 0);
		CHECK(fstat(fd, &s) == 0 && S_ISCHR(s.st_mode) && fcntl(fd, F_GETFD) == FD_CLOEXEC);
		CHECK(write(fd, "x", 1) == 1 && read(fd, &s, 1) == 0);
		close(fd);
	}
	CHECK(stat("/dev/infiniband/rdma_cm", &s) == 0 && S_ISCHR(s.st_mode));
	REFUSED(open("/dev/infiniband/rdma_cm", O_RDWR), ENODEV);
}

static void accesses(void)
{
	const char *file = below(device, "node_type");
	char value[8];

	CHECK(access(file, R_OK) == 0 && access(device, R_OK | X_OK) == 0 && access(file, F_OK) == 0);
	CHECK(faccessat(AT_FDCWD, file, R_OK, 0) == 0 && eaccess(file, R_OK) == 0 && euidaccess(file, R_OK) == 0);
	REFUSED(access(file, W_OK), EACCES);
	REFUSED(access(file, X_OK), EACCES);
	REFUSED(access(below(device, "nothing"), F_OK), ENOENT);
	REFUSED(access(file, 64), EINVAL);
	REFUSED(getxattr(file, "user.x", value, sizeof value), ENOTSUP);
	REFUSED(lgetxattr(file, "user.x", value, sizeof value), ENOTSUP);
	CHECK(listxattr(file, value, sizeof value) == 0 && llistxattr(file, value, sizeof value) == 0);
}

static void links(const char *name)
{
	const char *link = below(CLASS, name);
	char to[PATH_MAX], other[PATH_MAX];
	char *made;
	ssize_t length = readlink(link, to, sizeof to);

	CHECK(length > 0 && !strncmp(to, "../../devices/", 14));
	CHECK(readlinkat(AT_FDCWD, link, other, sizeof other) == length && !memcmp(to, other, length));
	CHECK(__readlink_chk(link, other, 4, sizeof other) == 4);
	CHECK(__readlinkat_chk(AT_FDCWD, link, other, sizeof other, sizeof other) == length);
	REFUSED(readlink(below(device, "node_type"), other, sizeof other), EINVAL);

	CHECK(realpath(link, to) == to && strcmp(to, device) == 0);
	CHECK(__realpath_chk(link, other, sizeof other) == other && !strcmp(to, other));
	CHECK((made = realpath(below(link, "device"), NULL)) && !strcmp(made, parent));
	free(made);
	CHECK((made = canonicalize_file_name(below(link, "../.."))) && !strcmp(made, parent));
	free(made);
	/* What leads out of the tree is the system's. */
	CHECK((made = realpath(CLASS "/../../class", NULL)) && !strcmp(made, "/sys/class"));
	free(made);
	errno = 0;
	CHECK(!realpath(below(CLASS, "nothing"), NULL) && errno == ENOENT);
}

static void *open_for_ever(void *path)
{
	open(path, O_RDONLY);
	return NULL;
}

/* A thread that waits in a call of ours can be cancelled, as documented. */
static void cancellation(void)
{
	char path[] = "/tmp/preload-XXXXXX";
	pthread_t thread;
	void *result;

	CHECK(mkdtemp(path));
	const char *pipe = below(path, "pipe");
	CHECK(mkfifo(pipe, 0600) == 0);
	CHECK(pthread_create(&thread, NULL, open_for_ever, (void *)pipe) == 0);
	usleep(50000);
	CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
	CHECK(unlink(pipe) == 0 && rmdir(path) == 0);
}

/* Without the preload there is nothing; where a real adapter is, this test isn't. */
static void absent(void)
{
	struct stat s;

	REFUSED(stat("/sys/class/infiniband/ferroce0", &s), ENOENT);
	REFUSED(open("/dev/infiniband/ferroce0", O_RDWR), ENOENT);
	CHECK(!opendir("/sys/devices/virtual/ferroce") && errno == ENOENT);
}

int main(int argc, char **argv)
{
	alarm(60);
	CHECK(argc >= 2);
	if (!strcmp(argv[1], "absent")) {
		absent();
		return 0;
	}
	CHECK(argc == 3);
	name_paths(argv[2]);
	stats(argv[2]);
	opens();
	nodes(argv[2]);
	accesses();
	links(argv[2]);
	cancellation();
	nothing_is_left_open();
	return 0;
}
