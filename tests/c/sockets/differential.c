/* Draws programs of sockets from seeds, runs each, and prints what it observes: the same on TCP of the kernel and on rsockets under
 * `ferroce run --sockets`.
 *
 *   differential [-p PROCESSES] [-w FEATURE,...] [-o FEATURE,...] [-e EXPECTED [-c]] [-l LIMIT_MS] FIRST LAST
 *
 * A program is a row of steps. A step acts (a call that changes something), waits until its effect has arrived, and prints one line: the
 * result of the call, and which calls that wait in other threads have ended, and with what. What depends on timing alone isn't printed:
 * which thread got an event, how often a level was reported, how many bytes fit into a full socket. So a line that differs is a defect.
 * EXPECTED is the output of a run on TCP. With it a step waits, within the limit, until calls that wait have ended as there; without it,
 * until no thread is running. A line that differs ends the run, or with -c its seed. -w leaves features out, and -o has the named ones alone of those that can be left out.
 * ADDRESS in the environment is an address of this host.
 */
#include "calls.h"
#include "storms.h"

#include <sys/resource.h>

enum { CONNECTIONS = 40, SLOTS = 240, REGISTRATIONS = 200, PARKED = 12, LINE = 8192 };
/* Bytes that a connection may have on their way. */
enum { ON_THE_WAY = 16384, CHUNK = 4096 };

/* Parts of the plan that can be left out. */
enum {
	F_RESET, F_AFTER_CLOSE, F_STALE, F_SIGNALS, F_SHUT_RD, F_STDIO, F_CLOSE_RANGE, F_NESTED, F_EXCLUSIVE, F_COPIED_SETS, F_FORK,
	F_FULL, F_STORMS, F_TIMEOUT, F_SENDFILE, F_OPTIONS, F_BAD, F_UNREAD_END, F_NO_BYTES, F_CLOSE_WATCHED, FEATURES
};
static const char *const feature_names[FEATURES] = {
	"reset", "after-close", "stale", "signals", "shut-rd", "stdio", "close-range", "nested", "exclusive", "copied-sets", "fork",
	"full", "storms", "timeout", "sendfile", "options", "bad", "unread-end", "no-bytes", "close-watched",
};
static bool without[FEATURES];

enum kind { NOTHING, LISTENER, END, SET, PIPE_IN, PIPE_OUT, EVENT };

/* A descriptor. Its place is its name in the output and its data in epoll sets. */
struct slot {
	enum kind kind;
	int process, fd;
	/* A listener, connection * 2 + side, a set, or a pipe. */
	int object;
};

struct end {
	bool exists, nonblocking, finished, shut_rd, reset, reading;
	int slots;
};

struct connection {
	int port;
	bool counted;
	struct end ends[2];
	/* By side: bytes that it has sent, and received. */
	long sent[2], received[2];
};

struct registration {
	bool used;
	int set, slot, object;
	enum kind kind;
	uint32_t events;
	/* The slot is closed, and what it led to lives on. */
	bool stale;
};

struct listener {
	int process, port;
	bool nonblocking;
	int waiting[CONNECTIONS], count;
};

enum parked_kind { PARKED_RECEIVE, PARKED_ACCEPT, PARKED_POLL, PARKED_SET };

struct parked {
	struct agent *agent;
	enum parked_kind kind;
	int slot, object;
	int slots[POLLED];
};

static struct slot slots[SLOTS];
static struct connection connections[CONNECTIONS];
static struct registration registrations[REGISTRATIONS];
static struct listener listeners[2];
static struct parked parked[PARKED];
static int slot_count, connection_count, listener_count, set_count, pipe_count, parked_count;
static int pipe_levels[32];
static int set_process[32], set_slots[32];
/* Whether an event of an edge is counted: all has arrived before, so that there is one. Data may arrive in pieces, with an edge each. */
static bool counting;
static uint64_t state;

static uint64_t next(void)
{
	uint64_t z = state += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static long draw(long below)
{
	return below > 0 ? next() % below : 0;
}

static bool chance(int percent)
{
	return draw(100) < percent;
}

/* The line of a step. */
static char line[LINE];
static size_t line_length;

static void say(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	line_length += vsnprintf(line + line_length, LINE - line_length, format, arguments);
	va_end(arguments);
	if (line_length >= LINE)
		line_length = LINE - 1;
}

static void say_result(long result, int error)
{
	if (result >= 0)
		say(" = %ld", result);
	else
		say(" = %s", result == -1 ? strerrorname_np(error) : "wrong");
}

static void say_events(uint32_t events)
{
	static const struct {
		uint32_t bit;
		const char *name;
	} names[] = {{EPOLLIN, "IN"}, {EPOLLOUT, "OUT"}, {EPOLLPRI, "PRI"}, {EPOLLRDHUP, "RDHUP"}, {EPOLLHUP, "HUP"}, {EPOLLERR, "ERR"},
		     {POLLNVAL, "NVAL"}};
	const char *between = "";

	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (events & names[i].bit) {
			say("%s%s", between, names[i].name);
			between = "|";
			events &= ~names[i].bit;
		}
	if (events)
		say("%s%x", between, events);
}

/* What has been observed on TCP. */
static char **expected_lines;
static size_t expected_count, expected_at;
static bool has_expected;

static void read_expected(const char *path)
{
	FILE *file = fopen(path, "r");
	char *text = NULL;
	size_t room = 0;
	ssize_t length;

	NEED(file);
	while ((length = getline(&text, &room, file)) > 0) {
		if (text[length - 1] == '\n')
			text[length - 1] = 0;
		expected_lines = realloc(expected_lines, (expected_count + 1) * sizeof *expected_lines);
		NEED(expected_lines);
		expected_lines[expected_count++] = strdup(text);
	}
	free(text);
	fclose(file);
	has_expected = true;
}

static void find_expected(const char *title)
{
	while (has_expected && expected_at < expected_count && strcmp(expected_lines[expected_at], title) != 0)
		expected_at++;
}

static const char *expected(void)
{
	return expected_at < expected_count ? expected_lines[expected_at] : "";
}

/* Makes a call by the agent that is kept for this. */
static void call(int process, struct command *command)
{
	struct agent *agent = &shared->agents[process][0];

	give(agent, command);
	if (!take(agent)) {
		printf("%s hangs\n", line);
		fflush(stdout);
		_exit(4);
	}
	*command = agent->command;
}

static int new_slot(enum kind kind, int process, int fd, int object)
{
	NEED(slot_count < SLOTS && fd >= 0);
	slots[slot_count] = (struct slot){kind, process, fd, object};
	return slot_count++;
}

static struct connection *connection_of(const struct slot *slot)
{
	return &connections[slot->object / 2];
}

static struct end *end_of(const struct slot *slot)
{
	return &connection_of(slot)->ends[slot->object % 2];
}

/* Bytes that the end can receive. */
static long available(int object)
{
	struct connection *c = &connections[object / 2];

	return c->sent[1 - object % 2] - c->received[object % 2];
}

/* Whether the connection ends with this end, since the other has finished, while there are unread bytes. */
static bool ends_unread(int object)
{
	const struct end *ends = connections[object / 2].ends;

	return ends[1 - object % 2].finished && (available(object) > 0 || available(object ^ 1) > 0);
}

static int pick(enum kind kind)
{
	int found[SLOTS], count = 0;

	for (int i = 0; i < slot_count; i++)
		if (slots[i].kind == kind)
			found[count++] = i;
	return count ? found[draw(count)] : -1;
}

static int slot_of_end(int object)
{
	for (int i = 0; i < slot_count; i++)
		if (slots[i].kind == END && slots[i].object == object)
			return i;
	return -1;
}

/* Any open descriptor of a process. */
static int pick_any(int process)
{
	int found[SLOTS], count = 0;

	for (int i = 0; i < slot_count; i++)
		if (slots[i].kind != NOTHING && (process < 0 || slots[i].process == process))
			found[count++] = i;
	return count ? found[draw(count)] : -1;
}

static bool is_parked_on_set(int set)
{
	for (int i = 0; i < parked_count; i++)
		if (parked[i].kind == PARKED_SET && parked[i].object == set)
			return true;
	return false;
}

/* Whether a thread waits in a call by this descriptor. */
static bool is_in_use(int slot)
{
	for (int i = 0; i < parked_count; i++) {
		const struct parked *p = &parked[i];

		if (p->slot == slot || (p->kind == PARKED_SET && slots[slot].kind == SET && p->object == slots[slot].object))
			return true;
		for (int n = 0; p->kind == PARKED_POLL && n < p->agent->command.count; n++)
			if (p->slots[n] == slot)
				return true;
	}
	return false;
}

/* Whether the set, or one that it is in, has an edge of this end. */
static bool has_edge(int object)
{
	for (int i = 0; i < REGISTRATIONS; i++)
		if (registrations[i].used && registrations[i].kind == END && registrations[i].object == object &&
		    registrations[i].events & EPOLLET)
			return true;
	return false;
}

static bool any_parked_set(void)
{
	for (int i = 0; i < parked_count; i++)
		if (parked[i].kind == PARKED_SET)
			return true;
	return false;
}

/* Whether a thread waits to receive or accept by what this leads to: it may take what others wait for before they see it. */
static bool is_taken_from(const struct slot *slot)
{
	if (slot->kind == END)
		return connections[slot->object / 2].ends[slot->object % 2].reading;
	for (int i = 0; i < parked_count; i++)
		if (slot->kind == LISTENER && parked[i].kind == PARKED_ACCEPT && parked[i].object == slot->object)
			return true;
	return false;
}

/* Whether others may wait for what this leads to. */
static bool is_watched(const struct slot *slot)
{
	for (int i = 0; i < REGISTRATIONS; i++)
		if (registrations[i].used && registrations[i].kind == slot->kind && registrations[i].object == slot->object)
			return true;
	for (int i = 0; i < parked_count; i++)
		for (int n = 0; parked[i].kind == PARKED_POLL && n < parked[i].agent->command.count; n++) {
			const struct slot *other = &slots[parked[i].slots[n]];

			if (other->kind == slot->kind && other->object == slot->object)
				return true;
		}
	return false;
}

/* Whether a thread waits for a set by poll or select. */
static bool is_set_polled(void)
{
	for (int i = 0; i < parked_count; i++)
		for (int n = 0; parked[i].kind == PARKED_POLL && n < parked[i].agent->command.count; n++)
			if (slots[parked[i].slots[n]].kind == SET)
				return true;
	return false;
}

/* Whether the set is in another, or has one. */
static bool is_nested(int set)
{
	for (int i = 0; i < REGISTRATIONS; i++)
		if (registrations[i].used && registrations[i].kind == SET && (registrations[i].set == set || registrations[i].object == set))
			return true;
	return false;
}

/* Bytes that stay unread at an end: a thread that waits for all of its bytes takes them as they come. */
static long left_unread(int object)
{
	long there = available(object);

	for (int i = 0; i < parked_count; i++) {
		const struct parked *p = &parked[i];

		if (p->kind == PARKED_RECEIVE && slots[p->slot].object == object && p->agent->command.how == RECEIVE_ALL)
			return there > p->agent->command.size ? there - p->agent->command.size : 0;
	}
	return there;
}

/* Waits until what has been done to a connection has arrived at both ends. */
static void settle_connection(int c)
{
	for (int side = 0; side < 2; side++) {
		struct end *end = &connections[c].ends[side];
		int object = c * 2 + side, slot = slot_of_end(object);
		long start = now_ms();

		if (slot < 0)
			continue;
		for (;;) {
			struct command asked = {.run = call_available, .fd = slots[slot].fd};
			bool done;

			call(slots[slot].process, &asked);
			done = end->reset || end->shut_rd || asked.result == left_unread(object);
			if (done && (end->reset || connections[c].ends[1 - side].finished)) {
				short wanted = end->reset ? POLLHUP : POLLRDHUP;
				struct command polled = {.run = call_poll, .count = 1};

				polled.polled[0] = (struct pollfd){slots[slot].fd, POLLIN | POLLRDHUP, 0};
				call(slots[slot].process, &polled);
				done = polled.polled[0].revents & wanted;
			}
			if (done) {
				struct command state = {.run = call_state, .fd = slots[slot].fd};

				/* FIN_WAIT1, LAST_ACK, CLOSING: the acknowledgement that is to come is an event. Rsockets have no state. */
				call(slots[slot].process, &state);
				done = state.result != 4 && state.result != 9 && state.result != 11;
			}
			if (done || now_ms() - start > limit_ms / 4)
				break;
			nap(now_ms() - start < 3 ? 50 : 1000);
		}
	}
}

static void settle_listener(int l)
{
	struct listener *listener = &listeners[l];
	int slot = -1;
	long start = now_ms();

	for (int i = 0; i < slot_count; i++)
		if (slots[i].kind == LISTENER && slots[i].object == l)
			slot = i;
	while (slot >= 0 && listener->count > 0) {
		struct command polled = {.run = call_poll, .count = 1}, state = {.run = call_state, .fd = slots[slot].fd};
		bool accepts = false;

		for (int i = 0; i < parked_count; i++)
			if (parked[i].kind == PARKED_ACCEPT && parked[i].object == l)
				accepts = true;
		polled.polled[0] = (struct pollfd){slots[slot].fd, POLLIN, 0};
		call(slots[slot].process, &polled);
		call(slots[slot].process, &state);
		if (accepts || (has_expected ? polled.polled[0].revents : state.other == listener->count) ||
		    now_ms() - start > limit_ms / 4)
			break;
		nap(100);
	}
}

/* Events of sets that have been found in this step. */
static struct {
	uint32_t events;
	int times;
	bool absorbed;
} found[32][SLOTS];
static bool set_found[32];
/* Sets of which events were found in the step before. */
static bool set_reported[32];

static void note_events(int set, const struct command *command, long count)
{
	for (long i = 0; i < count; i++) {
		uint64_t slot = command->events[i].data.u64;

		if (slot >= SLOTS) {
			say(" foreign data %#llx", (unsigned long long)slot);
			continue;
		}
		found[set][slot].events |= command->events[i].events;
		found[set][slot].times++;
	}
	set_found[set] = true;
}

static void forget_found(void)
{
	memset(found, 0, sizeof found);
	memset(set_found, 0, sizeof set_found);
}

static uint32_t events_of(int set, int slot)
{
	for (int i = 0; i < REGISTRATIONS; i++)
		if (registrations[i].used && registrations[i].set == set && registrations[i].slot == slot)
			return registrations[i].events;
	return 0;
}

static void say_set(int set, const char *title)
{
	say("%s set%d{", title, set);
	for (int slot = 0; slot < SLOTS; slot++) {
		uint32_t registered = events_of(set, slot);

		if (!found[set][slot].times || found[set][slot].absorbed)
			continue;
		say(" s%d:", slot);
		say_events(found[set][slot].events);
		if (found[set][slot].times > 1 && (registered & EPOLLONESHOT || (registered & EPOLLET && counting && slots[slot].kind == END)))
			say("x%d", found[set][slot].times);
	}
	say(" }");
}

static int slot_of_set(int set)
{
	for (int i = 0; i < slot_count; i++)
		if (slots[i].kind == SET && slots[i].object == set)
			return i;
	return -1;
}

static void collect(int set, int places)
{
	int slot = slot_of_set(set);
	struct command command = {.run = call_epoll_collect, .fd = slots[slot].fd, .count = places, .size = 2 + 40 / places};

	call(slots[slot].process, &command);
	if (command.result < 0)
		say(" set%d fails: %s", set, strerrorname_np(command.error));
	else
		note_events(set, &command, command.result);
}

static bool is_taken[PARKED];

/* How many bytes a call that waits gets of those that come meanwhile is a matter of timing: the rest is received here. */
static void receive_rest(const struct parked *p)
{
	struct command *c = &p->agent->command, rest = *c;
	long there = available(slots[p->slot].object), wanted = c->size < there ? c->size : there;

	if (c->result <= 0 || c->result >= wanted)
		return;
	rest.run = call_drain;
	rest.offset += c->result;
	rest.size = wanted - c->result;
	if (c->how != RECEIVE_PEEK) {
		call(slots[p->slot].process, &rest);
		if (rest.result != rest.size)
			say(" the rest is missing");
		c->wrong |= rest.wrong;
	}
	c->result = wanted;
}

/* The connection that waits at a listener and comes from this port. Connections to two listeners may have one port. */
static int waiting_from(const struct listener *listener, int port)
{
	for (int i = 0; i < listener->count; i++)
		if (connections[listener->waiting[i]].port == port)
			return listener->waiting[i];
	return -1;
}

/* Logs the results of calls that have ended. */
static void say_parked(void)
{
	int accepted[PARKED], count = 0;

	for (int i = 0; i < parked_count; i++) {
		const struct parked *p = &parked[i];
		const struct command *c = &p->agent->command;

		if (!p->agent->ended)
			continue;
		switch (p->kind) {
		case PARKED_RECEIVE:
			receive_rest(p);
			say("; receive s%d", p->slot);
			say_result(c->result, c->error);
			if (c->wrong)
				say(" WRONG BYTES");
			break;
		case PARKED_ACCEPT:
			if (c->result < 0) {
				say("; accept");
				say_result(c->result, c->error);
			} else {
				accepted[count++] = waiting_from(&listeners[p->object], c->other);
			}
			break;
		case PARKED_POLL:
			say("; poll by %d", i);
			say_result(c->result, c->error);
			for (int n = 0; c->result >= 0 && n < c->count; n++)
				if (c->polled[n].revents) {
					say(" s%d:", p->slots[n]);
					say_events(c->polled[n].revents);
				}
			if (c->handled && c->result < 0)
				say(" (%d signals)", c->handled);
			break;
		case PARKED_SET:
			break;
		}
	}
	for (int n = 0; n < connection_count; n++)
		for (int i = 0; i < count; i++)
			if (accepted[i] == n)
				say("; accepts c%d", n);
	for (int set = 0; set < set_count; set++)
		if (set_found[set])
			say_set(set, ";");
}

/* Interrupts what still waits on the set, and takes what that has found. */
static void end_waits(int set)
{
	for (int i = 0; i < parked_count; i++) {
		struct parked *p = &parked[i];
		long start = now_ms();

		if (p->kind != PARKED_SET || p->object != set || is_taken[i])
			continue;
		while (!p->agent->ended && now_ms() - start < limit_ms) {
			interrupt(p->agent, SIGUSR1);
			nap(300);
		}
		if (!p->agent->ended) {
			say(" a wait isn't interrupted");
			continue;
		}
		is_taken[i] = true;
		if (p->agent->command.result > 0)
			note_events(set, &p->agent->command, p->agent->command.result);
		else if (p->agent->command.result < 0 && p->agent->command.error != EINTR)
			say("; wait on set%d fails: %s", set, strerrorname_np(p->agent->command.error));
	}
}

/* Sets whose waits have found something, and what hasn't been found yet. */
static void look_at_sets(void)
{
	for (int i = 0; i < parked_count; i++) {
		struct parked *p = &parked[i];

		if (p->kind == PARKED_SET && p->agent->ended && !is_taken[i]) {
			end_waits(p->object);
			collect(p->object, 16);
		}
	}
	/* More of the same may come behind the first. */
	for (int set = 0; has_expected && set < set_count; set++)
		if (set_found[set] && slot_of_set(set) >= 0)
			collect(set, 16);
}

static bool quiet(void)
{
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < parked_count; i++) {
			const struct agent *agent = parked[i].agent;

			if (!agent->ended && (!agent->begun || !sleeps(agent)) && !agent->ended)
				return false;
		}
		if (round == 0)
			nap(150);
	}
	return true;
}

static void add_connection_end(int object, int process, int fd, bool nonblocking)
{
	struct end *end = &connections[object / 2].ends[object % 2];

	*end = (struct end){.exists = true, .nonblocking = nonblocking, .slots = 1, .finished = end->finished, .reset = end->reset};
	new_slot(END, process, fd, object);
}

static void forget_waiting(struct listener *listener, int c)
{
	for (int i = 0; i < listener->count; i++)
		if (listener->waiting[i] == c) {
			memmove(listener->waiting + i, listener->waiting + i + 1, (--listener->count - i) * sizeof(int));
			return;
		}
}

/* Of the threads that accept on one listener, the longest parked gets the connection: accept has no order of wakeups. */
static void order_accepts(void)
{
	for (int i = 0; i < parked_count; i++)
		for (int n = i + 1; n < parked_count; n++) {
			struct agent *first = parked[i].agent, *then = parked[n].agent;

			if (parked[i].kind == PARKED_ACCEPT && parked[n].kind == PARKED_ACCEPT && parked[i].object == parked[n].object &&
			    !first->ended && then->ended && then->command.result >= 0) {
				parked[i].agent = then;
				parked[n].agent = first;
			}
		}
}

/* Applies the results of ended calls. Connections get their slots in the order in which they were made, not in that of their accepts. */
static void take_parked(void)
{
	order_accepts();
	for (int n = 0; n < connection_count; n++)
		for (int i = 0; i < parked_count; i++) {
			struct command *c = &parked[i].agent->command;

			if (parked[i].kind == PARKED_ACCEPT && parked[i].agent->ended && c->result >= 0 &&
			    waiting_from(&listeners[parked[i].object], c->other) == n) {
				add_connection_end(n * 2 + 1, listeners[parked[i].object].process, c->result, false);
				forget_waiting(&listeners[parked[i].object], n);
			}
		}
	for (int i = 0; i < parked_count; i++) {
		struct parked *p = &parked[i];

		if (!p->agent->ended || (p->kind == PARKED_SET && !is_taken[i]))
			continue;
		if (p->kind == PARKED_RECEIVE) {
			end_of(&slots[p->slot])->reading = false;
			if (p->agent->command.result > 0 && p->agent->command.how != RECEIVE_PEEK)
				connection_of(&slots[p->slot])->received[slots[p->slot].object % 2] += p->agent->command.result;
		}
		NEED(take(p->agent));
		for (int n = i; n + 1 < parked_count; n++) {
			parked[n] = parked[n + 1];
			is_taken[n] = is_taken[n + 1];
		}
		parked_count--;
		is_taken[parked_count] = false;
		i--;
	}
}

static struct {
	int steps;
	bool differs;
} run;

/* Ends a step: waits for the calls that its act ends, and prints the line. */
static void finish_step(void)
{
	size_t own = line_length;
	long start = now_ms();

	for (;;) {
		bool is_quiet = has_expected || quiet();

		line_length = own;
		look_at_sets();
		own = line_length;
		say_parked();
		line[line_length] = 0;
		if (has_expected ? !strcmp(line, expected()) : is_quiet)
			break;
		if (now_ms() - start > limit_ms)
			break;
		nap(has_expected ? 200 : 20);
	}
	take_parked();
	puts(line);
	memcpy(set_reported, set_found, sizeof set_found);
	forget_found();
	if (has_expected) {
		run.differs = strcmp(line, expected()) != 0;
		expected_at++;
	}
	line_length = 0;
	counting = false;
	run.steps++;
}

/* The events of this end that its own acts cause on TCP at the edge alone are not guaranteed. They may come with each look in this step. */
static void absorb(int object)
{
	for (int set = 0; set < set_count; set++) {
		bool has = false;

		for (int i = 0; i < REGISTRATIONS; i++)
			if (registrations[i].used && registrations[i].set == set && registrations[i].kind == END &&
			    registrations[i].object == object && registrations[i].events & EPOLLET)
				has = true;
		if (!has || slot_of_set(set) < 0)
			continue;
		collect(set, 16);
		for (int slot = 0; slot < SLOTS; slot++)
			if (slots[slot].object == object && (slots[slot].kind == END || slots[slot].kind == NOTHING))
				found[set][slot].absorbed = true;
	}
}

/* Each piece that arrives is an edge. The waits of a step end at the first one: those of later pieces belong to the step, too. */
static void take_later_edges(void)
{
	for (int set = 0; set < set_count; set++)
		if (set_reported[set] && slot_of_set(set) >= 0)
			collect(set, 16);
	forget_found();
}

/* Closes the only descriptor of an end that can do nothing more. */
static void close_quietly(int at)
{
	struct command command = {.run = call_close, .fd = slots[at].fd};

	call(slots[at].process, &command);
	*end_of(&slots[at]) = (struct end){.exists = true, .finished = true};
	slots[at].kind = NOTHING;
}

/* ---- Acts. Each returns whether it has done something. ---- */

static bool send_act(void)
{
	int at = pick(END);
	struct slot *slot;
	struct end *end;
	struct connection *c;
	struct command command = {.run = call_send};
	bool found_by_waits;
	int side;

	if (at < 0)
		return false;
	slot = &slots[at];
	end = end_of(slot);
	c = connection_of(slot);
	side = slot->object % 2;
	command.how = draw(WRITES);
	if ((without[F_STDIO] && command.how >= SEND_STDIO) || (without[F_SENDFILE] && command.how == 5))
		command.how = draw(5);
	command.size = chance(20) ? draw(4) : 1 + draw(CHUNK);
	command.fd = slot->fd;
	command.stream = slot->object;
	command.offset = c->sent[side];
	if (available(c->ends[1 - side].exists || !c->counted ? slot->object ^ 1 : slot->object ^ 1) + command.size > ON_THE_WAY)
		return false;
	if (end->reset)
		return false;
	if (end->finished && command.how >= 5)
		command.how = draw(5);
	if (command.size == 0 && without[F_NO_BYTES])
		command.size = 1;
	/* TCP takes the first bytes before it learns that the peer has closed. The socket isn't used any more then. */
	if (c->counted && c->ends[1 - side].slots == 0 && c->ends[1 - side].exists) {
		if (without[F_AFTER_CLOSE] || !chance(30) || end->finished || end->slots > 1 || is_watched(slot) || is_in_use(at))
			return false;
		say("%d send s%d until it fails", run.steps, at);
		command.run = call_send_in_vain;
		call(slot->process, &command);
		say_result(command.result, command.error);
		close_quietly(at);
		finish_step();
		return true;
	}
	if (c->ends[1 - side].shut_rd)
		return false;
	say("%d send%d s%d %ld", run.steps, command.how, at, command.size);
	call(slot->process, &command);
	say_result(command.result, command.error);
	if (command.handled)
		say(" (%d signals)", command.handled);
	if (command.result > 0)
		c->sent[side] += command.result;
	/* Calls that wait for this may find it themselves. */
	found_by_waits = has_expected && any_parked_set();
	if (!found_by_waits)
		settle_connection(slot->object / 2);
	finish_step();
	settle_connection(slot->object / 2);
	if (found_by_waits)
		take_later_edges();
	return true;
}

static bool receive_act(void)
{
	int at = pick(END), side;
	struct slot *slot;
	struct end *end;
	struct command command = {.run = call_receive};
	long there;
	bool ends;

	if (at < 0)
		return false;
	slot = &slots[at];
	end = end_of(slot);
	side = slot->object % 2;
	there = available(slot->object);
	ends = connection_of(slot)->ends[1 - side].finished || end->shut_rd;
	if (end->reading || (end->reset && there > 0))
		return false;
	command.how = draw(READS);
	command.size = chance(10) ? 0 : chance(60) ? 1 + draw(CHUNK) : LARGEST;
	if (command.how == RECEIVE_STDIO && (without[F_STDIO] || there == 0))
		command.how = 0;
	if (command.how == RECEIVE_STDIO && command.size > there)
		command.size = there;
	if (there == 0 && !ends && !end->reset)
		command.other = MSG_DONTWAIT;
	if (command.how == RECEIVE_ALL && command.size > there && !ends && !end->nonblocking)
		command.other = MSG_DONTWAIT;
	/* What a receive of nothing returns where there is nothing isn't one answer in the kernel. */
	if (command.size == 0 && there == 0)
		command.size = 1;
	command.fd = slot->fd;
	command.stream = slot->object ^ 1;
	command.offset = connection_of(slot)->received[side];
	say("%d receive%d s%d %ld", run.steps, command.how, at, command.size);
	call(slot->process, &command);
	say_result(command.result, command.error);
	if (command.wrong)
		say(" WRONG BYTES");
	if (command.result > 0 && command.how != RECEIVE_PEEK)
		connection_of(slot)->received[side] += command.result;
	finish_step();
	return true;
}

static bool shutdown_act(void)
{
	int at = pick(END), side;
	struct slot *slot;
	struct end *end;
	struct command command = {.run = call_shutdown, .how = SHUT_WR};

	if (at < 0)
		return false;
	slot = &slots[at];
	end = end_of(slot);
	side = slot->object % 2;
	if (end->reset || (has_edge(slot->object) && any_parked_set()) || end->finished)
		return false;
	if (!without[F_SHUT_RD] && chance(20) && available(slot->object) == 0)
		command.how = chance(50) ? SHUT_RD : SHUT_RDWR;
	if (command.how != SHUT_WR && (end->reading || !connections[slot->object / 2].ends[1 - side].exists))
		return false;
	if (command.how != SHUT_RD && without[F_UNREAD_END] && ends_unread(slot->object))
		return false;
	command.fd = slot->fd;
	say("%d shutdown s%d %d", run.steps, at, command.how);
	call(slot->process, &command);
	say_result(command.result, command.error);
	if (command.how != SHUT_RD)
		end->finished = true;
	if (command.how != SHUT_WR)
		end->shut_rd = true;
	settle_connection(slot->object / 2);
	absorb(slot->object);
	finish_step();
	return true;
}

static void forget_registrations(int at, bool lives)
{
	for (int i = 0; i < REGISTRATIONS; i++) {
		struct registration *r = &registrations[i];

		if (!r->used || r->slot != at)
			continue;
		if (lives)
			r->stale = true;
		else
			r->used = false;
	}
}

/* Registrations whose slots were closed end with the last slot of the object. */
static void forget_object(enum kind kind, int object)
{
	for (int i = 0; i < REGISTRATIONS; i++) {
		struct registration *r = &registrations[i];

		if (r->used && r->kind == kind && r->object == object)
			r->used = false;
		if (r->used && kind == SET && r->set == object)
			r->used = false;
	}
}

static bool is_registered(int at)
{
	for (int i = 0; i < REGISTRATIONS; i++)
		if (registrations[i].used && registrations[i].slot == at)
			return true;
	return false;
}

static bool close_slot(int at, int how)
{
	struct slot *slot = &slots[at];
	struct command command = {.run = call_close, .fd = slot->fd, .how = how};
	bool lives = false;

	if (is_in_use(at))
		return false;
	for (int i = 0; i < slot_count; i++)
		if (i != at && slots[i].kind == slot->kind && slots[i].object == slot->object)
			lives = true;
	if (lives && is_registered(at) && without[F_STALE])
		return false;
	if (slot->kind == LISTENER && !lives)
		return false;
	if (slot->kind == END && !lives) {
		struct connection *c = connection_of(slot);
		int side = slot->object % 2;

		if (!c->counted || c->ends[side].reading || !c->ends[1 - side].exists)
			return false;
		/* An end that is closed with unread bytes sends RST, and so does a closed end that receives bytes. */
		if (available(slot->object) > 0) {
			if (without[F_RESET] || available(slot->object ^ 1) > 0)
				return false;
			c->ends[1 - side].reset = c->ends[1 - side].slots > 0;
		}
		if (has_edge(slot->object ^ 1) && any_parked_set() && c->ends[1 - side].finished)
			return false;
		if ((without[F_UNREAD_END] && ends_unread(slot->object)) ||
		    (without[F_CLOSE_WATCHED] && is_watched(slot) && any_parked_set()))
			return false;
	}
	if (slot->kind == SET && is_parked_on_set(slot->object))
		return false;
	say("%d close%d s%d", run.steps, how, at);
	call(slot->process, &command);
	say_result(command.result, command.error);
	forget_registrations(at, lives);
	if (!lives)
		forget_object(slot->kind, slot->object);
	if (slot->kind == END) {
		struct end *end = end_of(slot);

		if (--end->slots == 0)
			end->finished = true;
	}
	if (slot->kind == SET)
		set_slots[slot->object]--;
	{
		enum kind kind = slot->kind;
		int object = slot->object;

		slot->kind = NOTHING;
		if (kind == END)
			settle_connection(object / 2);
	}
	finish_step();
	return true;
}

static int draw_close(void)
{
	int how = draw(CLOSES);

	if ((without[F_CLOSE_RANGE] && (how == 3 || how == 5)) || (without[F_STDIO] && how == 4))
		how = 0;
	return how;
}

static bool close_act(void)
{
	int at = pick_any(-1), how = draw_close();

	if (at < 0 || (slots[at].kind == END && chance(50)))
		return false;
	/* A number's other users in the process, as stdio sees them, are sockets and pipes. */
	if (slots[at].kind == SET || slots[at].kind == EVENT)
		how = how == 4 ? 0 : how;
	return close_slot(at, how);
}

static bool copy_act(void)
{
	int at = pick_any(-1);
	struct command command = {.run = call_copy, .how = draw(5)};

	if (at < 0 || (slots[at].kind == SET && without[F_COPIED_SETS]) || slot_count + 2 > SLOTS)
		return false;
	command.fd = slots[at].fd;
	say("%d copy%d s%d", run.steps, command.how, at);
	call(slots[at].process, &command);
	if (command.result >= 0) {
		say(" = s%d", new_slot(slots[at].kind, slots[at].process, command.result, slots[at].object));
		if (slots[at].kind == END)
			end_of(&slots[at])->slots++;
		if (slots[at].kind == SET)
			set_slots[slots[at].object]++;
	} else {
		say_result(command.result, command.error);
	}
	finish_step();
	return true;
}

static bool blocking_act(void)
{
	int at = pick(END);
	struct command command = {.run = call_blocking, .how = draw(2), .size = draw(2)};

	if (at < 0 || end_of(&slots[at])->reading)
		return false;
	command.fd = slots[at].fd;
	say("%d blocking%d s%d %ld", run.steps, command.how, at, command.size);
	call(slots[at].process, &command);
	say_result(command.result, command.error);
	end_of(&slots[at])->nonblocking = !command.size;
	finish_step();
	return true;
}

static bool connect_act(void)
{
	int l = draw(listener_count), process = draw(processes);
	struct listener *listener = &listeners[l];
	struct command command = {.run = call_socket, .how = chance(40) ? SOCK_NONBLOCK : 0};
	int fd, nonblocking = command.how, n = connection_count;

	if (n == CONNECTIONS || listener->count > 4 || slot_count + 4 > SLOTS)
		return false;
	/* When the second of two has arrived can't be seen but by its edge. */
	for (int i = 0; i < REGISTRATIONS; i++)
		if (registrations[i].used && registrations[i].kind == LISTENER && registrations[i].object == l &&
		    registrations[i].events & EPOLLET && listener->count > 0)
			return false;
	say("%d connect%s to %d", run.steps, nonblocking ? " without blocking" : "", l);
	call(process, &command);
	fd = command.result;
	if (fd < 0) {
		say_result(fd, command.error);
		finish_step();
		return true;
	}
	command = (struct command){.run = call_connect, .fd = fd, .other = listener->port};
	call(process, &command);
	if (command.result != 0) {
		say_result(command.result, command.error);
		finish_step();
		return true;
	}
	connection_count++;
	connections[n] = (struct connection){.port = command.other, .counted = true};
	add_connection_end(n * 2, process, fd, nonblocking);
	listener->waiting[listener->count++] = n;
	say(" = c%d s%d", n, slot_count - 1);
	if (nonblocking && (command.polled[0].revents & ~POLLOUT))
		say(" events %x", command.polled[0].revents);
	settle_listener(l);
	finish_step();
	return true;
}

static bool refused_act(void)
{
	int process = draw(processes);
	struct command made = {.run = call_listen, .size = 1}, command = {.run = call_socket, .how = chance(50) ? SOCK_NONBLOCK : 0}, gone;

	say("%d refused%s", run.steps, command.how ? " without blocking" : "");
	call(process, &made);
	gone = (struct command){.run = call_close, .fd = made.result};
	call(process, &gone);
	call(process, &command);
	gone.fd = command.result;
	command = (struct command){.run = call_connect, .fd = command.result, .other = made.other};
	call(process, &command);
	say_result(command.result, command.error);
	call(process, &gone);
	finish_step();
	return true;
}

static bool accept_act(void)
{
	int at = pick(LISTENER);
	struct listener *listener;
	struct command command = {.run = call_accept}, asked;
	long start = now_ms();

	if (at < 0 || slot_count + 2 > SLOTS)
		return false;
	listener = &listeners[slots[at].object];
	for (int i = 0; i < parked_count; i++)
		if (parked[i].kind == PARKED_ACCEPT)
			return false;
	if (listener->count == 0 && (!listener->nonblocking || chance(70)))
		return false;
	command.fd = slots[at].fd;
	command.how = chance(50) ? 1 : chance(50) ? SOCK_NONBLOCK : 0;
	say("%d accept%s by s%d", run.steps, command.how & SOCK_NONBLOCK ? " without blocking" : "", at);
	/* The listener may learn of a connection later than the side that connects. */
	do {
		asked = command;
		call(slots[at].process, &asked);
	} while (listener->count > 0 && asked.result < 0 && asked.error == EAGAIN && now_ms() - start < limit_ms / 4 && (nap(1000), true));
	command = asked;
	if (command.result >= 0) {
		int which = waiting_from(listener, command.other);

		/* They are accepted in their order. */
		if (which >= 0 && which != listener->waiting[0])
			which = -1;
		say(" = c%d s%d", which, slot_count);
		if (which >= 0) {
			forget_waiting(listener, which);
			add_connection_end(which * 2 + 1, slots[at].process, command.result, command.how & SOCK_NONBLOCK);
			settle_connection(which);
			settle_listener(slots[at].object);
		}
	} else {
		say_result(command.result, command.error);
	}
	finish_step();
	return true;
}

static uint32_t draw_events(void)
{
	uint32_t events = 0;

	if (chance(85))
		events |= EPOLLIN;
	if (chance(35))
		events |= EPOLLOUT;
	if (chance(30))
		events |= EPOLLRDHUP;
	if (chance(10))
		events |= EPOLLPRI;
	if (chance(40))
		events |= EPOLLET;
	if (chance(25))
		events |= EPOLLONESHOT;
	if (!without[F_EXCLUSIVE] && chance(8))
		events |= EPOLLEXCLUSIVE;
	return events;
}

static bool has_exclusive(int at, int set)
{
	for (int i = 0; i < REGISTRATIONS; i++) {
		const struct registration *r = &registrations[i];

		if (r->used && r->kind == slots[at].kind && r->object == slots[at].object && (r->set != set || r->slot != at) &&
		    (r->events & EPOLLEXCLUSIVE))
			return true;
	}
	return false;
}

static bool is_anywhere(int at)
{
	for (int i = 0; i < REGISTRATIONS; i++)
		if (registrations[i].used && registrations[i].kind == slots[at].kind && registrations[i].object == slots[at].object)
			return true;
	return false;
}

static bool epoll_ctl_act(void)
{
	static const int operations[] = {EPOLL_CTL_ADD, EPOLL_CTL_ADD, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_MOD, EPOLL_CTL_DEL};
	int set = pick(SET), at;
	struct command command = {.run = call_epoll_ctl, .how = operations[draw(6)]};

	if (set < 0)
		return false;
	at = pick_any(slots[set].process);
	if (chance(60))
		for (int tries = 0; tries < 10 && slots[at].kind != END; tries++)
			at = pick_any(slots[set].process);
	/* Known entries are more interesting for MOD and DEL. */
	if (command.how != EPOLL_CTL_ADD && chance(80))
		for (int i = 0; i < REGISTRATIONS; i++)
			if (registrations[i].used && !registrations[i].stale && registrations[i].set == slots[set].object && chance(40)) {
				at = registrations[i].slot;
				break;
			}
	command.events[0] = (struct epoll_event){.events = draw_events(), .data.u64 = at};
	if (slots[at].kind == SET && (without[F_NESTED] || command.events[0].events & EPOLLEXCLUSIVE))
		return false;
	/* Two that wait for an event of the same edge: one gets it. */
	if ((slots[at].kind == SET && (any_parked_set() || is_set_polled())) || is_taken_from(&slots[at]))
		return false;
	/* When the second of two connections has arrived can't be seen but by its edge. */
	if (slots[at].kind == LISTENER && command.events[0].events & EPOLLET && listeners[slots[at].object].count > 1)
		return false;
	/* An exclusive entry takes events from those in other sets, or not. */
	if ((command.events[0].events & EPOLLEXCLUSIVE && is_anywhere(at)) || has_exclusive(at, slots[set].object))
		return false;
	command.fd = slots[set].fd;
	command.other = slots[at].fd;
	say("%d %s set%d s%d ", run.steps, command.how == EPOLL_CTL_ADD ? "ADD" : command.how == EPOLL_CTL_MOD ? "MOD" : "DEL",
	    slots[set].object, at);
	if (command.how != EPOLL_CTL_DEL) {
		say_events(command.events[0].events & 0xffff);
		say("%s%s%s", command.events[0].events & EPOLLET ? "|ET" : "", command.events[0].events & EPOLLONESHOT ? "|ONESHOT" : "",
		    command.events[0].events & EPOLLEXCLUSIVE ? "|EXCLUSIVE" : "");
	}
	call(slots[set].process, &command);
	say_result(command.result, command.error);
	if (command.result == 0)
		for (int i = 0; i < REGISTRATIONS; i++) {
			struct registration *r = &registrations[i];
			bool same = r->used && r->set == slots[set].object && r->slot == at;

			if (command.how == EPOLL_CTL_ADD ? !r->used : same) {
				*r = (struct registration){command.how != EPOLL_CTL_DEL, slots[set].object, at, slots[at].object,
							   slots[at].kind, command.events[0].events, false};
				break;
			}
		}
	finish_step();
	return true;
}

static bool epoll_create_act(void)
{
	struct command command = {.run = call_epoll_create, .how = draw(2)};
	int process = draw(processes);

	if (set_count == 6 || slot_count + 2 > SLOTS)
		return false;
	say("%d epoll_create%d", run.steps, command.how);
	call(process, &command);
	if (command.result < 0) {
		say_result(command.result, command.error);
	} else {
		say(" = set%d s%d", set_count, slot_count);
		new_slot(SET, process, command.result, set_count);
		set_process[set_count] = process;
		set_slots[set_count++] = 1;
	}
	finish_step();
	return true;
}

static bool pipe_act(void)
{
	struct command command = {.run = chance(60) ? call_pipe : call_eventfd};
	int process = draw(processes);

	if (pipe_count == 8 || slot_count + 4 > SLOTS)
		return false;
	call(process, &command);
	say("%d %s = %s s%d", run.steps, command.run == call_pipe ? "pipe" : "eventfd", command.result < 0 ? "fails" : "", slot_count);
	pipe_levels[pipe_count] = 0;
	if (command.run == call_pipe) {
		new_slot(PIPE_OUT, process, command.fd, pipe_count);
		new_slot(PIPE_IN, process, command.other, pipe_count);
	} else {
		new_slot(EVENT, process, command.result, pipe_count);
	}
	pipe_count++;
	finish_step();
	return true;
}

static bool raise_act(void)
{
	int at = pick(chance(50) ? PIPE_IN : EVENT);
	struct command command = {.run = call_raise};

	if (at < 0)
		return false;
	command.fd = slots[at].fd;
	command.how = slots[at].kind == EVENT;
	say("%d raise s%d", run.steps, at);
	call(slots[at].process, &command);
	say_result(command.result, command.error);
	if (command.handled)
		say(" (%d signals)", command.handled);
	finish_step();
	return true;
}

static bool lower_act(void)
{
	int at = pick(chance(50) ? PIPE_OUT : EVENT);
	struct command command = {.run = call_lower};

	if (at < 0)
		return false;
	command.fd = slots[at].fd;
	command.how = slots[at].kind == EVENT;
	say("%d lower s%d", run.steps, at);
	call(slots[at].process, &command);
	say_result(command.result, command.error);
	finish_step();
	return true;
}

static bool option_act(void)
{
	int at = pick(chance(80) ? END : LISTENER);
	struct command command = {.run = call_option, .how = draw(OPTIONS)};

	if (at < 0 || without[F_OPTIONS] || (slots[at].kind == END && end_of(&slots[at])->reset) ||
	    (slots[at].kind == END && (end_of(&slots[at])->finished || connection_of(&slots[at])->ends[1 - slots[at].object % 2].finished)))
		return false;
	command.fd = slots[at].fd;
	say("%d option%d s%d", run.steps, command.how, at);
	call(slots[at].process, &command);
	say_result(command.result, command.error);
	finish_step();
	return true;
}

/* Calls with what isn't a descriptor, isn't a socket, or isn't a set. */
static bool bad_act(void)
{
	int at = pick_any(-1), set = pick(SET), what = draw(7);
	struct command command = {.fd = what < 4 ? 1000 : at < 0 ? 1000 : slots[at].fd, .size = 1, .count = 1};
	int process = at < 0 ? 0 : slots[at].process;

	if (without[F_BAD] || (what == 3 && set < 0))
		return false;
	if (what == 4 && (at < 0 || (slots[at].kind != PIPE_OUT && slots[at].kind != SET)))
		return false;
	if (what == 5 && (at < 0 || slots[at].kind == SET))
		return false;
	if (what == 6 && set < 0)
		return false;
	switch (what) {
	case 0:
		command.run = call_send;
		command.how = draw(5);
		break;
	case 1:
		command.run = call_receive;
		command.how = draw(RECEIVE_ALL);
		break;
	case 2:
		command.run = call_close;
		break;
	case 3:
		command.run = call_epoll_ctl;
		command.fd = slots[set].fd;
		process = slots[set].process;
		command.other = 1000;
		command.how = EPOLL_CTL_ADD;
		break;
	case 4:
		command.run = draw(2) ? call_accept : call_shutdown;
		break;
	case 5:
		command.run = call_epoll_wait;
		command.how = draw(WAITS);
		command.size = 0;
		break;
	default:
		command.run = call_epoll_wait;
		command.fd = slots[set].fd;
		process = slots[set].process;
		command.how = draw(WAITS);
		command.size = 0;
		command.count = -(int)draw(2);
	}
	say("%d bad%d", run.steps, what);
	call(process, &command);
	say_result(command.result, command.error);
	finish_step();
	return true;
}

static bool fork_act(void)
{
	int at = pick_any(-1);
	struct command command = {.run = call_fork, .how = draw(FORKS)};

	if (at < 0 || without[F_FORK])
		return false;
	command.fd = slots[at].fd;
	say("%d fork%d", run.steps, command.how);
	call(slots[at].process, &command);
	say_result(command.result, command.error);
	finish_step();
	return true;
}

static bool full_act(void)
{
	int at = pick(END), peer;
	struct command command = {.run = call_fill, .size = 1 + draw(LARGEST)};
	struct connection *c;
	int side;
	long sent;

	if (at < 0 || without[F_FULL] || !chance(25))
		return false;
	c = connection_of(&slots[at]);
	side = slots[at].object % 2;
	peer = slot_of_end(slots[at].object ^ 1);
	if (peer < 0 || end_of(&slots[at])->finished || end_of(&slots[at])->reset || c->ends[1 - side].shut_rd || c->ends[1 - side].reading ||
	    c->ends[1 - side].reset || parked_count > 0)
		return false;
	command.fd = slots[at].fd;
	command.stream = slots[at].object;
	command.offset = c->sent[side];
	say("%d fill s%d", run.steps, at);
	call(slots[at].process, &command);
	sent = command.result;
	say_result(sent > 0 ? 1 : sent, command.error);
	if (sent > 0)
		c->sent[side] += sent;
	absorb(slots[at].object);
	if (sent > 0) {
		int both[2] = {at, peer};

		for (int i = 0; i < 2; i++) {
			command = (struct command){.run = call_poll, .count = 1};
			command.polled[0] = (struct pollfd){slots[both[i]].fd, POLLIN | POLLOUT, 0};
			call(slots[both[i]].process, &command);
			say(" s%d:", both[i]);
			say_events(command.polled[0].revents & (i ? POLLIN : POLLOUT));
		}
	}
	/* The peer's edges come with each part. */
	absorb(slots[at].object ^ 1);
	command = (struct command){.run = call_drain, .fd = slots[peer].fd, .stream = slots[at].object, .offset = c->received[1 - side],
				   .size = available(slots[peer].object)};
	call(slots[peer].process, &command);
	if (command.result >= 0)
		c->received[1 - side] += command.result;
	say(" drained");
	say_result(command.result == command.size ? 1 : 0, command.error);
	if (command.wrong)
		say(" WRONG BYTES");
	command = (struct command){.run = call_poll, .count = 1, .size = limit_ms};
	command.polled[0] = (struct pollfd){slots[at].fd, POLLOUT, 0};
	call(slots[at].process, &command);
	say(" again:");
	say_events(command.polled[0].revents);
	absorb(slots[at].object);
	absorb(slots[peer].object);
	finish_step();
	return true;
}

static bool timeout_act(void)
{
	int at = pick(END);
	struct command command = {.run = call_receive_timeout, .size = 20};

	if (at < 0 || without[F_TIMEOUT] || !chance(30) || end_of(&slots[at])->reading || end_of(&slots[at])->reset)
		return false;
	command.fd = slots[at].fd;
	if (end_of(&slots[at])->nonblocking)
		return false;
	say("%d receive with a limit s%d", run.steps, at);
	call(slots[at].process, &command);
	say_result(command.result, command.error);
	finish_step();
	return true;
}

/* ---- Observations ---- */

static void draw_polled(struct command *command, int *names, int process, bool select)
{
	command->count = 0;
	for (int tries = 0; tries < POLLED; tries++) {
		int at = pick_any(process);
		short events = 0;
		bool twice = false;

		if (at < 0)
			break;
		for (int i = 0; i < command->count; i++)
			if (names[i] == at)
				twice = true;
		if (twice || (slots[at].kind == SET && without[F_NESTED]))
			continue;
		if (chance(80))
			events |= POLLIN;
		if (chance(30))
			events |= POLLOUT;
		if (!select && chance(30))
			events |= POLLRDHUP;
		if (chance(10))
			events |= POLLPRI;
		names[command->count] = at;
		command->polled[command->count++] = (struct pollfd){slots[at].fd, events, 0};
	}
}

static bool poll_act(void)
{
	int names[POLLED], process = draw(processes);
	struct command command = {.run = call_poll, .how = draw(POLLS)};

	draw_polled(&command, names, process, command.how >= 2);
	if (command.count == 0)
		return false;
	if (!without[F_SIGNALS] && command.how != 0 && command.how != 2 && chance(20))
		command.how |= POLL_SIGNALS | (chance(50) ? POLL_PENDING : 0);
	say("%d poll%d", run.steps, command.how);
	call(process, &command);
	say_result(command.result, command.error);
	for (int i = 0; command.result >= 0 && i < command.count; i++)
		if (command.polled[i].revents) {
			say(" s%d:", names[i]);
			say_events(command.polled[i].revents);
		}
	/* A signal that comes while descriptors are ready may be handled now or later. */
	if (command.handled && command.result < 0)
		say(" (%d signals)", command.handled);
	finish_step();
	return true;
}

static bool collect_act(void)
{
	int at = pick(SET), set, places = chance(50) ? 1 + draw(2) : 16;
	size_t own;
	long start = now_ms();

	if (at < 0 || is_parked_on_set(slots[at].object))
		return false;
	set = slots[at].object;
	counting = true;
	say("%d collect %d", run.steps, places);
	own = line_length;
	do {
		line_length = own;
		collect(set, places);
		say_set(set, ";");
		line[line_length] = 0;
	} while (has_expected && strncmp(line, expected(), line_length) != 0 && now_ms() - start < limit_ms && (nap(500), true));
	line_length = own;
	finish_step();
	return true;
}

/* ---- Calls that wait ---- */

static struct agent *park(struct parked entry, int process, const struct command *command)
{
	struct agent *agent = free_agent(process);

	if (!agent || parked_count == PARKED)
		return NULL;
	give(agent, command);
	entry.agent = agent;
	parked[parked_count++] = entry;
	return agent;
}

static bool park_receive_act(void)
{
	int at = pick(END);
	struct command command = {.run = call_receive, .how = draw(READS - 1), .size = 1 + draw(CHUNK)};
	struct end *end;

	if (at < 0 || !free_agent(slots[at].process))
		return false;
	end = end_of(&slots[at]);
	if (end->reading || end->nonblocking || end->reset || available(slots[at].object) > 0 || is_watched(&slots[at]))
		return false;
	command.fd = slots[at].fd;
	command.stream = slots[at].object ^ 1;
	command.offset = connection_of(&slots[at])->received[slots[at].object % 2];
	/* How many bytes come in the first of several pieces is a matter of timing. */
	if (command.how == RECEIVE_ALL)
		command.size = 1 + draw(300);
	end->reading = true;
	say("%d wait to receive%d s%d %ld", run.steps, command.how, at, command.size);
	park((struct parked){.kind = PARKED_RECEIVE, .slot = at}, slots[at].process, &command);
	finish_step();
	return true;
}

static bool park_accept_act(void)
{
	int at = pick(LISTENER);
	struct command command = {.run = call_accept, .how = draw(2)};

	if (at < 0 || listeners[slots[at].object].nonblocking || !free_agent(slots[at].process) || listeners[slots[at].object].count > 0 ||
	    is_watched(&slots[at]))
		return false;
	command.fd = slots[at].fd;
	say("%d wait to accept s%d", run.steps, at);
	park((struct parked){.kind = PARKED_ACCEPT, .slot = at, .object = slots[at].object}, slots[at].process, &command);
	finish_step();
	return true;
}

static bool park_poll_act(void)
{
	int process = draw(processes);
	struct command command = {.run = call_poll, .how = draw(POLLS), .size = -1};
	struct parked entry = {.kind = PARKED_POLL, .slot = -1};

	if (!free_agent(process))
		return false;
	draw_polled(&command, entry.slots, process, command.how >= 2);
	if (command.count == 0)
		return false;
	for (int i = 0; i < command.count; i++)
		if ((slots[entry.slots[i]].kind == SET && any_parked_set()) || is_taken_from(&slots[entry.slots[i]]))
			return false;
	if (!without[F_SIGNALS] && command.how != 0 && command.how != 2 && chance(40))
		command.how |= POLL_SIGNALS;
	say("%d wait by poll%d", run.steps, command.how);
	park(entry, process, &command);
	finish_step();
	return true;
}

static bool park_set_act(void)
{
	int at = pick(SET), waits = 1 + draw(3);

	if (at < 0 || is_set_polled() || (is_nested(slots[at].object) && any_parked_set()))
		return false;
	for (int i = 0; i < parked_count; i++)
		if (parked[i].kind == PARKED_SET && is_nested(parked[i].object))
			return false;
	say("%d %d waits on set%d", run.steps, waits, slots[at].object);
	for (int i = 0; i < waits; i++) {
		struct command command = {.run = call_epoll_wait, .how = draw(WAITS), .size = -1, .count = 1 + draw(8), .fd = slots[at].fd};

		if (!without[F_SIGNALS] && command.how > 0 && chance(20))
			command.how |= WAIT_SIGNALS;
		park((struct parked){.kind = PARKED_SET, .slot = at, .object = slots[at].object}, slots[at].process, &command);
	}
	finish_step();
	return true;
}

static bool interrupt_act(void)
{
	int which = draw(parked_count), number = chance(60) ? SIGUSR1 : SIGUSR2;
	struct parked *p = &parked[which];
	bool unblocks;
	long start = now_ms();

	if (parked_count == 0 || without[F_SIGNALS] || p->kind == PARKED_SET)
		return false;
	unblocks = number == SIGUSR1 || (p->kind == PARKED_POLL && p->agent->command.how & POLL_SIGNALS);
	say("%d interrupt %d%s", run.steps, which, unblocks ? "" : " by a blocked signal");
	/* A thread that hasn't come to its call yet gets the signal before. */
	while (has_expected && !(p->agent->begun && sleeps(p->agent)) && !p->agent->ended && now_ms() - start < 2000)
		nap(200);
	if (has_expected)
		nap(1000);
	interrupt(p->agent, number);
	while (unblocks && has_expected && !p->agent->ended && now_ms() - start < limit_ms)
		nap(200);
	finish_step();
	return true;
}

/* ---- Phases in which many threads act at once ---- */

static bool storm_act(void)
{
	int storm = draw(STORMS);
	uint64_t seed = next();
	const char *what;

	if (without[F_STORMS] || !chance(30) || parked_count > 0)
		return false;
	say("%d storm %s", run.steps, storm_name(storm));
	line[line_length] = 0;
	what = run_storm(storm, seed);
	say(" = %s", what);
	finish_step();
	return true;
}

static const struct {
	bool (*act)(void);
	int weight;
} acts[] = {
	{send_act, 24},	    {receive_act, 18},	{shutdown_act, 3},   {close_act, 4},	    {copy_act, 3},	{blocking_act, 3},
	{connect_act, 6},   {refused_act, 1},	{accept_act, 6},     {epoll_ctl_act, 22},   {epoll_create_act, 4}, {pipe_act, 2},
	{raise_act, 3},	    {lower_act, 3},	{option_act, 3},     {bad_act, 2},	    {fork_act, 1},	{full_act, 4},
	{timeout_act, 1},   {poll_act, 8},	{collect_act, 14},   {park_receive_act, 5}, {park_accept_act, 3}, {park_poll_act, 5},
	{park_set_act, 10}, {interrupt_act, 3}, {storm_act, 6},
};

static void clean_up(void)
{
	for (int i = 0; i < parked_count; i++) {
		struct agent *agent = parked[i].agent;
		long start = now_ms();

		while (!agent->ended) {
			interrupt(agent, SIGUSR1);
			nap(300);
			if (now_ms() - start > limit_ms) {
				puts("a call that waits isn't interrupted");
				fflush(stdout);
				_exit(4);
			}
		}
		if (parked[i].kind == PARKED_ACCEPT && agent->command.result >= 0)
			new_slot(END, listeners[parked[i].object].process, agent->command.result, 0);
		NEED(take(agent));
	}
	parked_count = 0;
	memset(is_taken, 0, sizeof is_taken);
	for (int i = 0; i < slot_count; i++)
		if (slots[i].kind != NOTHING) {
			struct command command = {.run = call_close, .fd = slots[i].fd};

			call(slots[i].process, &command);
		}
}

static void run_seed(uint64_t seed)
{
	char title[40];
	int steps, total = 0;

	state = seed * 0x2545f4914f6cdd1d + 1;
	memset(slots, 0, sizeof slots);
	memset(connections, 0, sizeof connections);
	memset(registrations, 0, sizeof registrations);
	memset(listeners, 0, sizeof listeners);
	forget_found();
	slot_count = connection_count = set_count = pipe_count = parked_count = 0;
	run.steps = 0;
	run.differs = false;
	line_length = 0;
	snprintf(title, sizeof title, "seed %llu", (unsigned long long)seed);
	puts(title);
	find_expected(title);
	expected_at++;
	listener_count = 1 + draw(2);
	for (int l = 0; l < listener_count; l++) {
		struct command command = {.run = call_listen, .size = 8, .how = chance(50) ? SOCK_NONBLOCK : 0};

		listeners[l] = (struct listener){.process = draw(processes), .nonblocking = command.how};
		call(listeners[l].process, &command);
		NEED(command.result >= 0);
		listeners[l].port = command.other;
		new_slot(LISTENER, listeners[l].process, command.result, l);
	}
	for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
		total += acts[i].weight;
	for (int i = 1 + draw(4); i > 0 && !run.differs; i--) {
		connect_act();
		if (!run.differs && chance(90))
			accept_act();
	}
	if (!run.differs)
		epoll_create_act();
	steps = 15 + draw(45);
	for (int tries = 0; run.steps < steps && tries < 10 * steps && !run.differs; tries++) {
		int weight = draw(total);
		size_t i = 0;

		while (weight >= acts[i].weight)
			weight -= acts[i++].weight;
		acts[i].act();
	}
	clean_up();
	fflush(stdout);
}

static void choose(const char *list, bool only)
{
	for (int i = 0; i < FEATURES; i++) {
		size_t length = strlen(feature_names[i]);
		bool named = false;

		for (const char *at = list; (at = strstr(at, feature_names[i])); at += length)
			if ((at == list || at[-1] == ',') && (at[length] == ',' || at[length] == 0))
				named = true;
		if (named != only)
			without[i] = true;
	}
}

int main(int argc, char **argv)
{
	bool goes_on = false;
	int letter;

	while ((letter = getopt(argc, argv, "p:w:o:e:l:c")) != -1)
		switch (letter) {
		case 'p':
			processes = atoi(optarg);
			break;
		case 'w':
			choose(optarg, false);
			break;
		case 'o':
			choose(optarg, true);
			break;
		case 'e':
			read_expected(optarg);
			break;
		case 'l':
			limit_ms = atoi(optarg);
			break;
		case 'c':
			goes_on = true;
			break;
		default:
			return 2;
		}
	if (argc - optind != 2 || processes < 1 || processes > PROCESSES)
		fail("usage: differential [-p PROCESSES] [-w FEATURES] [-o FEATURES] [-e EXPECTED [-c]] [-l LIMIT_MS] FIRST LAST");
	start_agents();
	for (uint64_t seed = strtoull(argv[optind], NULL, 10); seed <= strtoull(argv[optind + 1], NULL, 10); seed++) {
		run_seed(seed);
		if (run.differs && !goes_on)
			return 1;
	}
	puts("end");
	return 0;
}
