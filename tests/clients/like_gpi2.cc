// What GPI-2 does on verbs, between two ranks: the first without an argument, the second with its address.
//
// Each rank has a segment that all ranks write to, and several queues: a completion queue, with a queue pair to each rank, itself
// included. A notification is a word in the segment. It is written by an inline WRITE behind the data's WRITE, in one list, and the
// other rank waits for it by looking at memory. Queues are waited for by counting completions. Counters are changed by atomics.

#include "sides.h"

#include <atomic>
#include <vector>

namespace {

constexpr std::uint16_t PORT = 17816;
constexpr unsigned RANKS = 2, QUEUES = 3, ROUNDS = 300;
constexpr std::size_t DATA = 40'000;
// What a segment consists of: what comes by each queue from each rank, what is sent, notifications, and a counter.
constexpr std::size_t INCOMING = 0, OUTGOING = INCOMING + RANKS * QUEUES * DATA, NOTIFICATIONS = OUTGOING + DATA;
constexpr std::size_t COUNTER = NOTIFICATIONS + 64, FETCHED = COUNTER + 8, SIZE = FETCHED + 8;

struct Rank {
  std::uint64_t segment;
  std::uint32_t rkey;
  // Of the queue pairs to each rank.
  std::uint32_t qpns[QUEUES][RANKS];
  ibv_gid gid;
};

struct Queue {
  ibv_cq* cq;
  ibv_qp* qps[RANKS];
  unsigned posted;
};

class Gaspi {
public:
  Gaspi(unsigned rank, int peer) : rank_(rank), peer_(peer), segment_(SIZE) {
    region_ = made(ibv_reg_mr(device_.pd, segment_.data(), SIZE, ACCESS), "ibv_reg_mr");
    Rank own{reinterpret_cast<std::uint64_t>(segment_.data()), region_->rkey, {}, device_.gid};
    for (unsigned queue = 0; queue < QUEUES; queue++) {
      queues_[queue].cq = made(ibv_create_cq(device_.context, 1024, nullptr, nullptr, 0), "ibv_create_cq");
      queues_[queue].posted = 0;
      for (unsigned to = 0; to < RANKS; to++) {
        ibv_qp_init_attr init{};
        init.send_cq = init.recv_cq = queues_[queue].cq;
        init.cap = {1024, 1024, 1, 1, 128};
        init.qp_type = IBV_QPT_RC;
        queues_[queue].qps[to] = made(ibv_create_qp(device_.pd, &init), "ibv_create_qp");
        own.qpns[queue][to] = queues_[queue].qps[to]->qp_num;
      }
    }
    ranks_[rank_] = own;
    ranks_[1 - rank_] = exchange(peer_, own);
    for (unsigned queue = 0; queue < QUEUES; queue++) {
      for (unsigned to = 0; to < RANKS; to++) {
        connect_qp(device_, queues_[queue].qps[to], ranks_[to].qpns[queue][rank_], ranks_[to].gid);
      }
    }
    barrier();
  }

  void barrier() { exchange(peer_, 0); }

  // Writes data of a round to a rank's segment, and a notification behind it.
  void write_notify(unsigned queue, unsigned to, std::uint32_t value) {
    ibv_sge data{at(OUTGOING), DATA, region_->lkey};
    ibv_sge word{reinterpret_cast<std::uint64_t>(&value), sizeof value, 0};
    ibv_send_wr writes[2]{};
    writes[0].next = &writes[1];
    writes[0].sg_list = &data;
    writes[0].wr.rdma = {ranks_[to].segment + incoming(rank_, queue), ranks_[to].rkey};
    writes[1].sg_list = &word;
    writes[1].send_flags = IBV_SEND_INLINE;
    writes[1].wr.rdma = {ranks_[to].segment + NOTIFICATIONS + 4 * (rank_ * QUEUES + queue), ranks_[to].rkey};
    for (ibv_send_wr& write : writes) {
      write.num_sge = 1;
      write.opcode = IBV_WR_RDMA_WRITE;
      write.send_flags |= IBV_SEND_SIGNALED;
    }
    post(queue, to, &writes[0], 2);
  }

  // Waits until all of a queue has completed.
  void wait(unsigned queue) {
    while (queues_[queue].posted > 0) {
      ibv_wc wc{};
      const int count = ibv_poll_cq(queues_[queue].cq, 1, &wc);
      if (count < 0) {
        fail("ibv_poll_cq");
      }
      if (count > 0) {
        expect_success(wc);
        queues_[queue].posted--;
      }
    }
  }

  // Waits for a notification, and takes it.
  std::uint32_t notified(unsigned from, unsigned queue) {
    auto* word = reinterpret_cast<std::atomic<std::uint32_t>*>(segment_.data() + NOTIFICATIONS + 4 * (from * QUEUES + queue));
    while (word->load(std::memory_order_acquire) == 0) {
    }
    return word->exchange(0);
  }

  std::uint64_t atomic(ibv_wr_opcode opcode, unsigned queue, unsigned on, std::uint64_t operand, std::uint64_t swap) {
    ibv_sge sge{at(FETCHED), 8, region_->lkey};
    ibv_send_wr wr{};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.atomic = {ranks_[on].segment + COUNTER, operand, swap, ranks_[on].rkey};
    post(queue, on, &wr, 1);
    wait(queue);
    return word(FETCHED);
  }

  void fill_round(std::uint64_t number) { fill(segment_.data() + OUTGOING, DATA, number); }

  void expect_round(unsigned from, unsigned queue, std::uint64_t number) {
    expect_bytes(segment_.data() + incoming(from, queue), DATA, number, "round");
  }

  std::uint64_t word(std::size_t place) const {
    std::uint64_t value = 0;
    std::memcpy(&value, segment_.data() + place, sizeof value);
    return value;
  }

private:
  static std::size_t incoming(unsigned from, unsigned queue) { return INCOMING + (from * QUEUES + queue) * DATA; }
  std::uint64_t at(std::size_t place) { return reinterpret_cast<std::uint64_t>(segment_.data() + place); }

  void post(unsigned queue, unsigned to, ibv_send_wr* list, unsigned count) {
    ibv_send_wr* bad = nullptr;
    must(ibv_post_send(queues_[queue].qps[to], list, &bad), "ibv_post_send");
    queues_[queue].posted += count;
  }

  const unsigned rank_;
  const int peer_;
  Device device_;
  std::vector<std::uint8_t> segment_;
  ibv_mr* region_ = nullptr;
  Queue queues_[QUEUES]{};
  Rank ranks_[RANKS]{};
};

}  // namespace

int main(int argc, char** argv) {
  const char* address = argc > 1 ? argv[1] : nullptr;
  const unsigned rank = address == nullptr ? 0 : 1;
  Gaspi gaspi(rank, meet(PORT, address));
  for (std::uint32_t round = 1; round <= ROUNDS; round++) {
    gaspi.fill_round(2 * round + rank);
    for (unsigned queue = 0; queue < QUEUES; queue++) {
      for (unsigned to = 0; to < RANKS; to++) {
        gaspi.write_notify(queue, to, round);
      }
    }
    for (unsigned from = 0; from < RANKS; from++) {
      for (unsigned queue = 0; queue < QUEUES; queue++) {
        if (gaspi.notified(from, queue) != round) {
          fail("find the round in a notification");
        }
        gaspi.expect_round(from, queue, 2 * round + from);
      }
    }
    for (unsigned queue = 0; queue < QUEUES; queue++) {
      gaspi.wait(queue);
    }
    // The first rank's counter: each adds one, and tries to swap what it has seen.
    const std::uint64_t seen = gaspi.atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, round % QUEUES, 0, 1, 0);
    gaspi.atomic(IBV_WR_ATOMIC_CMP_AND_SWP, round % QUEUES, 0, UINT64_MAX, seen);
    gaspi.barrier();
  }
  if (rank == 0 && gaspi.word(COUNTER) != 2 * ROUNDS) {
    fail("count all additions");
  }
  gaspi.barrier();
  std::puts("ok");
}
