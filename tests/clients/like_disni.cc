// What DiSNI does on librdmacm and verbs, between two processes: the server without an argument, the client with its address.
//
// The server has one event channel and one completion queue for all endpoints, each with a thread. When an endpoint is established, the
// server sends the address and key of its memory. The client reads that memory, whose bytes it can compute, and asks for the next by a
// message. Each request, each list for completions and each receive is made once: it is posted again and again as it lies in memory.

#include "sides.h"

#include <rdma/rdma_cma.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace {

constexpr std::uint16_t MEETING = 17818, PORT = 17819;
constexpr unsigned ENDPOINTS = 4, ROUNDS = 200;
constexpr std::size_t DATA = 50'000;
constexpr int TIMEOUT_MS = 20'000;

// What a server sends about its memory, and which round is in it.
struct Stag {
  std::uint64_t address;
  std::uint32_t key, round;
};

// The next event must be this one.
rdma_cm_id* await(rdma_event_channel* channel, rdma_cm_event_type type) {
  rdma_cm_event* event = nullptr;
  must(rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
  if (event->event != type) {
    fail(std::string("connect: ") + rdma_event_str(event->event) + " instead of " + rdma_event_str(type));
  }
  rdma_cm_id* id = event->id;
  must(rdma_ack_cm_event(event), "rdma_ack_cm_event");
  return id;
}

// A completion queue, waited for by events; the list for its completions is there once.
class Completions {
public:
  explicit Completions(ibv_context* context)
      : channel_(made(ibv_create_comp_channel(context), "ibv_create_comp_channel")),
        queue(made(ibv_create_cq(context, 256, nullptr, channel_, 0), "ibv_create_cq")) {
    must(ibv_req_notify_cq(queue, 0), "ibv_req_notify_cq");
  }

  // Hands each completion that comes to `take`, until that returns true.
  template <typename Take>
  void each(Take take) {
    for (;;) {
      ibv_cq* cq = nullptr;
      void* context = nullptr;
      must(ibv_get_cq_event(channel_, &cq, &context), "ibv_get_cq_event");
      ibv_ack_cq_events(cq, 1);
      must(ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
      int count = 0;
      while ((count = ibv_poll_cq(cq, 8, list_)) > 0) {
        for (int i = 0; i < count; i++) {
          expect_success(list_[i]);
          if (take(list_[i])) {
            return;
          }
        }
      }
      if (count < 0) {
        fail("ibv_poll_cq");
      }
    }
  }

private:
  ibv_comp_channel* channel_;
  ibv_wc list_[8]{};

public:
  ibv_cq* const queue;
};

// One side of a connection, with requests that are made once.
class Endpoint {
public:
  Endpoint(rdma_cm_id* id, ibv_pd* pd, ibv_cq* cq, std::uint64_t number) : id_(id), data_(DATA) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq;
    init.cap = {16, 16, 1, 1, 0};
    init.qp_type = IBV_QPT_RC;
    must(rdma_create_qp(id, pd, &init), "rdma_create_qp");
    data_region = made(ibv_reg_mr(pd, data_.data(), DATA, ACCESS), "ibv_reg_mr");
    stag_region_ = made(ibv_reg_mr(pd, stags_, sizeof stags_, ACCESS), "ibv_reg_mr");
    send_sge_ = {reinterpret_cast<std::uint64_t>(&stags_[0]), sizeof(Stag), stag_region_->lkey};
    receive_sge_ = {reinterpret_cast<std::uint64_t>(&stags_[1]), sizeof(Stag), stag_region_->lkey};
    read_sge_ = {reinterpret_cast<std::uint64_t>(data_.data()), DATA, data_region->lkey};
    send_.wr_id = receive_.wr_id = read_.wr_id = number;
    send_.sg_list = &send_sge_;
    receive_.sg_list = &receive_sge_;
    read_.sg_list = &read_sge_;
    send_.num_sge = receive_.num_sge = read_.num_sge = 1;
    send_.opcode = IBV_WR_SEND;
    read_.opcode = IBV_WR_RDMA_READ;
    send_.send_flags = read_.send_flags = IBV_SEND_SIGNALED;
    receive();
  }

  void receive() { must(ibv_post_recv(id_->qp, &receive_, &bad_receive_), "ibv_post_recv"); }

  void send(const Stag& stag) {
    stags_[0] = stag;
    must(ibv_post_send(id_->qp, &send_, &bad_), "ibv_post_send");
  }

  void read(const Stag& stag) {
    read_.wr.rdma = {stag.address, stag.key};
    must(ibv_post_send(id_->qp, &read_, &bad_), "ibv_post_send");
  }

  // What has come, whose place the next receive takes.
  Stag received() const { return stags_[1]; }

  std::uint8_t* data() { return data_.data(); }

  void destroy() {
    rdma_destroy_qp(id_);
    must(ibv_dereg_mr(data_region), "ibv_dereg_mr");
    must(ibv_dereg_mr(stag_region_), "ibv_dereg_mr");
    must(rdma_destroy_id(id_), "rdma_destroy_id");
  }

  ibv_mr* data_region = nullptr;

private:
  rdma_cm_id* id_;
  std::vector<std::uint8_t> data_;
  // The one that is sent, and the one that comes.
  Stag stags_[2]{};
  ibv_mr* stag_region_ = nullptr;
  ibv_sge send_sge_{}, receive_sge_{}, read_sge_{};
  ibv_send_wr send_{}, read_{}, *bad_ = nullptr;
  ibv_recv_wr receive_{}, *bad_receive_ = nullptr;
};

rdma_conn_param parameters() {
  rdma_conn_param parameters{};
  parameters.responder_resources = parameters.initiator_depth = 4;
  parameters.retry_count = 7;
  parameters.rnr_retry_count = 7;
  return parameters;
}

// The server's answer to a round: the round's bytes are in place.
void offer(Endpoint& endpoint, std::uint64_t number, std::uint32_t round) {
  fill(endpoint.data(), DATA, number * ROUNDS + round);
  endpoint.send({reinterpret_cast<std::uint64_t>(endpoint.data()), endpoint.data_region->rkey, round});
}

void server(int meeting) {
  rdma_event_channel* channel = made(rdma_create_event_channel(), "rdma_create_event_channel");
  rdma_cm_id* listener = nullptr;
  must(rdma_create_id(channel, &listener, nullptr, RDMA_PS_TCP), "rdma_create_id");
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_port = htons(PORT);
  inet_pton(AF_INET, own_address(meeting).c_str(), &place.sin_addr);
  must(rdma_bind_addr(listener, reinterpret_cast<sockaddr*>(&place)), "rdma_bind_addr");
  must(rdma_listen(listener, ENDPOINTS), "rdma_listen");
  exchange(meeting, 0);

  ibv_pd* pd = made(ibv_alloc_pd(listener->verbs), "ibv_alloc_pd");
  Completions completions(listener->verbs);
  std::vector<std::unique_ptr<Endpoint>> endpoints(ENDPOINTS);
  std::thread processor([&] {
    unsigned ended = 0, sent = 0;
    completions.each([&](const ibv_wc& wc) {
      if (wc.opcode == IBV_WC_RECV) {
        Endpoint& endpoint = *endpoints[wc.wr_id];
        const std::uint32_t round = endpoint.received().round;
        if (round < ROUNDS) {
          endpoint.receive();
          offer(endpoint, wc.wr_id, round);
        } else {
          ended++;
        }
      } else {
        sent++;
      }
      return ended == ENDPOINTS && sent == ENDPOINTS * ROUNDS;
    });
  });
  // Requests come, and clients leave, while other endpoints are at work.
  for (unsigned asked = 0, left = 0; left < ENDPOINTS;) {
    rdma_cm_event* event = nullptr;
    must(rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
    const rdma_cm_event_type type = event->event;
    rdma_cm_id* id = event->id;
    must(rdma_ack_cm_event(event), "rdma_ack_cm_event");
    if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
      endpoints[asked] = std::make_unique<Endpoint>(id, pd, completions.queue, asked);
      id->context = reinterpret_cast<void*>(std::uintptr_t{asked++});
      rdma_conn_param param = parameters();
      must(rdma_accept(id, &param), "rdma_accept");
    } else if (type == RDMA_CM_EVENT_ESTABLISHED) {
      const auto number = reinterpret_cast<std::uintptr_t>(id->context);
      offer(*endpoints[number], number, 0);
    } else if (type == RDMA_CM_EVENT_DISCONNECTED) {
      must(rdma_disconnect(id), "rdma_disconnect");
      left++;
    } else if (type != RDMA_CM_EVENT_TIMEWAIT_EXIT) {
      fail(std::string("accept: ") + rdma_event_str(type));
    }
  }
  processor.join();
  for (auto& endpoint : endpoints) {
    endpoint->destroy();
  }
  must(rdma_destroy_id(listener), "rdma_destroy_id");
  rdma_destroy_event_channel(channel);
}

void run_client(const char* address) {
  rdma_event_channel* channel = made(rdma_create_event_channel(), "rdma_create_event_channel");
  rdma_cm_id* id = nullptr;
  must(rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP), "rdma_create_id");
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_port = htons(PORT);
  inet_pton(AF_INET, address, &place.sin_addr);
  must(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&place), TIMEOUT_MS), "rdma_resolve_addr");
  await(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
  must(rdma_resolve_route(id, TIMEOUT_MS), "rdma_resolve_route");
  await(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
  ibv_pd* pd = made(ibv_alloc_pd(id->verbs), "ibv_alloc_pd");
  Completions completions(id->verbs);
  Endpoint endpoint(id, pd, completions.queue, 0);
  rdma_conn_param param = parameters();
  must(rdma_connect(id, &param), "rdma_connect");
  await(channel, RDMA_CM_EVENT_ESTABLISHED);
  // The first round's bytes show which of the server's endpoints it is.
  std::uint64_t number = ENDPOINTS;
  std::uint32_t round = 0;
  bool asked_last = false;
  completions.each([&](const ibv_wc& wc) {
    if (wc.opcode == IBV_WC_RECV) {
      const Stag stag = endpoint.received();
      if (stag.round != round) {
        fail("find the round in a stag");
      }
      endpoint.receive();
      endpoint.read(stag);
    } else if (wc.opcode == IBV_WC_RDMA_READ) {
      if (round == 0) {
        for (number = 0; number < ENDPOINTS && endpoint.data()[0] != pattern(number * ROUNDS, 0); number++) {
        }
      }
      expect_bytes(endpoint.data(), DATA, number * ROUNDS + round, "read");
      round++;
      asked_last = round == ROUNDS;
      endpoint.send({0, 0, round});
    }
    return asked_last && wc.opcode == IBV_WC_SEND;
  });
  must(rdma_disconnect(id), "rdma_disconnect");
  await(channel, RDMA_CM_EVENT_DISCONNECTED);
  endpoint.destroy();
  rdma_destroy_event_channel(channel);
}

void client(int meeting, const char* address) {
  exchange(meeting, 0);
  std::vector<std::thread> threads;
  for (unsigned number = 0; number < ENDPOINTS; number++) {
    threads.emplace_back(run_client, address);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const char* address = argc > 1 ? argv[1] : nullptr;
  const int meeting = meet(MEETING, address);
  address == nullptr ? server(meeting) : client(meeting, address);
  std::puts("ok");
}
