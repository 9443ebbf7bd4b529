/* directories: the directories below /sys/class/infiniband as working directories, as streams, as descriptors that
 * paths are relative to, and what children of each kind see of them, on a device whose netdev is eth0.
 *
 * usage: directories ways DEVICE
 */
#define _GNU_SOURCE
#include "entries.h"
#include <dirent.h>
#include <glob.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

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

int main(int argc, char **argv)
{
	alarm(60);
	CHECK(argc >= 3);
	name_paths(argv[2]);
	if (!strcmp(argv[1], "inherited")) {
		relative(atoi(argv[3]));
		return 0;
	}
	working_directory();
	directories(argv[2]);
	int fd = open(below(CLASS, argv[2]), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	relative(fd);
	close(fd);
	relative_to_system(argv[2]);
	children(argv[0], argv[2]);
	nothing_is_left_open();
	return 0;
}
