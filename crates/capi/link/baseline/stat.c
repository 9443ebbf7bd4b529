/* What a path or a descriptor leads to. For a program that is linked as to an older C library (see baseline.rs); hidden, so that no other library sees it. */
#define OWN __attribute__((visibility("hidden")))

/* Before glibc 2.33 these were in the static part of the C library, with the numbers of the structure's layout. */
#if defined(__x86_64__)
#define STAT_LAYOUT 1
#else
#define STAT_LAYOUT 0
#endif

struct stat64;
extern int __xstat64(int, const char *, struct stat64 *);
extern int __lxstat64(int, const char *, struct stat64 *);
extern int __fxstat64(int, int, struct stat64 *);
extern int __fxstatat64(int, int, const char *, struct stat64 *, int);

OWN int stat64(const char *path, struct stat64 *into)
{
	return __xstat64(STAT_LAYOUT, path, into);
}

OWN int lstat64(const char *path, struct stat64 *into)
{
	return __lxstat64(STAT_LAYOUT, path, into);
}

OWN int fstat64(int descriptor, struct stat64 *into)
{
	return __fxstat64(STAT_LAYOUT, descriptor, into);
}

OWN int fstatat64(int directory, const char *path, struct stat64 *into, int flags)
{
	return __fxstatat64(STAT_LAYOUT, directory, path, into, flags);
}

/* The two structures are one on 64-bit machines. */
OWN int stat(const char *, struct stat64 *) __attribute__((alias("stat64")));
OWN int lstat(const char *, struct stat64 *) __attribute__((alias("lstat64")));
OWN int fstat(int, struct stat64 *) __attribute__((alias("fstat64")));
OWN int fstatat(int, const char *, struct stat64 *, int) __attribute__((alias("fstatat64")));
