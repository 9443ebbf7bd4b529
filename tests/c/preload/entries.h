/* What the ways into the entries are tried with: calls that no header declares, checks, and paths. */
#ifndef ENTRIES_H
#define ENTRIES_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CLASS "/sys/class/infiniband"

/* What programs built for an older or a fortified C library call; no header has them. */
int __xstat(int version, const char *path, struct stat *to);
int __xstat64(int version, const char *path, struct stat64 *to);
int __lxstat(int version, const char *path, struct stat *to);
int __lxstat64(int version, const char *path, struct stat64 *to);
int __fxstat(int version, int fd, struct stat *to);
int __fxstat64(int version, int fd, struct stat64 *to);
int __fxstatat(int version, int base, const char *path, struct stat *to, int flags);
int __fxstatat64(int version, int base, const char *path, struct stat64 *to, int flags);
int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);
int __openat_2(int base, const char *path, int flags);
int __openat64_2(int base, const char *path, int flags);
ssize_t __readlink_chk(const char *path, char *to, size_t room, size_t size);
ssize_t __readlinkat_chk(int base, const char *path, char *to, size_t room, size_t size);
char *__realpath_chk(const char *path, char *to, size_t size);

#ifdef __x86_64__
#define STAT_VERSION 1
#else
#define STAT_VERSION 0
#endif

__attribute__((noreturn, format(printf, 2, 3))) static void fail(int line, const char *format, ...)
{
	va_list arguments;

	fprintf(stderr, "line %d: ", line);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fprintf(stderr, " (errno: %s)\n", strerror(errno));
	exit(1);
}

#define CHECK(what)                                    \
	do {                                           \
		if (!(what))                           \
			fail(__LINE__, "not: " #what); \
	} while (0)

/* The call fails with this errno. */
#define REFUSED(call, number)                                              \
	do {                                                               \
		errno = 0;                                                 \
		CHECK((call) == -1);                                       \
		if (errno != (number))                                     \
			fail(__LINE__, #call ": not " #number);            \
	} while (0)

/* Where the device's own directory is, and the one that it belongs to. */
static char device[PATH_MAX / 2], parent[PATH_MAX / 2];

static void name_paths(const char *name)
{
	snprintf(parent, sizeof parent, "/sys/devices/virtual/ferroce/%.64s", name);
	snprintf(device, sizeof device, "%.200s/infiniband/%.64s", parent, name);
}

static const char *below(const char *directory, const char *name)
{
	static char path[4][PATH_MAX];
	static int next;
	char *to = path[next++ % 4];

	snprintf(to, PATH_MAX, "%s/%s", directory, name);
	return to;
}

/* Reads a descriptor to its end, closes it, and compares. */
static void reads_at(int line, int fd, const char *expected)
{
	char text[256];
	ssize_t length;

	if (fd < 0)
		fail(line, "can't be opened");
	length = read(fd, text, sizeof text - 1);
	if (length < 0)
		fail(line, "can't be read");
	text[length] = 0;
	if (strcmp(text, expected))
		fail(line, "reads \"%s\", not \"%s\"", text, expected);
	close(fd);
}

#define READS(fd, expected) reads_at(__LINE__, fd, expected)

static void nothing_is_left_open(void)
{
	CHECK(open("/dev/null", O_RDONLY) == 3);
}

#endif
