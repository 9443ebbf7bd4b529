/* Naming and counting checks, and telling their outcome in lines like TAP's. */
#ifndef TAP_H
#define TAP_H

#define _GNU_SOURCE 1
#include "../c/basics.h"

static int checks, failures;

/* For what a program needs and can't go on without. */
static void fail(const char *format, ...)
{
	va_list arguments;

	fputs("Bail out! ", stdout);
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	putchar('\n');
	exit(2);
}

UNUSED static void say(bool good, const char *name, va_list arguments)
{
	printf("%s %d - ", good ? "ok" : "not ok", ++checks);
	vprintf(name, arguments);
	putchar('\n');
	failures += !good;
}

UNUSED __attribute__((format(printf, 2, 3))) static bool check(bool good, const char *name, ...)
{
	va_list arguments;

	va_start(arguments, name);
	say(good, name, arguments);
	va_end(arguments);
	return good;
}

/* A number (errno, status, count) must be the expected one. */
UNUSED __attribute__((format(printf, 3, 4))) static bool is(long got, long expected, const char *name, ...)
{
	va_list arguments;

	va_start(arguments, name);
	say(got == expected, name, arguments);
	va_end(arguments);
	if (got != expected)
		printf("# got %ld, not %ld\n", got, expected);
	return got == expected;
}

/* A work completion's status must be the expected one; -1 stands for no completion. */
UNUSED __attribute__((format(printf, 3, 4))) static bool is_status(int got, int expected, const char *name, ...)
{
	va_list arguments;

	va_start(arguments, name);
	say(got == expected, name, arguments);
	va_end(arguments);
	if (got != expected)
		printf("# got %s, not %s\n", got < 0 ? "no completion" : ibv_wc_status_str(got),
		       expected < 0 ? "no completion" : ibv_wc_status_str(expected));
	return got == expected;
}

/* The call must return NULL and set errno. */
#define is_null(call, expected, ...)                                                   \
	({                                                                             \
		errno = 0;                                                             \
		void *null_made = (call);                                              \
		is(null_made ? 0 : errno, expected, __VA_ARGS__);                      \
		null_made;                                                             \
	})

/* A check that this device or machine can't be put to. */
UNUSED static void skip(const char *why, const char *name)
{
	printf("ok %d - %s # skip %s\n", ++checks, name, why);
}

#endif
