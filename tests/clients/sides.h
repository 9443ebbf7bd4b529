// What the programs for two processes share: how they find each other over TCP, bytes that both can compute, and connecting queue pairs.
#pragma once

#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

[[noreturn]] inline void fail(const std::string& what) {
  std::fprintf(stderr, "failed to %s\n", what.c_str());
  std::exit(1);
}

// The call must return 0, as most verbs do on success.
inline void must(int result, const char* what) {
  if (result != 0) {
    fail(std::string(what) + ": " + std::strerror(result > 0 ? result : errno));
  }
}

// The call must return a pointer.
template <typename Type>
Type* made(Type* object, const char* what) {
  if (object == nullptr) {
    fail(std::string(what) + ": " + std::strerror(errno));
  }
  return object;
}

// The connection over which two sides find each other: a server without an address, else a client.
inline int meet(std::uint16_t port, const char* address) {
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_port = htons(port);
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  auto* name = reinterpret_cast<sockaddr*>(&place);
  if (address != nullptr) {
    if (inet_pton(AF_INET, address, &place.sin_addr) != 1 || connect(socket, name, sizeof place) != 0) {
      fail("reach the server");
    }
    return socket;
  }
  const int yes = 1;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(socket, name, sizeof place) != 0 || listen(socket, 1) != 0) {
    fail("listen");
  }
  const int accepted = accept(socket, nullptr, nullptr);
  if (accepted < 0) {
    fail("accept");
  }
  return accepted;
}

// Sends ours and waits for theirs.
template <typename Type>
Type exchange(int peer, const Type& ours) {
  Type theirs;
  if (send(peer, &ours, sizeof ours, MSG_NOSIGNAL) != sizeof ours ||
      recv(peer, &theirs, sizeof theirs, MSG_WAITALL) != sizeof theirs) {
    fail("exchange: the peer is gone");
  }
  return theirs;
}

// The address that the peer has reached us at, or by which we reach it.
inline std::string own_address(int peer) {
  sockaddr_in own{};
  socklen_t length = sizeof own;
  char text[INET_ADDRSTRLEN];
  if (getsockname(peer, reinterpret_cast<sockaddr*>(&own), &length) != 0 ||
      inet_ntop(AF_INET, &own.sin_addr, text, sizeof text) == nullptr) {
    fail("learn the own address");
  }
  return text;
}

// The byte at a place of a message with a number.
inline std::uint8_t pattern(std::uint64_t number, std::size_t place) {
  return static_cast<std::uint8_t>(number * 131 + place * 7 + (place >> 8));
}

inline void fill(void* memory, std::size_t length, std::uint64_t number) {
  for (std::size_t place = 0; place < length; place++) {
    static_cast<std::uint8_t*>(memory)[place] = pattern(number, place);
  }
}

inline void expect_bytes(const void* memory, std::size_t length, std::uint64_t number, const char* what) {
  for (std::size_t place = 0; place < length; place++) {
    if (static_cast<const std::uint8_t*>(memory)[place] != pattern(number, place)) {
      fail(std::string("find the bytes of ") + what + " " + std::to_string(number) + " at " + std::to_string(place));
    }
  }
}

inline void expect_success(const ibv_wc& wc) {
  if (wc.status != IBV_WC_SUCCESS) {
    fail(std::string("complete a request: ") + ibv_wc_status_str(wc.status));
  }
}

constexpr int GID_INDEX = 1;
constexpr int ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

// The first device.
struct Device {
  Device() {
    ibv_device** list = made(ibv_get_device_list(nullptr), "ibv_get_device_list");
    context = made(ibv_open_device(made(list[0], "find a device")), "ibv_open_device");
    ibv_free_device_list(list);
    pd = made(ibv_alloc_pd(context), "ibv_alloc_pd");
    must(ibv_query_device(context, &attr), "ibv_query_device");
    must(ibv_query_port(context, 1, &port), "ibv_query_port");
    must(ibv_query_gid(context, 1, GID_INDEX, &gid), "ibv_query_gid");
  }

  ibv_context* context;
  ibv_pd* pd;
  ibv_device_attr attr{};
  ibv_port_attr port{};
  ibv_gid gid{};
};

// Takes a queue pair to RTS, connected to one of another device or of this one.
inline void connect_qp(const Device& device, ibv_qp* qp, std::uint32_t qpn, const ibv_gid& gid) {
  constexpr std::uint32_t PSN = 0x1234;
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  attr.qp_access_flags = ACCESS;
  must(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "enter INIT");
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = device.port.active_mtu;
  attr.dest_qp_num = qpn;
  attr.rq_psn = PSN;
  attr.max_dest_rd_atomic = static_cast<std::uint8_t>(device.attr.max_qp_rd_atom);
  attr.min_rnr_timer = 12;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.grh.dgid = gid;
  attr.ah_attr.grh.sgid_index = GID_INDEX;
  attr.ah_attr.grh.hop_limit = 64;
  attr.ah_attr.port_num = 1;
  must(ibv_modify_qp(qp, &attr,
                     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                         IBV_QP_MIN_RNR_TIMER),
       "enter RTR");
  attr.qp_state = IBV_QPS_RTS;
  attr.sq_psn = PSN;
  attr.timeout = 17;
  attr.retry_cnt = 7;
  attr.rnr_retry = 7;
  attr.max_rd_atomic = static_cast<std::uint8_t>(device.attr.max_qp_rd_atom);
  must(ibv_modify_qp(qp, &attr,
                     IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC),
       "enter RTS");
}
