/* failed_open: ibv_open_device(3) that the system refuses, as often as the program likes, and then doesn't. */
#include "cases.h"
#include <sys/resource.h>

#define ATTEMPTS 20

static struct ibv_device **list;

static void limit(__rlimit_resource_t resource, rlim_t soft)
{
	struct rlimit both;

	MUST(getrlimit(resource, &both));
	both.rlim_cur = soft;
	MUST(setrlimit(resource, &both));
}

static rlim_t soft_limit(__rlimit_resource_t resource)
{
	struct rlimit both;

	MUST(getrlimit(resource, &both));
	return both.rlim_cur;
}

/* Descriptors after this attempt. */
static unsigned int open_in_vain(int error)
{
	struct ibv_context *context = ibv_open_device(list[0]);

	EXPECT(!context && errno == error);
	return entries_of("/proc/self/fd");
}

static void opens_now(void)
{
	struct ibv_context *context = MAKE(ibv_open_device(list[0]));

	MUST(ibv_close_device(context));
	ibv_free_device_list(list);
}

/* Where no thread can be made, an attempt gives back its sockets and epolls. One descriptor of it stays. */
static void without_a_thread(void)
{
	rlim_t processes = soft_limit(RLIMIT_NPROC);

	list = MAKE(ibv_get_device_list(NULL));
	unsigned int before = entries_of("/proc/self/fd");

	limit(RLIMIT_NPROC, 0);
	for (unsigned int attempt = 1; attempt <= ATTEMPTS; attempt++)
		EXPECT(open_in_vain(EAGAIN) <= before + attempt);
	limit(RLIMIT_NPROC, processes);
	opens_now();
}

/* Descriptors that threads of the library have open for a moment, when they are counted. One that each attempt loses would be more. */
#define PASSING (ATTEMPTS / 3)

/* Where descriptors are short, what one attempt keeps is what the next one goes on with. */
static void without_descriptors(void)
{
	rlim_t descriptors = soft_limit(RLIMIT_NOFILE);

	list = MAKE(ibv_get_device_list(NULL));
	limit(RLIMIT_NOFILE, entries_of("/proc/self/fd") + 40);
	unsigned int kept = open_in_vain(EMFILE);

	for (int attempt = 0; attempt < ATTEMPTS; attempt++)
		EXPECT(open_in_vain(EMFILE) <= kept + PASSING);
	limit(RLIMIT_NOFILE, descriptors);
	opens_now();
}

static const struct test_case cases[] = {
	CASE(without_a_thread),
	CASE(without_descriptors),
};

int main(int argc, char **argv)
{
	return run_cases(cases, sizeof cases / sizeof *cases, argc, argv);
}
