// What Charm++'s layer on verbs does, between two ranks: the first without an argument, the second with its address.
//
// Each rank has one completion queue and one shared receive queue for all peers. A message of up to 16 KiB is cut into packets, which are
// copied into buffers of a pool; a rank may have so many packets outstanding with a peer, and keeps the others back. For a longer message
// a packet names the sender's memory. The receiver reads the memory and sends a packet when it has, and the sender deregisters it: memory
// is registered for one message at a time. A persistent buffer is written by the peer without a packet, and its owner waits until its last
// eight bytes change.

#include "sides.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <vector>

namespace {

constexpr std::uint16_t PORT = 17820;
constexpr std::size_t PACKET = 4096, LONGEST_BY_PACKETS = 16 * 1024, PERSISTENT = 20'000;
constexpr unsigned RECEIVES = 64, TOKENS = 16, MESSAGES = 400, ROUNDS = 100;
constexpr std::uint64_t NOT_YET = 0x7ff8'0000'dead'beef;

enum class Kind : std::uint32_t { Part, Large, Taken };

// At the front of a packet.
struct Header {
  Kind kind;
  std::uint32_t bytes;
  std::uint64_t message, length, address;
  std::uint32_t key;
};

constexpr std::size_t PART = PACKET - sizeof(Header);

struct Rank {
  std::uint32_t qpn;
  ibv_gid gid;
  std::uint64_t persistent;
  std::uint32_t key;
};

// The length of the message with this number.
std::size_t length_of(std::uint64_t message) {
  constexpr std::size_t LENGTHS[] = {0, 1, 8, 500, PART, PART + 1, 9'000, LONGEST_BY_PACKETS, LONGEST_BY_PACKETS + 1, 70'000, 300'000};
  return LENGTHS[message % std::size(LENGTHS)];
}

class Machine {
public:
  explicit Machine(int peer) : peer_(peer), pool_((RECEIVES + TOKENS) * PACKET), persistent_(PERSISTENT), outgoing_(PERSISTENT) {
    cq_ = made(ibv_create_cq(device_.context, 4 * RECEIVES, nullptr, nullptr, 0), "ibv_create_cq");
    ibv_srq_init_attr shared{};
    shared.attr = {RECEIVES, 1, 0};
    srq_ = made(ibv_create_srq(device_.pd, &shared), "ibv_create_srq");
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq_;
    init.srq = srq_;
    init.cap = {2 * TOKENS, 0, 1, 0, 0};
    init.qp_type = IBV_QPT_RC;
    qp_ = made(ibv_create_qp(device_.pd, &init), "ibv_create_qp");
    pool_region_ = made(ibv_reg_mr(device_.pd, pool_.data(), pool_.size(), ACCESS), "ibv_reg_mr");
    persistent_region_ = made(ibv_reg_mr(device_.pd, persistent_.data(), PERSISTENT, ACCESS), "ibv_reg_mr");
    outgoing_region_ = made(ibv_reg_mr(device_.pd, outgoing_.data(), PERSISTENT, ACCESS), "ibv_reg_mr");
    for (unsigned buffer = 0; buffer < RECEIVES; buffer++) {
      receive(buffer);
    }
    for (unsigned buffer = 0; buffer < TOKENS; buffer++) {
      free_.push_back(RECEIVES + buffer);
    }
    forget_persistent();
    const Rank own{qp_->qp_num, device_.gid, reinterpret_cast<std::uint64_t>(persistent_.data()), persistent_region_->rkey};
    theirs_ = exchange(peer_, own);
    connect_qp(device_, qp_, theirs_.qpn, theirs_.gid);
    barrier();
  }

  void barrier() { exchange(peer_, 0); }

  // Sends a message; its memory is needed until nothing is outstanding.
  void send(std::uint64_t message) {
    const std::size_t length = length_of(message);
    std::vector<std::uint8_t>& data = sent_[message].data;
    data.resize(length);
    fill(data.data(), length, message);
    if (length > LONGEST_BY_PACKETS) {
      ibv_mr* region = made(ibv_reg_mr(device_.pd, data.data(), length, ACCESS), "ibv_reg_mr");
      sent_[message].region = region;
      enqueue({Kind::Large, 0, message, length, reinterpret_cast<std::uint64_t>(data.data()), region->rkey}, {});
      return;
    }
    for (std::size_t at = 0; at == 0 || at < length; at += PART) {
      const std::size_t bytes = std::min(PART, length - at);
      enqueue({Kind::Part, static_cast<std::uint32_t>(bytes), message, length, at, 0}, {data.data() + at, data.data() + at + bytes});
    }
    sent_.erase(message);
  }

  // Takes what has come. Returns whether anything had.
  bool poll() {
    ibv_wc list[32];
    const int count = ibv_poll_cq(cq_, 32, list);
    if (count < 0) {
      fail("ibv_poll_cq");
    }
    for (int i = 0; i < count; i++) {
      expect_success(list[i]);
      switch (list[i].opcode) {
        case IBV_WC_RECV: arrived(static_cast<unsigned>(list[i].wr_id)); break;
        case IBV_WC_RDMA_READ: fetched(list[i].wr_id); break;
        case IBV_WC_RDMA_WRITE: written_++; break;
        default: free_.push_back(static_cast<unsigned>(list[i].wr_id));
      }
    }
    for (; !waiting_.empty() && !free_.empty(); waiting_.pop_front()) {
      post(waiting_.front().first, waiting_.front().second);
    }
    return count > 0;
  }

  std::uint64_t received() const { return received_; }
  bool is_quiet() const { return sent_.empty() && waiting_.empty() && fetching_.empty() && free_.size() == TOKENS; }

  // Writes a round into the peer's persistent buffer. The last eight bytes of each round differ from the mark.
  void put(std::uint64_t round) {
    fill(outgoing_.data(), PERSISTENT, round);
    post(IBV_WR_RDMA_WRITE, 0, {address_of(outgoing_), PERSISTENT, outgoing_region_->lkey}, theirs_.persistent, theirs_.key);
  }

  // Waits for the peer's round, without a completion.
  void await(std::uint64_t round) {
    auto* last = reinterpret_cast<std::atomic<std::uint64_t>*>(persistent_.data() + PERSISTENT - 8);
    while (last->load(std::memory_order_acquire) == NOT_YET) {
      poll();
    }
    expect_bytes(persistent_.data(), PERSISTENT, round, "put");
    forget_persistent();
  }

  unsigned written() const { return written_; }

private:
  struct Sent {
    std::vector<std::uint8_t> data;
    ibv_mr* region = nullptr;
  };
  struct Coming {
    std::vector<std::uint8_t> data;
    std::size_t here = 0;
    ibv_mr* region = nullptr;
  };

  static std::uint64_t address_of(const std::vector<std::uint8_t>& memory) { return reinterpret_cast<std::uint64_t>(memory.data()); }

  std::uint8_t* buffer(unsigned index) { return pool_.data() + index * PACKET; }

  ibv_sge element(unsigned index, std::size_t length) {
    return {reinterpret_cast<std::uint64_t>(buffer(index)), static_cast<std::uint32_t>(length), pool_region_->lkey};
  }

  void forget_persistent() { std::memcpy(persistent_.data() + PERSISTENT - 8, &NOT_YET, 8); }

  void receive(unsigned index) {
    ibv_sge sge = element(index, PACKET);
    ibv_recv_wr wr{}, *bad = nullptr;
    wr.wr_id = index;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    must(ibv_post_srq_recv(srq_, &wr, &bad), "ibv_post_srq_recv");
  }

  void enqueue(const Header& header, std::vector<std::uint8_t> data) {
    if (free_.empty() || !waiting_.empty()) {
      waiting_.emplace_back(header, std::move(data));
    } else {
      post(header, data);
    }
  }

  void post(const Header& header, const std::vector<std::uint8_t>& data) {
    const unsigned index = free_.front();
    free_.pop_front();
    std::memcpy(buffer(index), &header, sizeof header);
    std::copy(data.begin(), data.end(), buffer(index) + sizeof header);
    post(IBV_WR_SEND, index, element(index, sizeof header + data.size()), 0, 0);
  }

  void post(ibv_wr_opcode opcode, std::uint64_t number, ibv_sge sge, std::uint64_t address, std::uint32_t key) {
    ibv_send_wr wr{}, *bad = nullptr;
    wr.wr_id = number;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma = {address, key};
    must(ibv_post_send(qp_, &wr, &bad), "ibv_post_send");
  }

  void arrived(unsigned index) {
    Header header;
    std::memcpy(&header, buffer(index), sizeof header);
    if (header.kind == Kind::Taken) {
      must(ibv_dereg_mr(sent_.at(header.message).region), "ibv_dereg_mr");
      sent_.erase(header.message);
    } else if (header.kind == Kind::Large) {
      fetch(header);
    } else {
      Coming& coming = coming_[header.message];
      coming.data.resize(header.length);
      std::copy_n(buffer(index) + sizeof header, header.bytes, coming.data.begin() + static_cast<long>(header.address));
      coming.here += header.bytes;
      if (coming.here == header.length) {
        deliver(header.message, coming.data);
        coming_.erase(header.message);
      }
    }
    receive(index);
  }

  void fetch(const Header& header) {
    Coming& coming = fetching_[header.message];
    coming.data.resize(header.length);
    coming.region = made(ibv_reg_mr(device_.pd, coming.data.data(), header.length, ACCESS), "ibv_reg_mr");
    const ibv_sge sge{address_of(coming.data), static_cast<std::uint32_t>(header.length), coming.region->lkey};
    post(IBV_WR_RDMA_READ, header.message, sge, header.address, header.key);
  }

  void fetched(std::uint64_t message) {
    Coming& coming = fetching_.at(message);
    must(ibv_dereg_mr(coming.region), "ibv_dereg_mr");
    deliver(message, coming.data);
    fetching_.erase(message);
    enqueue({Kind::Taken, 0, message, 0, 0, 0}, {});
  }

  void deliver(std::uint64_t message, const std::vector<std::uint8_t>& data) {
    if (data.size() != length_of(message)) {
      fail("receive as many bytes as were sent");
    }
    expect_bytes(data.data(), data.size(), message, "message");
    received_++;
  }

  const int peer_;
  Device device_;
  std::vector<std::uint8_t> pool_, persistent_, outgoing_;
  ibv_cq* cq_ = nullptr;
  ibv_srq* srq_ = nullptr;
  ibv_qp* qp_ = nullptr;
  ibv_mr *pool_region_ = nullptr, *persistent_region_ = nullptr, *outgoing_region_ = nullptr;
  Rank theirs_{};
  // Buffers to send from: the tokens.
  std::deque<unsigned> free_;
  std::deque<std::pair<Header, std::vector<std::uint8_t>>> waiting_;
  std::map<std::uint64_t, Sent> sent_;
  std::map<std::uint64_t, Coming> coming_, fetching_;
  std::uint64_t received_ = 0;
  unsigned written_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const char* address = argc > 1 ? argv[1] : nullptr;
  const unsigned rank = address == nullptr ? 0 : 1;
  Machine machine(meet(PORT, address));
  for (std::uint64_t message = 0; message < MESSAGES; message++) {
    machine.send(message);
    machine.poll();
  }
  while (machine.received() < MESSAGES || !machine.is_quiet()) {
    machine.poll();
  }
  // The peer may still wait for packets of this rank: a barrier blocks, and sends none.
  machine.barrier();
  for (std::uint64_t round = 0; round < ROUNDS; round++) {
    machine.put(2 * round + rank);
    machine.await(2 * round + 1 - rank);
    while (machine.written() <= round) {
      machine.poll();
    }
    machine.barrier();
  }
  std::puts("ok");
}
