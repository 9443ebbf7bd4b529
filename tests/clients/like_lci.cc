// What LCI does on verbs, between two processes of several threads each: the first without an argument, the second with its address.
//
// All queue pairs have one shared receive queue and one completion queue, in a parent domain. Any thread posts on any queue pair as far as
// its places reach, and any thread makes progress: the one that gets the lock polls, refills the shared receive queue, and handles what has
// come. Short messages are sent inline, longer ones from registered memory, and others are written and announced by their immediate.

#include "sides.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace {

constexpr std::uint16_t PORT = 17817;
constexpr unsigned QPS = 32, THREADS = 4, MESSAGES = 2000, RECEIVES = 256, PLACES = 16;
constexpr unsigned LONGEST = 4096, SHORT = 60;
// A message's number identifies the thread that sends it; modulo KINDS it is the kind of message.
constexpr unsigned KINDS = 3;

struct Peer {
  std::uint64_t memory;
  std::uint32_t rkey;
  std::uint32_t qpns[QPS];
  ibv_gid gid;
};

struct Head {
  std::uint32_t number, length;
};

unsigned length_of(std::uint32_t number) {
  return number % KINDS == 0 ? sizeof(Head) + number % (SHORT - sizeof(Head)) : SHORT + number * 37 % (LONGEST - SHORT);
}

class Endpoint {
public:
  Endpoint(unsigned side, int peer)
      : side_(side), memory_(std::size_t{RECEIVES} * LONGEST), sent_(std::size_t{QPS} * PLACES * LONGEST),
        written_(std::size_t{THREADS} * MESSAGES * LONGEST), seen_(THREADS * MESSAGES) {
    ibv_td_init_attr td{};
    ibv_parent_domain_init_attr domain{};
    domain.pd = device_.pd;
    domain.td = made(ibv_alloc_td(device_.context, &td), "ibv_alloc_td");
    pd_ = made(ibv_alloc_parent_domain(device_.context, &domain), "ibv_alloc_parent_domain");
    received_region_ = made(ibv_reg_mr(pd_, memory_.data(), memory_.size(), ACCESS), "ibv_reg_mr");
    sent_region_ = made(ibv_reg_mr(pd_, sent_.data(), sent_.size(), ACCESS), "ibv_reg_mr");
    written_region_ = made(ibv_reg_mr(pd_, written_.data(), written_.size(), ACCESS), "ibv_reg_mr");
    ibv_srq_init_attr srq{};
    srq.attr.max_wr = RECEIVES;
    srq.attr.max_sge = 1;
    srq_ = made(ibv_create_srq(pd_, &srq), "ibv_create_srq");
    cq_ = made(ibv_create_cq(device_.context, QPS * PLACES + RECEIVES, nullptr, nullptr, 0), "ibv_create_cq");
    Peer own{reinterpret_cast<std::uint64_t>(written_.data()), written_region_->rkey, {}, device_.gid};
    for (unsigned number = 0; number < QPS; number++) {
      ibv_qp_init_attr init{};
      init.send_cq = init.recv_cq = cq_;
      init.srq = srq_;
      init.cap = {PLACES, 0, 1, 0, SHORT};
      init.qp_type = IBV_QPT_RC;
      init.sq_sig_all = 0;
      qps_[number] = made(ibv_create_qp(pd_, &init), "ibv_create_qp");
      own.qpns[number] = qps_[number]->qp_num;
      for (unsigned place = 0; place < PLACES; place++) {
        free_[number].push_back(place);
      }
    }
    for (unsigned buffer = 0; buffer < RECEIVES; buffer++) {
      receive(buffer);
    }
    peer_ = exchange(peer, own);
    for (unsigned number = 0; number < QPS; number++) {
      connect_qp(device_, qps_[number], peer_.qpns[number], peer_.gid);
    }
    exchange(peer, 0);
  }

  // False: the queue pair has no place, or another thread posts on it.
  bool try_send(unsigned qp, std::uint32_t number) {
    std::unique_lock<std::mutex> lock(posting_[qp], std::try_to_lock);
    if (!lock.owns_lock() || free_[qp].empty()) {
      return false;
    }
    const unsigned place = free_[qp].back(), length = length_of(number);
    free_[qp].pop_back();
    std::uint8_t* bytes = &sent_[(std::size_t{qp} * PLACES + place) * LONGEST];
    fill(bytes, length, 2 * number + side_);
    const Head head{number, length};
    const unsigned kind = number % KINDS;
    if (kind != 2) {
      std::memcpy(bytes, &head, sizeof head);
    }
    ibv_sge sge{reinterpret_cast<std::uint64_t>(bytes), length, sent_region_->lkey};
    ibv_send_wr wr{}, *bad = nullptr;
    wr.wr_id = std::uint64_t{qp} * PLACES + place;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.send_flags = IBV_SEND_SIGNALED | (kind == 0 ? IBV_SEND_INLINE : 0);
    wr.opcode = kind == 2 ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_SEND_WITH_IMM;
    wr.imm_data = htonl(number);
    wr.wr.rdma = {peer_.memory + std::uint64_t{number} * LONGEST, peer_.rkey};
    must(ibv_post_send(qps_[qp], &wr, &bad), "ibv_post_send");
    return true;
  }

  // The thread that gets the lock handles what has come.
  void progress() {
    std::unique_lock<std::mutex> lock(polling_, std::try_to_lock);
    if (!lock.owns_lock()) {
      return;
    }
    ibv_wc wcs[16];
    const int count = ibv_poll_cq(cq_, 16, wcs);
    if (count < 0) {
      fail("ibv_poll_cq");
    }
    for (int i = 0; i < count; i++) {
      expect_success(wcs[i]);
      if (wcs[i].opcode & IBV_WC_RECV) {
        take(wcs[i]);
        receive(wcs[i].wr_id);
      } else {
        const unsigned qp = static_cast<unsigned>(wcs[i].wr_id / PLACES);
        std::lock_guard<std::mutex> own(posting_[qp]);
        free_[qp].push_back(static_cast<unsigned>(wcs[i].wr_id % PLACES));
        completed_++;
      }
    }
  }

  bool is_done() const { return completed_ == THREADS * MESSAGES && taken_ == THREADS * MESSAGES; }

private:
  void receive(std::uint64_t buffer) {
    ibv_sge sge{reinterpret_cast<std::uint64_t>(&memory_[buffer * LONGEST]), LONGEST, received_region_->lkey};
    ibv_recv_wr wr{}, *bad = nullptr;
    wr.wr_id = buffer;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    must(ibv_post_srq_recv(srq_, &wr, &bad), "ibv_post_srq_recv");
  }

  void take(const ibv_wc& wc) {
    const std::uint32_t number = ntohl(wc.imm_data);
    if (number >= THREADS * MESSAGES || seen_[number]) {
      fail("get each message once");
    }
    seen_[number] = true;
    const unsigned length = length_of(number);
    if (wc.byte_len != length) {
      fail("find the length of message " + std::to_string(number));
    }
    const std::uint64_t from = 2 * std::uint64_t{number} + 1 - side_;
    if (number % KINDS == 2) {
      expect_bytes(&written_[std::size_t{number} * LONGEST], length, from, "write");
    } else {
      std::uint8_t* bytes = &memory_[wc.wr_id * LONGEST];
      Head head{};
      std::memcpy(&head, bytes, sizeof head);
      for (std::size_t place = 0; place < sizeof head; place++) {
        bytes[place] = pattern(from, place);
      }
      if (head.number != number || head.length != length) {
        fail("find the head of message " + std::to_string(number));
      }
      expect_bytes(bytes, length, from, "message");
    }
    taken_++;
  }

  const unsigned side_;
  Device device_;
  ibv_pd* pd_ = nullptr;
  std::vector<std::uint8_t> memory_, sent_, written_;
  std::vector<bool> seen_;
  ibv_mr *received_region_ = nullptr, *sent_region_ = nullptr, *written_region_ = nullptr;
  ibv_srq* srq_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_qp* qps_[QPS]{};
  Peer peer_{};
  std::mutex polling_, posting_[QPS];
  // Places of each queue pair.
  std::vector<unsigned> free_[QPS];
  std::atomic<unsigned> completed_{0}, taken_{0};
};

void work(Endpoint& endpoint, unsigned thread) {
  for (std::uint32_t message = 0; message < MESSAGES; message++) {
    const std::uint32_t number = thread * MESSAGES + message;
    for (unsigned qp = number; !endpoint.try_send(qp % QPS, number); qp++) {
      endpoint.progress();
    }
  }
  while (!endpoint.is_done()) {
    endpoint.progress();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const char* address = argc > 1 ? argv[1] : nullptr;
  const int peer = meet(PORT, address);
  auto endpoint = std::make_unique<Endpoint>(address == nullptr ? 0 : 1, peer);
  std::vector<std::thread> threads;
  for (unsigned number = 0; number < THREADS; number++) {
    threads.emplace_back(work, std::ref(*endpoint), number);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  exchange(peer, 0);
  std::puts("ok");
}
