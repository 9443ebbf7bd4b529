// What NI's easyRDMA does on librdmacm and verbs, between two processes: the receiver without an argument, the sender with its address.
//
// A session goes one way. The receiver posts its buffers and sends the number of those that are free, as credits; the sender waits for
// credits, so no message finds the receive queue empty. Buffers are released in another order than they were filled. The events of a
// session's channel are read without blocking by a thread that polls the descriptor. A wait has a timeout, another thread can cancel it, and
// the end of the peer ends it.

#include "sides.h"

#include <rdma/rdma_cma.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

namespace {

using namespace std::chrono_literals;

constexpr std::uint16_t MEETING = 17821, PORT = 17822;
constexpr unsigned BUFFERS = 8, MESSAGES = 500;
constexpr std::size_t SIZE = 30'000;
constexpr int TIMEOUT_MS = 20'000;
constexpr std::uint32_t VERSION = 3;

// The thread that reads the events of a channel.
class Events {
public:
  Events() : channel(made(rdma_create_event_channel(), "rdma_create_event_channel")), stop_(eventfd(0, EFD_CLOEXEC)) {
    must(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK), "fcntl");
    thread_ = std::thread([this] { run(); });
  }

  // Waits for an event of this type, and returns the id that it is of. Null after so many milliseconds, or when the wait is cancelled.
  rdma_cm_id* wait(rdma_cm_event_type type, int timeout_ms = TIMEOUT_MS) {
    std::unique_lock lock(mutex_);
    rdma_cm_id* id = nullptr;
    const auto came = [&] {
      for (auto at = events_.begin(); at != events_.end(); ++at) {
        if (at->first == type) {
          id = at->second;
          events_.erase(at);
          return true;
        }
      }
      return cancelled_;
    };
    changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), came);
    cancelled_ = false;
    return id;
  }

  // As `wait`, of an event that must come.
  rdma_cm_id* await(rdma_cm_event_type type) {
    rdma_cm_id* id = wait(type);
    if (id == nullptr) {
      fail(std::string("see ") + rdma_event_str(type));
    }
    return id;
  }

  void cancel() {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    changed_.notify_all();
  }

  void end() {
    const std::uint64_t one = 1;
    if (write(stop_, &one, sizeof one) != sizeof one) {
      fail("write to an eventfd");
    }
    thread_.join();
    rdma_destroy_event_channel(channel);
    close(stop_);
  }

  rdma_event_channel* const channel;

private:
  void run() {
    for (;;) {
      pollfd fds[2] = {{channel->fd, POLLIN, 0}, {stop_, POLLIN, 0}};
      if (poll(fds, 2, -1) < 0 && errno != EINTR) {
        fail("poll");
      }
      if (fds[1].revents != 0) {
        return;
      }
      rdma_cm_event* event = nullptr;
      while (rdma_get_cm_event(channel, &event) == 0) {
        const std::lock_guard lock(mutex_);
        if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST || event->event == RDMA_CM_EVENT_ESTABLISHED) {
          std::uint32_t version = 0;
          if (event->param.conn.private_data_len >= sizeof version) {
            std::memcpy(&version, event->param.conn.private_data, sizeof version);
          }
          if (version != VERSION && !event->id->context) {
            fail("find the version in the private data");
          }
        }
        events_.emplace_back(event->event, event->id);
        must(rdma_ack_cm_event(event), "rdma_ack_cm_event");
        changed_.notify_all();
      }
      if (errno != EAGAIN) {
        fail("rdma_get_cm_event");
      }
    }
  }

  const int stop_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<rdma_cm_event_type, rdma_cm_id*>> events_;
  bool cancelled_ = false;
};

// One end of a session.
class End {
public:
  explicit End(rdma_cm_id* id)
      : id_(id), pd_(made(ibv_alloc_pd(id->verbs), "ibv_alloc_pd")),
        completions_(made(ibv_create_comp_channel(id->verbs), "ibv_create_comp_channel")),
        cq_(made(ibv_create_cq(id->verbs, 4 * BUFFERS, nullptr, completions_, 0), "ibv_create_cq")), data_(BUFFERS * SIZE),
        credits_(2 * BUFFERS) {
    must(fcntl(completions_->fd, F_SETFL, fcntl(completions_->fd, F_GETFL) | O_NONBLOCK), "fcntl");
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq_;
    init.cap = {2 * BUFFERS, 2 * BUFFERS, 1, 1, 0};
    init.qp_type = IBV_QPT_RC;
    must(rdma_create_qp(id, pd_, &init), "rdma_create_qp");
    region_ = made(ibv_reg_mr(pd_, data_.data(), data_.size(), ACCESS), "ibv_reg_mr");
    credit_region_ = made(ibv_reg_mr(pd_, credits_.data(), credits_.size() * sizeof credits_[0], ACCESS), "ibv_reg_mr");
    must(ibv_req_notify_cq(cq_, 0), "ibv_req_notify_cq");
  }

  std::uint8_t* buffer(unsigned index) { return data_.data() + index * SIZE; }

  ibv_sge data(unsigned index, std::size_t length) {
    return {reinterpret_cast<std::uint64_t>(buffer(index)), static_cast<std::uint32_t>(length), region_->lkey};
  }

  ibv_sge credit(unsigned index) {
    return {reinterpret_cast<std::uint64_t>(&credits_[index]), sizeof credits_[0], credit_region_->lkey};
  }

  std::uint32_t& credits(unsigned index) { return credits_[index]; }

  void post_receive(std::uint64_t number, ibv_sge sge) {
    ibv_recv_wr wr{}, *bad = nullptr;
    wr.wr_id = number;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    must(ibv_post_recv(id_->qp, &wr, &bad), "ibv_post_recv");
  }

  void post_send(std::uint64_t number, ibv_sge sge) {
    ibv_send_wr wr{}, *bad = nullptr;
    wr.wr_id = number;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    must(ibv_post_send(id_->qp, &wr, &bad), "ibv_post_send");
  }

  // The next completion; false after so many milliseconds.
  bool next(ibv_wc& wc, int timeout_ms) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
    for (;;) {
      const int count = ibv_poll_cq(cq_, 1, &wc);
      if (count < 0) {
        fail("ibv_poll_cq");
      }
      if (count > 0) {
        return true;
      }
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
      pollfd fd{completions_->fd, POLLIN, 0};
      if (left <= 0 || poll(&fd, 1, static_cast<int>(left)) == 0) {
        return false;
      }
      ibv_cq* cq = nullptr;
      void* context = nullptr;
      if (ibv_get_cq_event(completions_, &cq, &context) == 0) {
        ibv_ack_cq_events(cq, 1);
        must(ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
      }
    }
  }

  // The next completion, which must be a success.
  ibv_wc take() {
    ibv_wc wc{};
    if (!next(wc, TIMEOUT_MS)) {
      fail("see a completion");
    }
    expect_success(wc);
    return wc;
  }

  void destroy() {
    rdma_destroy_qp(id_);
    must(ibv_destroy_cq(cq_), "ibv_destroy_cq");
    must(ibv_destroy_comp_channel(completions_), "ibv_destroy_comp_channel");
    must(ibv_dereg_mr(region_), "ibv_dereg_mr");
    must(ibv_dereg_mr(credit_region_), "ibv_dereg_mr");
    must(ibv_dealloc_pd(pd_), "ibv_dealloc_pd");
    must(rdma_destroy_id(id_), "rdma_destroy_id");
  }

private:
  rdma_cm_id* id_;
  ibv_pd* pd_;
  ibv_comp_channel* completions_;
  ibv_cq* cq_;
  std::vector<std::uint8_t> data_;
  std::vector<std::uint32_t> credits_;
  ibv_mr *region_ = nullptr, *credit_region_ = nullptr;
};

rdma_conn_param parameters() {
  rdma_conn_param parameters{};
  // Receives are always there: a retry would be a fault.
  parameters.retry_count = 7;
  parameters.rnr_retry_count = 0;
  parameters.private_data = &VERSION;
  parameters.private_data_len = sizeof VERSION;
  return parameters;
}

sockaddr_in place(const char* address, std::uint16_t port) {
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_port = htons(port);
  inet_pton(AF_INET, address, &place.sin_addr);
  return place;
}

// The length of a message.
std::size_t length_of(std::uint64_t message) { return 1 + message * 997 % SIZE; }

void receiver(int meeting) {
  Events events;
  rdma_cm_id* listener = nullptr;
  must(rdma_create_id(events.channel, &listener, nullptr, RDMA_PS_TCP), "rdma_create_id");
  sockaddr_in own = place(own_address(meeting).c_str(), PORT);
  must(rdma_bind_addr(listener, reinterpret_cast<sockaddr*>(&own)), "rdma_bind_addr");
  must(rdma_listen(listener, 4), "rdma_listen");
  // No connection is asked for yet: a wait for one runs out, and another is cancelled.
  if (events.wait(RDMA_CM_EVENT_CONNECT_REQUEST, 50) != nullptr) {
    fail("time out without a connection");
  }
  std::thread canceller([&] {
    std::this_thread::sleep_for(50ms);
    events.cancel();
  });
  if (events.wait(RDMA_CM_EVENT_CONNECT_REQUEST) != nullptr) {
    fail("cancel a wait");
  }
  canceller.join();
  exchange(meeting, 0);

  rdma_cm_id* id = events.await(RDMA_CM_EVENT_CONNECT_REQUEST);
  // An established connection has no private data at this end.
  id->context = &events;
  End end(id);
  for (unsigned buffer = 0; buffer < BUFFERS; buffer++) {
    end.post_receive(buffer, end.data(buffer, SIZE));
  }
  rdma_conn_param param = parameters();
  must(rdma_accept(id, &param), "rdma_accept");
  events.await(RDMA_CM_EVENT_ESTABLISHED);
  end.credits(0) = BUFFERS;
  end.post_send(100, end.credit(0));
  std::vector<unsigned> held;
  unsigned slot = 0;
  for (std::uint64_t received = 0; received < MESSAGES;) {
    const ibv_wc wc = end.take();
    if (wc.opcode != IBV_WC_RECV) {
      continue;
    }
    const auto buffer = static_cast<unsigned>(wc.wr_id);
    if (wc.byte_len != length_of(received)) {
      fail("find the length of message " + std::to_string(received));
    }
    expect_bytes(end.buffer(buffer), wc.byte_len, received, "message");
    received++;
    held.push_back(buffer);
    // The newest is released first.
    if (held.size() >= BUFFERS / 2 || received == MESSAGES) {
      slot = (slot + 1) % BUFFERS;
      end.credits(slot) = static_cast<std::uint32_t>(held.size());
      for (; !held.empty(); held.pop_back()) {
        end.post_receive(held.back(), end.data(held.back(), SIZE));
      }
      end.post_send(100, end.credit(slot));
    }
  }
  // The sender goes: receives that are posted end with an error, at the latest when this end has disconnected too.
  events.await(RDMA_CM_EVENT_DISCONNECTED);
  must(rdma_disconnect(id), "rdma_disconnect");
  unsigned flushed = 0;
  for (ibv_wc wc{}; flushed < BUFFERS;) {
    if (!end.next(wc, TIMEOUT_MS)) {
      fail("see all receives flushed");
    }
    flushed += wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id < BUFFERS ? 1 : 0;
  }
  end.destroy();
  must(rdma_destroy_id(listener), "rdma_destroy_id");
  events.end();
}

void sender(int meeting, const char* address) {
  exchange(meeting, 0);
  Events events;
  rdma_cm_id* id = nullptr;
  must(rdma_create_id(events.channel, &id, nullptr, RDMA_PS_TCP), "rdma_create_id");
  sockaddr_in peer = place(address, PORT);
  must(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&peer), TIMEOUT_MS), "rdma_resolve_addr");
  events.await(RDMA_CM_EVENT_ADDR_RESOLVED);
  must(rdma_resolve_route(id, TIMEOUT_MS), "rdma_resolve_route");
  events.await(RDMA_CM_EVENT_ROUTE_RESOLVED);
  End end(id);
  for (unsigned index = 0; index < 2 * BUFFERS; index++) {
    end.post_receive(1000 + index, end.credit(index));
  }
  rdma_conn_param param = parameters();
  must(rdma_connect(id, &param), "rdma_connect");
  events.await(RDMA_CM_EVENT_ESTABLISHED);
  std::deque<unsigned> free;
  for (unsigned buffer = 0; buffer < BUFFERS; buffer++) {
    free.push_back(buffer);
  }
  std::uint64_t credits = 0, sent = 0;
  while (sent < MESSAGES || free.size() < BUFFERS) {
    for (; sent < MESSAGES && credits > 0 && !free.empty(); sent++, credits--, free.pop_front()) {
      const unsigned buffer = free.front();
      fill(end.buffer(buffer), length_of(sent), sent);
      end.post_send(buffer, end.data(buffer, length_of(sent)));
    }
    const ibv_wc wc = end.take();
    if (wc.opcode == IBV_WC_RECV) {
      const auto index = static_cast<unsigned>(wc.wr_id - 1000);
      credits += end.credits(index);
      end.post_receive(wc.wr_id, end.credit(index));
    } else {
      free.push_back(static_cast<unsigned>(wc.wr_id));
    }
  }
  must(rdma_disconnect(id), "rdma_disconnect");
  events.await(RDMA_CM_EVENT_DISCONNECTED);
  end.destroy();
  events.end();
}

}  // namespace

int main(int argc, char** argv) {
  const char* address = argc > 1 ? argv[1] : nullptr;
  const int meeting = meet(MEETING, address);
  address == nullptr ? receiver(meeting) : sender(meeting, address);
  std::puts("ok");
}
