/* files: each way of the C library into /sys/class/infiniband and /dev/infiniband, on a device whose netdev is eth0.
 *
 * `files ways DEVICE` tries them all, `files absent` expects that there is nothing.
 */
#define _GNU_SOURCE
#include "entries.h"
#include <dirent.h>
#include <glob.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>

extern char **environ;

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

	/* As any file: the offset, the size, a mapping; and nobody can write to it. */
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
	REFUSED(open(below(device, "ports/1/gid_attrs/types/63"), O_RDONLY), EINVAL);
	errno = 0;
	CHECK(!fopen(below(device, "nothing"), "r") && errno == ENOENT);
	CHECK(!fopen(file, "w") && errno == EACCES);
}

/* The working directory, with what a child of it sees. */
static void working_directory(void)
{
	char path[PATH_MAX], before[PATH_MAX], *made;
	struct dirent *entry;
	struct stat s;
	DIR *stream;
	int fd, entries = 0;

	CHECK(getcwd(before, sizeof before));
	CHECK(chdir(CLASS) == 0 && getcwd(path, sizeof path) && !strcmp(path, CLASS));
	CHECK(chdir(device) == 0 && (made = getcwd(NULL, 0)) && !strcmp(made, realpath(device, path)));
	free(made);
	CHECK((made = get_current_dir_name()) && !strcmp(made, path));
	free(made);
	REFUSED(getcwd(path, 3) ? 0 : -1, ERANGE);
	READS(open("node_type", O_RDONLY), "1: CA\n");
	READS(open("./ports/../node_type", O_RDONLY), "1: CA\n");
	REFUSED(open("nothing", O_RDONLY), ENOENT);
	REFUSED(chdir("node_type"), ENOTDIR);
	REFUSED(chdir("nothing"), ENOENT);
	CHECK(stat(".", &s) == 0 && S_ISDIR(s.st_mode) && access("ports/1/state", R_OK) == 0);
	CHECK((stream = opendir(".")));
	while ((entry = readdir(stream)))
		entries += !strcmp(entry->d_name, "ports") || !strcmp(entry->d_name, "node_type");
	CHECK(entries == 2 && !closedir(stream));
	CHECK(system("test \"$(cat node_type)\" = '1: CA' && cd ports && test \"$(echo *)\" = 1") == 0);
	CHECK((fd = open("ports", O_RDONLY | O_DIRECTORY)) >= 0 && fchdir(fd) == 0 && !close(fd));
	CHECK(chdir("1") == 0 && access("state", R_OK) == 0 && chdir("../..") == 0 && access("node_type", R_OK) == 0);
	/* Out again. */
	CHECK((fd = open("/", O_RDONLY | O_DIRECTORY)) >= 0 && fchdir(fd) == 0 && !close(fd));
	CHECK(getcwd(path, sizeof path) && !strcmp(path, "/") && access("sys", R_OK) == 0);
	CHECK(chdir(device) == 0 && chdir("/sys") == 0 && access("class", R_OK) == 0);
	CHECK(chdir(before) == 0 && getcwd(path, sizeof path) && !strcmp(path, before));
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

static int is_number(const struct dirent *entry)
{
	return entry->d_name[0] >= '0' && entry->d_name[0] <= '9';
}

static int is_number64(const struct dirent64 *entry)
{
	return entry->d_name[0] >= '0' && entry->d_name[0] <= '9';
}

static int count_class(DIR *stream, const char *name)
{
	struct dirent *entry;
	int found = 0;

	while ((entry = readdir(stream)))
		if (entry->d_name[0] != '.') {
			CHECK(!strcmp(entry->d_name, name) && entry->d_type == DT_LNK);
			found++;
		}
	return found;
}

static void directories(const char *name)
{
	DIR *stream, *other;
	struct dirent *entry, copy;
	struct dirent64 *entry64, copy64;
	struct dirent **list;
	struct dirent64 **list64;
	glob_t found;
	glob64_t found64;
	struct stat s;
	long place;
	int fd;

	CHECK((stream = opendir(CLASS)) && count_class(stream, name) == 1);
	rewinddir(stream);
	CHECK((other = opendir("/")) && readdir(other));
	CHECK(count_class(stream, name) == 1 && !readdir(stream));
	CHECK((fd = dirfd(stream)) >= 0 && fstat(fd, &s) == 0 && S_ISDIR(s.st_mode));
	CHECK(fstatat(fd, name, &s, 0) == 0 && S_ISDIR(s.st_mode));
	CHECK(fstatat(dirfd(other), "sys", &s, 0) == 0 && S_ISDIR(s.st_mode));
	CHECK(!closedir(stream) && fcntl(fd, F_GETFD) == -1 && readdir(other));
	rewinddir(other);
	place = telldir(other);
	seekdir(other, place);
	CHECK(readdir(other) && !closedir(other));

	CHECK((stream = opendir(below(device, "ports/1/gids"))));
	CHECK((entry64 = readdir64(stream)) && !strcmp(entry64->d_name, "."));
	CHECK((entry64 = readdir64(stream)) && !strcmp(entry64->d_name, ".."));
	place = telldir(stream);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
	CHECK(readdir_r(stream, &copy, &entry) == 0 && entry == &copy && !strcmp(copy.d_name, "0"));
	CHECK(readdir64_r(stream, &copy64, &entry64) == 0 && entry64 == &copy64 && !strcmp(copy64.d_name, "1"));
	seekdir(stream, place);
	CHECK((entry = readdir(stream)) && !strcmp(entry->d_name, "0") && entry->d_type == DT_REG);
	while (readdir(stream))
		;
	CHECK(readdir_r(stream, &copy, &entry) == 0 && !entry);
#pragma GCC diagnostic pop
	CHECK(!closedir(stream));
	errno = 0;
	CHECK(!opendir(below(device, "node_type")) && errno == ENOTDIR);
	CHECK(!opendir(below(device, "nothing")) && errno == ENOENT);

	CHECK(scandir(below(device, "ports/1/gids"), &list, is_number, versionsort) == 64);
	CHECK(!strcmp(list[0]->d_name, "0") && !strcmp(list[63]->d_name, "63"));
	for (int i = 0; i < 64; i++)
		free(list[i]);
	free(list);
	CHECK(scandir64(below(device, "ports"), &list64, is_number64, NULL) == 1 && !strcmp(list64[0]->d_name, "1"));
	free(list64[0]);
	free(list64);
	REFUSED(scandir(below(device, "nothing"), &list, NULL, NULL), ENOENT);

	CHECK(glob(CLASS "/*/ports/*/gid_attrs/types/?", 0, NULL, &found) == 0 && found.gl_pathc == 10);
	CHECK(strstr(found.gl_pathv[1], "/ports/1/gid_attrs/types/1"));
	globfree(&found);
	CHECK(glob64(CLASS "/*/node_type", GLOB_NOSORT, NULL, &found64) == 0 && found64.gl_pathc == 1);
	globfree64(&found64);
	CHECK(glob("/sys/class/infiniband/nothing*", 0, NULL, &found) == GLOB_NOMATCH);
}

/* Calls relative to a descriptor of a directory, which outlives fork and exec. */
static void relative(int fd)
{
	char to[PATH_MAX];
	struct stat s;
	struct statx sx;
	DIR *stream;
	int inner;

	READS(openat(fd, "ports/1/state", O_RDONLY), "4: ACTIVE\n");
	READS(openat64(fd, "node_type", O_RDONLY), "1: CA\n");
	CHECK((inner = openat(fd, "ports/1/gid_attrs", O_RDONLY | O_DIRECTORY)) >= 0);
	READS(openat(inner, "types/1", O_RDONLY), "RoCE v2\n");
	READS(openat(inner, "../../../node_type", O_RDONLY), "1: CA\n");
	CHECK(fstatat(inner, "ndevs", &s, 0) == 0 && S_ISDIR(s.st_mode));
	CHECK(statx(inner, "ndevs/1", 0, STATX_TYPE, &sx) == 0 && S_ISREG(sx.stx_mode));
	CHECK(faccessat(inner, "types", R_OK, 0) == 0 && readlinkat(fd, "device", to, sizeof to) > 0);
	REFUSED(openat(inner, "nothing", O_RDONLY), ENOENT);
	CHECK((stream = fdopendir(inner)) && dirfd(stream) == inner && readdir(stream) && !closedir(stream));
	/* Files stay what they are. */
	CHECK((inner = open("/etc/passwd", O_RDONLY)) >= 0);
	REFUSED(openat(inner, "x", O_RDONLY), ENOTDIR);
	CHECK(fstat(inner, &s) == 0 && S_ISREG(s.st_mode) && !fdopendir(inner) && errno == ENOTDIR);
	close(inner);
}

/* Paths relative to directories of the system, in which ours lie. */
static void relative_to_system(const char *name)
{
	char path[PATH_MAX];
	struct stat s;
	int fd = open("/sys", O_RDONLY | O_DIRECTORY);

	CHECK(fd >= 0);
	CHECK(fstatat(fd, below("class/infiniband", name), &s, 0) == 0 && S_ISDIR(s.st_mode));
	CHECK(chdir("/") == 0 && access("dev/infiniband/uverbs0", R_OK | W_OK) == 0);
	CHECK(chdir("/sys/class") == 0 && lstat(below("infiniband", name), &s) == 0 && S_ISLNK(s.st_mode));
	CHECK(realpath(below("./infiniband", name), path) && !strcmp(path, device));
	REFUSED(stat("infiniband/nothing", &s), ENOENT);
	CHECK(chdir("/tmp") == 0);
	REFUSED(stat(below("sys/class/infiniband", name), &s), ENOENT);
	REFUSED(stat("infiniband", &s), ENOENT);
	close(fd);
}

static void *open_for_ever(void *path)
{
	open(path, O_RDONLY);
	return NULL;
}

/* A thread that waits in a call of ours can be cancelled, as the call's man page says. */
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

static void expect_success(pid_t pid)
{
	int status;

	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* A child of each kind sees the same, and the descriptor it was given. */
static void children(const char *own, const char *name)
{
	int fd = open(device, O_RDONLY | O_DIRECTORY);
	char number[16];
	char *words[] = {(char *)own, "inherited", (char *)name, number, NULL};
	posix_spawn_file_actions_t actions;
	pid_t pid;

	CHECK(fd >= 0);
	snprintf(number, sizeof number, "%d", fd);
	CHECK((pid = fork()) >= 0);
	if (pid == 0) {
		relative(fd);
		_exit(0);
	}
	expect_success(pid);
	CHECK((pid = vfork()) >= 0);
	if (pid == 0) {
		execv(own, words);
		_exit(9);
	}
	expect_success(pid);
	CHECK(posix_spawn_file_actions_init(&actions) == 0);
	CHECK(posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0) == 0);
	CHECK(posix_spawn(&pid, own, &actions, NULL, words, environ) == 0);
	expect_success(pid);
	posix_spawn_file_actions_destroy(&actions);
	/* A program that closes whatever it doesn't know. */
	CHECK((pid = fork()) >= 0);
	if (pid == 0) {
		if (close_range(3, ~0U, 0))
			_exit(8);
		READS(open(below(device, "node_type"), O_RDONLY), "1: CA\n");
		_exit(0);
	}
	expect_success(pid);
	close(fd);
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
	CHECK(argc >= 3);
	snprintf(parent, sizeof parent, "/sys/devices/virtual/ferroce/%.64s", argv[2]);
	snprintf(device, sizeof device, "%.200s/infiniband/%.64s", parent, argv[2]);
	if (!strcmp(argv[1], "inherited")) {
		relative(atoi(argv[3]));
		return 0;
	}
	stats(argv[2]);
	opens();
	working_directory();
	nodes(argv[2]);
	accesses();
	links(argv[2]);
	directories(argv[2]);
	int fd = open(below(CLASS, argv[2]), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	relative(fd);
	close(fd);
	relative_to_system(argv[2]);
	cancellation();
	children(argv[0], argv[2]);
	/* Nothing was left open. */
	CHECK((fd = open("/dev/null", O_RDONLY)) == 3);
	return 0;
}
