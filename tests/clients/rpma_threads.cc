// librpma between two processes, a connection for each of several threads: the server without an argument, the client with its address.
//
// In each round a client's thread writes into the server's memory, flushes, sets a counter by an atomic write and sends a message. The
// server's thread compares what it finds there, answers, and the client reads the answer from the server's memory. In every other
// round the message is the immediate of a write. Bytes that each side can compute are compared.

#include "sides.h"

#include <librpma.h>

#include <thread>
#include <vector>

namespace {

constexpr std::uint16_t MEETING = 17814;
constexpr const char* PORT = "17815";
constexpr unsigned THREADS = 4;
constexpr unsigned ROUNDS = 200;
// Parts of a thread's memory.
constexpr std::size_t PART = 64 << 10;
constexpr std::size_t QUESTION = 0, ANSWER = PART, COUNTER = 2 * PART, MESSAGE = COUNTER + 64, SIZE = MESSAGE + 64;

// A call of librpma must return 0.
void rpma(int result, const char* what) {
  if (result != 0) {
    fail(std::string(what) + ": " + rpma_err_2str(result));
  }
}

// What a thread sends in a round.
std::uint64_t number_of(unsigned thread, unsigned round, bool answer) { return 2 * (thread * ROUNDS + round) + answer; }

// One side of a connection, with its memory.
class Side {
public:
  Side(rpma_peer* peer, int usage) : memory_(static_cast<std::uint8_t*>(std::aligned_alloc(4096, 4096 * (SIZE / 4096 + 1)))) {
    std::memset(memory_, 0, SIZE);
    rpma(rpma_mr_reg(peer, memory_, SIZE, usage, &region), "rpma_mr_reg");
  }

  void established(rpma_conn* connection) {
    conn = connection;
    rpma_conn_event event = RPMA_CONN_UNDEFINED;
    rpma(rpma_conn_next_event(conn, &event), "rpma_conn_next_event");
    if (event != RPMA_CONN_ESTABLISHED) {
      fail(std::string("connect: ") + rpma_utils_conn_event_2str(event));
    }
    rpma(rpma_conn_get_cq(conn, &cq_), "rpma_conn_get_cq");
  }

  void end() {
    rpma_conn_event event = RPMA_CONN_UNDEFINED;
    rpma(rpma_conn_next_event(conn, &event), "rpma_conn_next_event");
    if (event != RPMA_CONN_CLOSED) {
      fail(std::string("close: ") + rpma_utils_conn_event_2str(event));
    }
    rpma(rpma_conn_delete(&conn), "rpma_conn_delete");
    rpma(rpma_mr_dereg(&region), "rpma_mr_dereg");
    std::free(memory_);
  }

  void receive() { rpma(rpma_recv(conn, region, MESSAGE, 8, memory_), "rpma_recv"); }

  // The next completion, which is one of this kind.
  ibv_wc next(ibv_wc_opcode opcode) {
    ibv_wc wc{};
    for (int result = 0; (result = rpma_cq_get_wc(cq_, 1, &wc, nullptr)) != 0;) {
      if (result != RPMA_E_NO_COMPLETION) {
        rpma(result, "rpma_cq_get_wc");
      }
      rpma(rpma_cq_wait(cq_), "rpma_cq_wait");
    }
    if (wc.status != IBV_WC_SUCCESS || wc.opcode != opcode) {
      fail(std::string("complete: ") + ibv_wc_status_str(wc.status) + ", opcode " + std::to_string(wc.opcode));
    }
    return wc;
  }

  void fill_part(std::size_t part, unsigned thread, unsigned round) {
    fill(memory_ + part, PART, number_of(thread, round, part == ANSWER));
  }

  void expect_part(std::size_t part, unsigned thread, unsigned round) const {
    expect_bytes(memory_ + part, PART, number_of(thread, round, part == ANSWER), "round");
  }

  std::uint64_t word(std::size_t place) const {
    std::uint64_t value = 0;
    std::memcpy(&value, memory_ + place, sizeof value);
    return value;
  }

  void set_word(std::size_t place, std::uint64_t value) { std::memcpy(memory_ + place, &value, sizeof value); }

  rpma_conn* conn = nullptr;
  rpma_mr_local* region = nullptr;

private:
  std::uint8_t* memory_;
  rpma_cq* cq_ = nullptr;
};

rpma_conn_cfg* config() {
  rpma_conn_cfg* cfg = nullptr;
  rpma(rpma_conn_cfg_new(&cfg), "rpma_conn_cfg_new");
  rpma(rpma_conn_cfg_set_timeout(cfg, 30'000), "rpma_conn_cfg_set_timeout");
  return cfg;
}

rpma_peer* peer_at(const char* address, rpma_util_ibv_context_type type) {
  ibv_context* context = nullptr;
  rpma_peer* peer = nullptr;
  rpma(rpma_utils_get_ibv_context(address, type, &context), "rpma_utils_get_ibv_context");
  rpma(rpma_peer_new(context, &peer), "rpma_peer_new");
  return peer;
}

void serve(Side& side, unsigned thread) {
  for (unsigned round = 0; round < ROUNDS; round++) {
    const bool by_write = round % 2 == 1;
    const ibv_wc wc = side.next(by_write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV);
    if (!(wc.wc_flags & IBV_WC_WITH_IMM) || ntohl(wc.imm_data) != round) {
      fail("find the round in the immediate");
    }
    if (side.word(COUNTER) != round + 1 || (!by_write && side.word(MESSAGE) != thread * ROUNDS + round)) {
      fail("find the round in the counter and the message");
    }
    side.expect_part(QUESTION, thread, round);
    side.fill_part(ANSWER, thread, round);
    side.receive();
    rpma(rpma_send(side.conn, side.region, COUNTER, 8, RPMA_F_COMPLETION_ALWAYS, nullptr), "rpma_send");
    side.next(IBV_WC_SEND);
  }
}

void ask(Side& side, rpma_mr_remote* remote, unsigned thread) {
  rpma_conn* conn = side.conn;
  for (unsigned round = 0; round < ROUNDS; round++) {
    side.fill_part(QUESTION, thread, round);
    side.set_word(COUNTER, round + 1);
    side.receive();
    char counter[8];
    const std::uint64_t value = round + 1;
    std::memcpy(counter, &value, sizeof counter);
    rpma(rpma_write(conn, remote, QUESTION, side.region, QUESTION, PART, RPMA_F_COMPLETION_ON_ERROR, nullptr), "rpma_write");
    rpma(rpma_atomic_write(conn, remote, COUNTER, counter, RPMA_F_COMPLETION_ON_ERROR, nullptr), "rpma_atomic_write");
    rpma(rpma_flush(conn, remote, 0, PART, RPMA_FLUSH_TYPE_VISIBILITY, RPMA_F_COMPLETION_ALWAYS, nullptr), "rpma_flush");
    side.next(IBV_WC_RDMA_READ);
    if (round % 2 == 1) {
      rpma(rpma_write_with_imm(conn, remote, QUESTION, side.region, QUESTION, PART / 2, RPMA_F_COMPLETION_ON_ERROR, round, nullptr),
           "rpma_write_with_imm");
    } else {
      side.set_word(QUESTION, thread * ROUNDS + round);
      rpma(rpma_send_with_imm(conn, side.region, QUESTION, 8, RPMA_F_COMPLETION_ON_ERROR, round, nullptr), "rpma_send_with_imm");
    }
    side.next(IBV_WC_RECV);
    if (side.word(MESSAGE) != round + 1) {
      fail("find the counter in the answer");
    }
    rpma(rpma_read(conn, side.region, ANSWER, remote, ANSWER, PART, RPMA_F_COMPLETION_ALWAYS, nullptr), "rpma_read");
    side.next(IBV_WC_RDMA_READ);
    side.expect_part(ANSWER, thread, round);
  }
}

constexpr int USAGE = RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_READ_DST | RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_WRITE_DST |
                      RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY | RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV;

// What a server sends about its memory.
struct Offer {
  std::uint32_t thread, length;
  std::uint8_t descriptor[48];
};

void server(int meeting) {
  const std::string own = own_address(meeting);
  const char* address = own.c_str();
  rpma_peer* peer = peer_at(address, RPMA_UTIL_IBV_CONTEXT_LOCAL);
  rpma_ep* listener = nullptr;
  rpma(rpma_ep_listen(peer, address, PORT, &listener), "rpma_ep_listen");
  exchange(meeting, 0);
  rpma_conn_cfg* cfg = config();
  std::vector<std::thread> threads;
  for (unsigned number = 0; number < THREADS; number++) {
    rpma_conn_req* request = nullptr;
    rpma(rpma_ep_next_conn_req(listener, cfg, &request), "rpma_ep_next_conn_req");
    threads.emplace_back([=] {
      Side side(peer, USAGE);
      Offer offer{};
      std::size_t size = 0;
      rpma(rpma_mr_get_descriptor_size(side.region, &size), "rpma_mr_get_descriptor_size");
      if (size > sizeof offer.descriptor) {
        fail("put the descriptor into the private data");
      }
      offer.thread = number;
      offer.length = static_cast<std::uint32_t>(size);
      rpma(rpma_mr_get_descriptor(side.region, offer.descriptor), "rpma_mr_get_descriptor");
      rpma_conn_private_data data{&offer, sizeof offer};
      rpma_conn_req* own_request = request;
      rpma_conn* conn = nullptr;
      rpma(rpma_conn_req_recv(own_request, side.region, MESSAGE, 8, nullptr), "rpma_conn_req_recv");
      rpma(rpma_conn_req_connect(&own_request, &data, &conn), "rpma_conn_req_connect");
      side.established(conn);
      serve(side, number);
      side.end();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  rpma(rpma_conn_cfg_delete(&cfg), "rpma_conn_cfg_delete");
  rpma(rpma_ep_shutdown(&listener), "rpma_ep_shutdown");
  rpma(rpma_peer_delete(&peer), "rpma_peer_delete");
}

void client(int meeting, const char* address) {
  exchange(meeting, 0);
  rpma_peer* peer = peer_at(address, RPMA_UTIL_IBV_CONTEXT_REMOTE);
  rpma_conn_cfg* cfg = config();
  std::vector<std::thread> threads;
  for (unsigned number = 0; number < THREADS; number++) {
    threads.emplace_back([=] {
      Side side(peer, USAGE);
      rpma_conn_req* request = nullptr;
      rpma_conn* conn = nullptr;
      rpma(rpma_conn_req_new(peer, address, PORT, cfg, &request), "rpma_conn_req_new");
      rpma(rpma_conn_req_connect(&request, nullptr, &conn), "rpma_conn_req_connect");
      side.established(conn);
      rpma_conn_private_data data{};
      rpma(rpma_conn_get_private_data(conn, &data), "rpma_conn_get_private_data");
      Offer offer{};
      if (data.len < sizeof offer) {
        fail("find an offer in the private data");
      }
      std::memcpy(&offer, data.ptr, sizeof offer);
      rpma_mr_remote* remote = nullptr;
      rpma(rpma_mr_remote_from_descriptor(offer.descriptor, offer.length, &remote), "rpma_mr_remote_from_descriptor");
      ask(side, remote, offer.thread);
      rpma(rpma_mr_remote_delete(&remote), "rpma_mr_remote_delete");
      rpma(rpma_conn_disconnect(conn), "rpma_conn_disconnect");
      side.end();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  rpma(rpma_conn_cfg_delete(&cfg), "rpma_conn_cfg_delete");
  rpma(rpma_peer_delete(&peer), "rpma_peer_delete");
}

}  // namespace

int main(int argc, char** argv) {
  const char* address = argc > 1 ? argv[1] : nullptr;
  const int meeting = meet(MEETING, address);
  address == nullptr ? server(meeting) : client(meeting, address);
  std::puts("ok");
}
