// Messages between MPI ranks, every byte of them checked.
//
//     mpirun -n N exchange [-1]
//
// A ring, a burst of messages received in another order than sent, an all-reduce and an all-to-all, of 8 bytes to
// 4 MiB; with -1 also one-sided PUT, GET, ACCUMULATE and FETCH_AND_OP. Rank 0 prints "exchange ok" at the end.

#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LARGEST (4u << 20)
#define BURST 64

static int rank, ranks;
static uint64_t *out, *in;

static void fail(const char *what, size_t bytes, size_t word, uint64_t got, uint64_t wanted)
{
	fprintf(stderr, "rank %d: %s of %zu bytes: word %zu is %#llx and should be %#llx\n", rank, what, bytes, word,
		(unsigned long long)got, (unsigned long long)wanted);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

// What rank `from` puts into word `word` of its message number `round`; never the same twice.
static uint64_t pattern(int from, unsigned round, size_t word)
{
	uint64_t x = ((uint64_t)from << 56) ^ ((uint64_t)round << 32) ^ word;
	return (x + 1) * 0x9e3779b97f4a7c15u;
}

static void fill(uint64_t *words, size_t bytes, unsigned round)
{
	for (size_t i = 0; i < bytes / 8; i++)
		words[i] = pattern(rank, round, i);
}

static void check(const char *what, const uint64_t *words, size_t bytes, int from, unsigned round)
{
	for (size_t i = 0; i < bytes / 8; i++)
		if (words[i] != pattern(from, round, i))
			fail(what, bytes, i, words[i], pattern(from, round, i));
}

static void ring(size_t bytes, unsigned round)
{
	int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
	fill(out, bytes, round);
	memset(in, 0xee, bytes);
	MPI_Sendrecv(out, bytes, MPI_BYTE, right, round, in, bytes, MPI_BYTE, left, round, MPI_COMM_WORLD,
		     MPI_STATUS_IGNORE);
	check("ring", in, bytes, left, round);
}

// Received last to first, so that all but the last come unexpected.
static void burst(size_t bytes)
{
	MPI_Request requests[BURST];
	int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
	size_t words = bytes / 8;
	for (unsigned i = 0; i < BURST; i++) {
		for (size_t word = 0; word < words; word++)
			out[i * words + word] = pattern(rank, i, word);
		MPI_Isend(out + i * words, bytes, MPI_BYTE, right, i, MPI_COMM_WORLD, &requests[i]);
	}
	for (int i = BURST - 1; i >= 0; i--) {
		MPI_Recv(in, bytes, MPI_BYTE, left, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		check("burst", in, bytes, left, i);
	}
	MPI_Waitall(BURST, requests, MPI_STATUSES_IGNORE);
}

static void all_reduce(size_t bytes)
{
	for (size_t i = 0; i < bytes / 8; i++)
		out[i] = (uint64_t)(rank + 1) * (i + 1);
	MPI_Allreduce(out, in, bytes / 8, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
	uint64_t factor = (uint64_t)ranks * (ranks + 1) / 2;
	for (size_t i = 0; i < bytes / 8; i++)
		if (in[i] != factor * (i + 1))
			fail("all-reduce", bytes, i, in[i], factor * (i + 1));
}

static void all_to_all(size_t bytes, unsigned round)
{
	size_t part = bytes / 8 / ranks;
	if (part == 0)
		return;
	for (int to = 0; to < ranks; to++)
		for (size_t i = 0; i < part; i++)
			out[to * part + i] = pattern(rank, round, to * part + i);
	MPI_Alltoall(out, part, MPI_UINT64_T, in, part, MPI_UINT64_T, MPI_COMM_WORLD);
	for (int from = 0; from < ranks; from++)
		for (size_t i = 0; i < part; i++)
			if (in[from * part + i] != pattern(from, round, rank * part + i))
				fail("all-to-all", bytes, from * part + i, in[from * part + i],
				     pattern(from, round, rank * part + i));
}

static void one_sided(void)
{
	uint64_t *window_words;
	MPI_Win window;
	int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
	MPI_Win_allocate(LARGEST, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window_words, &window);
	for (size_t bytes = 8; bytes <= LARGEST; bytes *= 8) {
		memset(window_words, 0xee, LARGEST);
		fill(out, bytes, 1);
		memset(in, 0xee, bytes);
		MPI_Win_fence(0, window);
		MPI_Put(out, bytes, MPI_BYTE, right, 0, bytes, MPI_BYTE, window);
		MPI_Win_fence(0, window);
		check("put", window_words, bytes, left, 1);
		MPI_Get(in, bytes, MPI_BYTE, right, 0, bytes, MPI_BYTE, window);
		MPI_Win_fence(0, window);
		check("get", in, bytes, rank, 1);
	}
	window_words[0] = window_words[1] = 0;
	MPI_Win_fence(0, window);
	// The library may read them until the fence.
	uint64_t terms[200];
	for (uint64_t i = 1; i <= 200; i++) {
		terms[i - 1] = i;
		MPI_Accumulate(&terms[i - 1], 1, MPI_UINT64_T, 0, 0, 1, MPI_UINT64_T, MPI_SUM, window);
	}
	MPI_Win_fence(0, window);
	uint64_t sum = (uint64_t)ranks * 200 * 201 / 2, one = 1, before;
	if (rank == 0 && window_words[0] != sum)
		fail("accumulate", 8, 0, window_words[0], sum);
	MPI_Win_lock_all(0, window);
	for (int i = 0; i < 200; i++) {
		MPI_Fetch_and_op(&one, &before, MPI_UINT64_T, 0, 8, MPI_SUM, window);
		MPI_Win_flush(0, window);
		if (before >= (uint64_t)ranks * 200)
			fail("fetch-and-op", 8, i, before, (uint64_t)ranks * 200 - 1);
	}
	MPI_Win_unlock_all(window);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_fence(0, window);
	if (rank == 0 && window_words[1] != (uint64_t)ranks * 200)
		fail("fetch-and-op", 8, 1, window_words[1], (uint64_t)ranks * 200);
	MPI_Win_free(&window);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	out = malloc(LARGEST);
	in = malloc(LARGEST);
	if (!out || !in)
		MPI_Abort(MPI_COMM_WORLD, 1);
	for (size_t bytes = 8; bytes <= LARGEST; bytes *= 2) {
		for (unsigned round = 0; round < 3; round++)
			ring(bytes, round);
		all_reduce(bytes);
		all_to_all(bytes, 7);
	}
	burst(8);
	burst(2048);
	burst(65536);
	if (argc > 1 && strcmp(argv[1], "-1") == 0)
		one_sided();
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		puts("exchange ok");
	free(in);
	free(out);
	MPI_Finalize();
	return 0;
}
