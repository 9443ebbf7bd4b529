/* New nodes. For a program that is linked as to an older C library (see baseline.rs); hidden, so that no other library sees it. */
#define OWN __attribute__((visibility("hidden")))

/* Before glibc 2.33 this was in the static part of the C library, with the number of the layout of a device's number. */
#define LAYOUT 0

extern int __xmknod(int, const char *, unsigned, unsigned long *);

OWN int mknod(const char *path, unsigned mode, unsigned long device)
{
	return __xmknod(LAYOUT, path, mode, &device);
}
