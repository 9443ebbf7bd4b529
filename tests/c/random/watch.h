/* What `calls` sees beside completions: asynchronous events, and what the process holds of the system. */
#ifndef RANDOM_WATCH_H
#define RANDOM_WATCH_H

#include "worker.h"

/* What may come and go without being a leak: allocators keep memory, and connections between processes stay. */
#define MORE_DESCRIPTORS 4
#define MORE_KILOBYTES 65536

static atomic_ulong total_events;

/* Reads events, and lets the objects that they name be destroyed; until it is cancelled. */
static void *watch(void *argument)
{
	struct ibv_async_event event;

	for (;;) {
		if (ibv_get_async_event(device.context, &event))
			fail("seed %lu: ibv_get_async_event: %s", the_seed, strerror(errno));
		switch (event.event_type) {
		case IBV_EVENT_QP_FATAL:
		case IBV_EVENT_QP_REQ_ERR:
		case IBV_EVENT_QP_ACCESS_ERR:
		case IBV_EVENT_COMM_EST:
		case IBV_EVENT_QP_LAST_WQE_REACHED:
			/* The QP is there until the event is acknowledged. */
			if (event.element.qp->context != device.context)
				fail("seed %lu: %s of no QP", the_seed, ibv_event_type_str(event.event_type));
			break;
		case IBV_EVENT_SRQ_LIMIT_REACHED:
			if (event.element.srq->context != device.context)
				fail("seed %lu: %s of no SRQ", the_seed, ibv_event_type_str(event.event_type));
			break;
		default:
			fail("seed %lu: %s", the_seed, ibv_event_type_str(event.event_type));
		}
		atomic_fetch_add(&total_events, 1);
		ibv_ack_async_event(&event);
	}
	return argument;
}

/* What the process holds when nothing is under way. */
struct quiet {
	unsigned int descriptors, tasks;
	long kilobytes;
};

static struct quiet look_around(void)
{
	struct quiet quiet = {entries_of("/proc/self/fd"), entries_of("/proc/self/task"), 0};
	FILE *file = MAKE(fopen("/proc/self/statm", "r"));

	if (fscanf(file, "%*s %ld", &quiet.kilobytes) != 1)
		fail("/proc/self/statm");
	quiet.kilobytes *= sysconf(_SC_PAGESIZE) / 1024;
	fclose(file);
	return quiet;
}

static void compare(const struct quiet *before, struct quiet after)
{
	/* The kernel takes a thread off the list a moment after it has been joined. */
	for (int i = 0; i < 100 && after.tasks > before->tasks; i++) {
		usleep(20000);
		after = look_around();
	}
	if (after.descriptors > before->descriptors + MORE_DESCRIPTORS || after.tasks > before->tasks ||
	    after.kilobytes > before->kilobytes + MORE_KILOBYTES)
		fail("seed %lu: %u descriptors, %u threads, %ld KiB became %u, %u, %ld", the_seed,
		     before->descriptors, before->tasks, before->kilobytes, after.descriptors, after.tasks,
		     after.kilobytes);
}

#endif
